#include "schedule/pass/ring_buffers.h"

#include <unordered_map>

namespace pleat::schedule {

using namespace program;

Program bound_ring_buffers(Program program) {
  std::unordered_map<ValueId, StageId> shifted;      // what a shift wrote -> that shift
  std::unordered_map<ValueId, StageId> last_reader;  // of what a shift reads, on other lanes, so far
  for (const Stage& stage : program.stages)
    if (kernel_of(stage.op) == KernelKind::ring_shift) last_reader[stage.uses[0].value] = -1;
  if (last_reader.empty()) return program;
  for (size_t s = 0; s < program.stages.size(); ++s) {
    Stage& stage = program.stages[s];
    if (kernel_of(stage.op) != KernelKind::ring_shift) {
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
    stage.after = last_reader[sent];
  }
  return program;
}

}  // namespace pleat::schedule
