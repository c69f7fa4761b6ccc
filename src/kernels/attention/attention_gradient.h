// Backward attention on the tensor cores of Hopper (attention_gradient.cuh), behind own_backward.
#pragma once

#include "kernels/attention/attention_own.h"

namespace pleat::kernels::attention {

// bf16 in widths and strides the copy engine takes, queries and keys the same rows.
bool suits_hopper_gradients(const OwnArguments& arguments, tensor::Dtype dtype);

// Enqueues dq, dk and dv.
CudaLaunch hopper_gradients(const OwnArguments& arguments, std::span<std::byte> scratch,
                            device::cuda::Lane& lane);

}  // namespace pleat::kernels::attention
