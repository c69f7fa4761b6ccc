// The rows of expert_swiglu, which grouped_linear_cuda_bindings() lists beside its own, and its forward.
#pragma once

#include "kernels/cuda/bind.h"

namespace pleat::kernels {

std::span<const CudaBinding> expert_swiglu_cuda_rows();
CudaLaunch prepare_expert_swiglu(const Invocation& call, device::cuda::Lane& lane);

}  // namespace pleat::kernels
