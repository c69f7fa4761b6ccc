// Entry points of ring_attention_cuda.cu, bound in attention_cuda.cu.
#pragma once

#include "kernels/cuda/bind.h"

namespace pleat::kernels {

CudaLaunch prepare_ring_forward(const Invocation& call, device::cuda::Lane& lane);
CudaLaunch prepare_ring_backward(const Invocation& call, device::cuda::Lane& lane);

}  // namespace pleat::kernels
