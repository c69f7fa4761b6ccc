// How kernels of grouped_tiles.cuh are launched: blocks of 384 threads in clusters of two, one for every multiprocessor.
#pragma once

#include "device/cuda/check.h"
#include "kernels/cuda/bind.h"
#include "kernels/cuda/shared_limit.cuh"
#include "kernels/cuda/tensor_map.cuh"

namespace pleat::kernels::cuda {

// `what` names the bytes of shared memory where they are more than a block can have.
template <class... Params, class... Args>
CudaLaunch launch_pairs(void (*kernel)(Params...), int shared_bytes, std::string_view what,
                        device::cuda::Lane& lane, const Args&... args) {
  allow_shared(reinterpret_cast<const void*>(kernel), shared_bytes, what);
  const int sms = device::cuda::facts().num_sms;
  return [=, stream = lane.stream()] {
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(sms / 2 * 2));
    config.blockDim = dim3(384);
    config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
    config.stream = stream;
    cudaLaunchAttribute cluster{};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = 2, cluster.val.clusterDim.y = 1, cluster.val.clusterDim.z = 1;
    config.attrs = &cluster;
    config.numAttrs = 1;
    PLEAT_CUDA(cudaLaunchKernelEx(&config, kernel, args...));
  };
}

}  // namespace pleat::kernels::cuda
