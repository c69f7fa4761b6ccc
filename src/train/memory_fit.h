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
  interpret::DeviceMemory device;  // of a CPU: arena and windows alone
  int64_t host_bytes = 0;          // pinned
  int64_t staging_bytes = 0;       // of a GPU: beside what is pinned (interpret::staging_bytes)
  interpret::OwnerBytes at_peak{};
};
// On a GPU with what CUDA and NCCL take.
StageMemory stage_memory(cost::MachineKind kind, const model::Mesh& mesh, const program::Program& program,
                         const interpret::Plan& plan);
// Of a rank that has both programs in one arena, as large as the larger: a step, and its like that is run again.
StageMemory larger(const StageMemory& a, const StageMemory& b);
// Of every pipeline stage: a step that may be run again (moe.overflow) has room for its other program too. `config` must
// be resolved.
void add_rerun(std::vector<StageMemory>& stages, const config::Config& config,
               const schedule::RankPrograms& ranks, int64_t num_ranks, cost::MachineKind kind);

struct MemoryFit {
  int64_t device_limit = 0;          // of a rank: a GPU's memory; ranks of a CPU have their node's
  std::vector<int64_t> device_over;  // per stage, bytes beyond it; 0: it fits, or there is no GPU
  // Of the node whose ranks take most of its host's memory: on a GPU's host what is pinned and the staging, on a CPU all
  // there is. The staging is part of it.
  int64_t host_limit = 0, host_bytes = 0, staging_bytes = 0;
  int64_t host_over() const { return host_bytes > host_limit ? host_bytes - host_limit : 0; }
  bool fits() const;
  std::string
      text;  // "fits: stage 0 takes 61.2 of 79.1 GiB", or "does not fit: stage 3 by 12.0 GiB; largest owners ..."
  // Of GPUs: "a rank takes 1.12 GiB of 110 GiB of host memory: 1.00 GiB pinned, 128 MiB staging".
  std::string host_text;
};
// `stages`: by pipeline stage of the layout.
MemoryFit memory_fit(const cost::Machine& machine, int64_t ranks_per_node, const layout::Layout& layout,
                     const std::vector<StageMemory>& stages);

}  // namespace pleat::train
