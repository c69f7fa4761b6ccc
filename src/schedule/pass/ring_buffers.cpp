#include "schedule/pass/ring_buffers.h"

#include <unordered_map>

namespace pleat::schedule {

using namespace program;

namespace {

bool is_shift(const Stage& stage) { return kernel_of(stage.op) == KernelKind::ring_shift; }

}  // namespace

std::vector<Wait> ring_waits(const Program& program) {
  std::unordered_map<ValueId, StageId> shifted;      // what a shift wrote -> that shift
  std::unordered_map<ValueId, StageId> last_reader;  // of what a shift reads, on other lanes, so far
  std::vector<Wait> out;
  for (const Stage& stage : program.stages)
    if (is_shift(stage)) last_reader[stage.uses[0].value] = -1;
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
    shifted[stage.uses[1].value] = static_cast<StageId>(s);
    const auto before = shifted.find(stage.uses[0].value);
    if (before == shifted.end()) continue;
    const ValueId sent = program.stages[static_cast<size_t>(before->second)].uses[0].value;
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
