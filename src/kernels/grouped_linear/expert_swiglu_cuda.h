// The rows of expert_swiglu, which grouped_linear_cuda_bindings() lists beside its own.
#pragma once

#include "kernels/cuda/bind.h"

namespace pleat::kernels {

std::span<const CudaBinding> expert_swiglu_cuda_rows();

}  // namespace pleat::kernels
