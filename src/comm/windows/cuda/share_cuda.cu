// Windows of processes: each rank's allocation is opened by the others through the driver's handles.
#include <cuda_runtime.h>
#include <fmt/format.h>

#include <array>
#include <cstring>

#include "base/error.h"
#include "comm/tcp/handshake.h"
#include "comm/windows/windows.h"
#include "device/cuda/chosen.h"

namespace pleat::comm {
namespace {

void require(cudaError_t error, const std::string& what) {
  if (error == cudaSuccess) return;
  (void)cudaGetLastError();
  base::fail_with(base::ExitCode::Hardware, "{}: {}", what, cudaGetErrorString(error));
}

// Where a rank's GPU is.
struct Place {
  std::array<char, 96> host{};
  std::array<char, 32> bus{};
};

Place own_place() {
  Place out;
  const std::string host = tcp::host_name(), bus = device::cuda::device_bus();
  std::memcpy(out.host.data(), host.data(), std::min(host.size(), out.host.size() - 1));
  std::memcpy(out.bus.data(), bus.data(), std::min(bus.size(), out.bus.size() - 1));
  return out;
}

// Why this process cannot write memory of the GPU at `other`; "": it can.
std::string why_not(const Place& own, const Place& other, int rank) {
  if (own.host != other.host)
    return fmt::format("rank {} is on another machine ({} and {})", rank, own.host.data(), other.host.data());
  if (own.bus == other.bus) return "";
  int device = -1, can = 0;
  if (cudaDeviceGetByPCIBusId(&device, other.bus.data()) != cudaSuccess) {
    (void)cudaGetLastError();
    return fmt::format(
        "this process does not see the GPU of rank {} ({}): let it see all GPUs of its machine", rank,
        other.bus.data());
  }
  require(cudaDeviceCanAccessPeer(&can, device::cuda::chosen_device(), device),
          "asking for access between GPUs");
  return can ? ""
             : fmt::format("GPU {} cannot reach the memory of GPU {} of rank {}", own.bus.data(),
                           other.bus.data(), rank);
}

class GpuWindows final : public SharedWindows {
 public:
  GpuWindows(Communicator& host, std::byte* memory) {
    device::cuda::enter_device();
    own = host.rank();
    cudaIpcMemHandle_t mine{};
    require(cudaMemset(memory, 0, kWindowHeaderBytes), "clearing a window's header");
    require(cudaDeviceSynchronize(), "clearing a window's header");
    require(cudaIpcGetMemHandle(&mine, memory), "making a handle of this rank's window");
    std::vector<cudaIpcMemHandle_t> all(static_cast<size_t>(host.size()));
    host.all_gather("windows", std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
    for (size_t r = 0; r < all.size(); ++r) {
      void* at = memory;
      if (static_cast<int>(r) != own)
        require(cudaIpcOpenMemHandle(&at, all[r], cudaIpcMemLazyEnablePeerAccess),
                fmt::format("opening the window of rank {}", host.world_ranks()[r]));
      begin.push_back(static_cast<std::byte*>(at));
    }
    host.barrier("windows");  // their headers are clear
  }
  ~GpuWindows() override {
    for (size_t r = 0; r < begin.size(); ++r)
      if (static_cast<int>(r) != own) (void)cudaIpcCloseMemHandle(begin[r]);
    (void)cudaGetLastError();
  }
};

}  // namespace

std::unique_ptr<SharedWindows> share_among_gpus(Communicator& host, std::byte* memory) {
  return std::make_unique<GpuWindows>(host, memory);
}

std::string why_out_of_reach(Communicator& host) {
  device::cuda::enter_device();
  const Place mine = own_place();
  std::vector<Place> all(static_cast<size_t>(host.size()));
  host.all_gather("reach", std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  using Text = std::array<char, 240>;
  Text why{};
  for (size_t r = 0; r < all.size(); ++r) {
    const std::string text = why_not(mine, all[r], host.world_ranks()[r]);
    if (text.empty()) continue;
    std::memcpy(why.data(), text.data(), std::min(text.size(), why.size() - 1));
    break;
  }
  std::vector<Text> answers(all.size());
  host.all_gather("reach", std::as_bytes(std::span(&why, 1)), std::as_writable_bytes(std::span(answers)));
  for (const Text& answer : answers)
    if (answer[0] != 0) return answer.data();
  return "";
}

}  // namespace pleat::comm
