#include "interpret/run/device_memory.h"

#include <algorithm>

#include "base/error.h"
#include "device/cuda/context.h"
#include "device/cuda/cuda.h"
#include "kernels/cuda/workspace.h"

namespace pleat::interpret {
namespace {

// Of an H200 with CUDA 13: `pleat doctor` prints that of the GPU at hand.
constexpr int64_t kUsualContext = int64_t{600} << 20;

int64_t workspace_of(const program::Program& p, const program::Stage& stage) {
  switch (program::kernel_of(stage.op)) {
    case program::KernelKind::linear:
      return kernels::kMatmulWorkspace;
    case program::KernelKind::attention:
      if (stage.phase == program::Phase::BackwardInput) {
        const auto elements = [&](size_t use) {
          return program::num_elements(p.values[static_cast<size_t>(stage.uses[use].value)]);
        };
        return 4 * (elements(3) + elements(5));  // lse, dqkv
      }
      return 0;
    default:
      return 0;
  }
}

std::string gib(int64_t bytes) { return fmt::format("{:.3f} GiB", double(bytes) / double(1 << 30)); }

}  // namespace

DeviceMemory device_memory(const program::Program& program, const Plan& plan) {
  DeviceMemory out;
  out.arena_bytes = plan.arena_bytes;
  std::vector<int64_t> scratch(program.lanes.size(), 0);
  for (const program::Stage& stage : program.stages) {
    int64_t& lane = scratch[static_cast<size_t>(stage.lane)];
    lane = std::max(lane, workspace_of(program, stage));
  }
  for (const int64_t bytes : scratch) out.workspace_bytes += bytes;
  out.context_measured = device::cuda::num_devices() > 0;
  out.context_bytes = out.context_measured ? device::cuda::context_bytes() : kUsualContext;
  return out;
}

std::string describe(const DeviceMemory& m) {
  return fmt::format("arena {} + workspaces {} + context {} ({})", gib(m.arena_bytes), gib(m.workspace_bytes),
                     gib(m.context_bytes),
                     m.context_measured ? "measured on this GPU" : "as on an H200: no GPU here");
}

}  // namespace pleat::interpret
