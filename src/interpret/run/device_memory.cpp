#include "interpret/run/device_memory.h"

#include <fmt/format.h>

#include "base/checked.h"
#include "comm/windows/windows.h"
#include "device/cuda/context.h"
#include "device/cuda/cuda.h"

namespace pleat::interpret {
namespace {

// Of an H200 with CUDA 13: `pleat doctor` prints that of the GPU at hand.
constexpr int64_t kUsualContext = int64_t{539} << 20;

std::string gib(int64_t bytes) { return fmt::format("{:.3f} GiB", double(bytes) / double(1 << 30)); }

}  // namespace

int64_t allocated_windows(int64_t planned_bytes) {
  return planned_bytes == 0 ? 0 : base::round_up(planned_bytes + comm::kWindowHeaderBytes, int64_t{2} << 20);
}

DeviceMemory device_memory(const Plan& plan) {
  DeviceMemory out;
  out.arena_bytes = plan.arena_bytes;
  out.window_bytes = allocated_windows(plan.window.arena_bytes);
  out.context_measured = device::cuda::num_devices() > 0;
  out.context_bytes = out.context_measured ? device::cuda::context_bytes() : kUsualContext;
  return out;
}

int64_t host_mirror(const Plan& plan) { return plan.persistent_bytes; }

std::string describe(const DeviceMemory& m) {
  return fmt::format("arena {}{} + CUDA's own context {} ({})", gib(m.arena_bytes),
                     m.window_bytes > 0 ? " + windows " + gib(m.window_bytes) : "", gib(m.context_bytes),
                     m.context_measured ? "measured on this GPU" : "as on an H200: no GPU here");
}

}  // namespace pleat::interpret
