// The GPU kernels of take_rows_cuda.cu and columns_cuda.cu; rows_cuda_bindings() lists them with its own.
#pragma once

#include "kernels/cuda/bind.h"

namespace pleat::kernels {

CudaLaunch prepare_take_rows_forward(const Invocation& call, device::cuda::Lane& lane);
CudaLaunch prepare_take_rows_backward_input(const Invocation& call, device::cuda::Lane& lane);
CudaLaunch prepare_columns_forward(const Invocation& call, device::cuda::Lane& lane);
CudaLaunch prepare_columns_backward_input(const Invocation& call, device::cuda::Lane& lane);
CudaLaunch prepare_split_heads_forward(const Invocation& call, device::cuda::Lane& lane);
CudaLaunch prepare_split_heads_backward_input(const Invocation& call, device::cuda::Lane& lane);
CudaLaunch prepare_merge_heads_forward(const Invocation& call, device::cuda::Lane& lane);
CudaLaunch prepare_merge_heads_backward_input(const Invocation& call, device::cuda::Lane& lane);

}  // namespace pleat::kernels
