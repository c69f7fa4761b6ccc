#include "device/cuda/chosen.h"

#include <atomic>

#include "base/error.h"
#include "device/cuda/check.h"
#include "device/cuda/cuda.h"

namespace pleat::device::cuda {
namespace {
std::atomic<int> chosen{0};

std::string bus_of(int device) {
  char text[32] = {};
  PLEAT_CUDA(cudaDeviceGetPCIBusId(text, sizeof text, device));
  return text;
}

}  // namespace

int chosen_device() { return chosen; }

void choose_device(int device) {
  chosen = device;
  enter_device();
}

std::string device_bus() { return bus_of(chosen); }

std::vector<std::string> reachable_buses() {
  std::vector<std::string> out;
  for (int other = 0; other < num_devices(); ++other) {
    if (other == chosen) continue;
    int can = 0;
    PLEAT_CUDA(cudaDeviceCanAccessPeer(&can, chosen, other));
    if (can != 0) out.push_back(bus_of(other));
  }
  return out;
}

void enter_device() {
  thread_local int entered = -1;
  const int device = chosen;
  if (entered == device) return;
  std::string why;
  if (num_devices(&why) == 0)
    base::fail_with(base::ExitCode::Hardware, "no GPU can be used here: {}; device.kind = \"cpu\" needs none",
                    why);
  PLEAT_CUDA(cudaSetDevice(device));
  entered = device;
}

}  // namespace pleat::device::cuda
