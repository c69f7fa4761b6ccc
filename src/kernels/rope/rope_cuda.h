// Gradients of qk_rope on the GPU, and both at once (qk_rope_back of program/ops.def).
#pragma once

#include "kernels/cuda/bind.h"

namespace pleat::kernels {

CudaLaunch prepare_rope_backward_input(const Invocation& call, device::cuda::Lane& lane);
CudaLaunch prepare_rope_backward_weight(const Invocation& call, device::cuda::Lane& lane);

// "dout cos_sin qkv q_norm k_norm rstd -> dqkv dq_norm+ dk_norm+" in one read of dout and qkv where a lane
// can hold its part of a head, else one after the other. Sums over rows are cut by the shape alone.
CudaLaunch prepare_rope_backward(const Invocation& call, device::cuda::Lane& lane);

}  // namespace pleat::kernels
