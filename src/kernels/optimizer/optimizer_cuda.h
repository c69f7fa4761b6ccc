// Entries of update_cuda.cu, which optimizer_cuda_bindings() lists.
#pragma once

#include "kernels/cuda/bind.h"

namespace pleat::kernels {

CudaLaunch prepare_adamw(const Invocation& call, device::cuda::Lane& lane);
CudaLaunch prepare_adamw_narrow(const Invocation& call, device::cuda::Lane& lane);
CudaLaunch prepare_bias_update(const Invocation& call, device::cuda::Lane& lane);

}  // namespace pleat::kernels
