#include "schedule/pass/ring_buffers.h"

#include <unordered_map>

#include "program/signature.h"

namespace pleat::schedule {

using namespace program;

namespace {

using Shift = signature::ring_shift::Forward<Use>;  // backwards it has the same arguments

bool is_shift(const Stage& stage) { return kernel_of(stage.op) == KernelKind::ring_shift; }

}  // namespace

std::vector<Wait> ring_waits(const Program& program) {
  std::unordered_map<ValueId, StageId> shifted;      // what a shift wrote -> that shift
  std::unordered_map<ValueId, StageId> last_reader;  // of what a shift reads, on other lanes, so far
  std::vector<Wait> out;
  for (const Stage& stage : program.stages)
    if (is_shift(stage)) last_reader[Shift(stage.uses).x.value] = -1;
  if (last_reader.empty()) return out;
  for (size_t s = 0; s < program.stages.size(); ++s) {
    const Stage& stage = program.stages[s];
    if (!is_shift(stage)) {
      for (const Use& use : stage.uses)
        if (const auto it = last_reader.find(use.value);
            use.access == Access::Read && it != last_reader.end())
          it->second = static_cast<StageId>(s);
      continue;
    }
    const Shift shift(stage.uses);
    shifted[shift.y.value] = static_cast<StageId>(s);
    const auto before = shifted.find(shift.x.value);
    if (before == shifted.end()) continue;
    const ValueId sent = Shift(program.stages[static_cast<size_t>(before->second)].uses).x.value;
    if (const StageId reader = last_reader[sent]; reader >= 0)
      out.push_back({static_cast<StageId>(s), reader});
  }
  return out;
}

Program bound_ring_buffers(Program program) {
  const std::vector<Wait> waits = ring_waits(program);
  return with_waits(std::move(program), waits);
}

}  // namespace pleat::schedule
