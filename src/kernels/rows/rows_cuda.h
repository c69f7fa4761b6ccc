// The GPU kernels of this folder; rows_cuda_bindings() lists them.
#pragma once

#include "kernels/cuda/bind.h"

namespace pleat::kernels {

CudaLaunch prepare_add_rows_forward(const Invocation& call, device::cuda::Lane& lane);
CudaLaunch prepare_add_rows_backward_weight(const Invocation& call, device::cuda::Lane& lane);
CudaLaunch prepare_take_rows(const Invocation& call, device::cuda::Lane& lane);
CudaLaunch prepare_columns_forward(const Invocation& call, device::cuda::Lane& lane);
CudaLaunch prepare_columns_backward_input(const Invocation& call, device::cuda::Lane& lane);
CudaLaunch prepare_fill_zero(const Invocation& call, device::cuda::Lane& lane);
CudaLaunch prepare_split_heads(const Invocation& call, device::cuda::Lane& lane);
CudaLaunch prepare_merge_heads(const Invocation& call, device::cuda::Lane& lane);

}  // namespace pleat::kernels
