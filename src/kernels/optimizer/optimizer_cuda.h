// Entries of the GPU optimizer: those of update_cuda.cu that optimizer_cuda_bindings() lists, and the fused
// one, which no row of program/ops.def names yet.
#pragma once

#include "kernels/cuda/bind.h"

namespace pleat::kernels {

CudaLaunch prepare_adamw(const Invocation& call, device::cuda::Lane& lane);
CudaLaunch prepare_round_share(const Invocation& call, device::cuda::Lane& lane);
CudaLaunch prepare_bias_update(const Invocation& call, device::cuda::Lane& lane);

// adamw and the rounding of its result in one pass: "g hyper grad_scale commit coords? -> w! m! v! low!",
// attributes as adamw. low is the bf16 weight. With coords (attrs shard, group) g, m and v hold elements
// [c s, (c+1) s) of low; w is either such a piece (as many elements as g) or whole (as many as low).
CudaLaunch prepare_adamw_round(const Invocation& call, device::cuda::Lane& lane);

}  // namespace pleat::kernels
