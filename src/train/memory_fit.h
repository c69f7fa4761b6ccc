// Whether the plans of a step fit a machine's memory, and who takes most where they do not.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cost/machine.h"
#include "interpret/plan/plan.h"
#include "interpret/run/device_memory.h"
#include "schedule/ranks.h"

namespace pleat::train {

// Of one rank of a pipeline stage.
struct StageMemory {
  interpret::DeviceMemory device;  // of a CPU: the arena alone
  int64_t host_bytes = 0;          // pinned memory of a GPU's host
  interpret::OwnerBytes at_peak{};
};
// On a GPU with what CUDA and NCCL take.
StageMemory stage_memory(cost::MachineKind kind, const model::Mesh& mesh, const program::Program& program,
                         const interpret::Plan& plan);

struct MemoryFit {
  int64_t device_limit = 0, host_limit = 0;  // of one rank: a GPU's memory, its part of its host's
  std::vector<int64_t> device_over;          // per stage, bytes beyond the limit; 0: it fits
  std::vector<int64_t> host_over;
  bool fits() const;
  std::string
      text;  // "fits: stage 0 takes 61.2 of 79.1 GiB", or "does not fit: stage 3 by 12.0 GiB; largest owners ..."
};
MemoryFit memory_fit(const cost::Machine& machine, int64_t ranks_per_node, int64_t num_ranks,
                     const std::vector<StageMemory>& stages);

}  // namespace pleat::train
