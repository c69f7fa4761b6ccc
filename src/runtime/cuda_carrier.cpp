#include "runtime/cuda_carrier.h"

#include "base/error.h"
#include "device/cuda/chosen.h"

namespace pleat::runtime {

CudaCarrier::CudaCarrier(interpret::CudaMachine& machine, int64_t bytes)
    : machine_(machine), pinned_(bytes) {}

CudaCarrier::~CudaCarrier() {
  try {
    for (device::cuda::Lane& lane : lanes_) lane.synchronize();
  } catch (const base::Error&) {
    // Said where it was waited for, or nobody needs these bytes.
  }
}

std::span<std::byte> CudaCarrier::buffer(int index) {
  const int64_t size = pinned_.size() / kBuffers;
  return {pinned_.data() + index * size, static_cast<size_t>(size)};
}

void CudaCarrier::fetch(int b, int64_t begin, int64_t count) {
  device::cuda::enter_device();
  lanes_[b].copy_out(buffer(b).data(), machine_.arena() + begin, count);
}

void CudaCarrier::send(int b, int64_t begin, int64_t count) {
  device::cuda::enter_device();
  lanes_[b].copy_in(machine_.arena() + begin, buffer(b).data(), count);
}

void CudaCarrier::wait(int b) {
  device::cuda::enter_device();
  lanes_[b].synchronize();
}

void CudaCarrier::zero(int64_t begin, int64_t count) { machine_.fill(begin, 0, count); }

}  // namespace pleat::runtime
