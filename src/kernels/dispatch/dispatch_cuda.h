// Prepare functions of the dispatch folder's GPU kernels, one per row of dispatch_cuda_bindings(). Contract:
// dispatch.h; rows f32 or bf16, probabilities f32.
#pragma once

#include "kernels/cuda/bind.h"

namespace pleat::kernels {

CudaLaunch prepare_dispatch_plan(const Invocation& call, device::cuda::Lane& lane);
CudaLaunch prepare_permute_forward(const Invocation& call, device::cuda::Lane& lane);
CudaLaunch prepare_permute_backward_input(const Invocation& call, device::cuda::Lane& lane);
CudaLaunch prepare_combine_forward(const Invocation& call, device::cuda::Lane& lane);
CudaLaunch prepare_combine_backward_input(const Invocation& call, device::cuda::Lane& lane);
CudaLaunch prepare_gather_plan(const Invocation& call, device::cuda::Lane& lane);
CudaLaunch prepare_receive_plan(const Invocation& call, device::cuda::Lane& lane);
CudaLaunch prepare_trim_plan(const Invocation& call, device::cuda::Lane& lane);
CudaLaunch prepare_combine_ranks(const Invocation& call, device::cuda::Lane& lane);
CudaLaunch prepare_permute_ranks(const Invocation& call, device::cuda::Lane& lane);

}  // namespace pleat::kernels
