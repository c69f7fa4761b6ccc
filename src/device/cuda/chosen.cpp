#include "device/cuda/chosen.h"

#include <atomic>

#include "device/cuda/check.h"

namespace pleat::device::cuda {
namespace {
std::atomic<int> chosen{0};
}

int chosen_device() { return chosen; }

void choose_device(int device) {
  chosen = device;
  enter_device();
}

void enter_device() {
  thread_local int entered = -1;
  const int device = chosen;
  if (entered == device) return;
  PLEAT_CUDA(cudaSetDevice(device));
  entered = device;
}

}  // namespace pleat::device::cuda
