// How much shared memory a kernel may be launched with. The limit belongs to the kernel, not to a launch: it
// is only ever raised, so that what was prepared earlier still runs.
#pragma once

#include "base/error.h"
#include "device/cuda/check.h"

namespace pleat::kernels::cuda {

// `what` names the bytes where they are more than a block can have.
inline void allow_shared(const void* kernel, int64_t bytes, std::string_view what) {
  int device = 0, most = 0;
  PLEAT_CUDA(cudaGetDevice(&device));
  PLEAT_CUDA(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  cudaFuncAttributes now{};
  PLEAT_CUDA(cudaFuncGetAttributes(&now, kernel));
  const int64_t room = most - static_cast<int64_t>(now.sharedSizeBytes);
  if (bytes > room)
    base::fail("{} take {} bytes of shared memory, this device has {} for a block", what, bytes, room);
  if (bytes > now.maxDynamicSharedSizeBytes)
    PLEAT_CUDA(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
}

}  // namespace pleat::kernels::cuda
