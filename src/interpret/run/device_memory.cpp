#include "interpret/run/device_memory.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/checked.h"
#include "comm/windows/windows.h"
#include "device/cuda/context.h"
#include "device/cuda/cuda.h"

namespace pleat::interpret {
namespace {

// Of an H200 with CUDA 13: `pleat doctor` prints that of the GPU at hand.
constexpr int64_t kUsualContext = int64_t{539} << 20;

// Of staging: a copy of 1.2 ms over PCIe 5, so that its start counts for nothing.
constexpr int64_t kLargestBuffer = int64_t{64} << 20;

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

int64_t staging_bytes(const Plan& plan) {
  return 2 *
         std::min(kLargestBuffer, base::round_up(std::max<int64_t>(plan.persistent_bytes, 1), int64_t{4096}));
}

std::string describe(const DeviceMemory& m) {
  return fmt::format("arena {}{} + CUDA's own context {} ({})", gib(m.arena_bytes),
                     m.window_bytes > 0 ? " + windows " + gib(m.window_bytes) : "", gib(m.context_bytes),
                     m.context_measured ? "measured on this GPU" : "as on an H200: no GPU here");
}

}  // namespace pleat::interpret
