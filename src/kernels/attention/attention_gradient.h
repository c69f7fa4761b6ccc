// Backward attention on the tensor cores of Hopper (attention_gradient.cuh), behind own_backward.
#pragma once

#include "kernels/attention/attention_own.h"

namespace pleat::kernels::attention {

// bf16 in widths and strides the copy engine takes, queries and keys the same rows.
bool suits_hopper_gradients(const OwnArguments& arguments, tensor::Dtype dtype);

// Enqueues dq, dk and dv; `dots` [num_queries, heads] holds the row sums of dout * out.
using GradientLaunch = std::function<void(const OwnArguments& at_launch, const float* dots)>;
GradientLaunch hopper_gradients(const OwnArguments& arguments, device::cuda::Lane& lane);

}  // namespace pleat::kernels::attention
