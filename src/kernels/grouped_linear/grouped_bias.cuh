// The parts of grouped_linear around the product: biases, and plain products for types and widths the
// tensor-core kernel does not take (f32; rows that are not a multiple of 16 bytes).
#pragma once

#include "kernels/cuda/bind.h"

namespace pleat::kernels::cuda {

// y[r] += bias[e] * scale[r]; scale may be absent (1).
CudaLaunch add_group_bias(const Arg& y, const Arg& bias, const Arg& scale, const Arg& offsets,
                          device::cuda::Lane& lane);
// dscale[r] (+)= dy[r] . bias[e]
CudaLaunch group_bias_dot(const Arg& dy, const Arg& bias, const Arg& dscale, const Arg& offsets,
                          device::cuda::Lane& lane);
// dbias[e] (+)= sum over rows of e of dy[r] * scale[r]: eight sums of every eighth row, ascending, then these in turn
CudaLaunch group_bias_sum(const Arg& dy, const Arg& scale, const Arg& dbias, const Arg& offsets,
                          device::cuda::Lane& lane);

// y = x w^T, dx = dy w, dw (+)= dy^T x per group, in float on the ordinary cores.
CudaLaunch plain_grouped_forward(const Arg& x, const Arg& w, const Arg& offsets, const Arg& y,
                                 device::cuda::Lane& lane);
CudaLaunch plain_grouped_dgrad(const Arg& dy, const Arg& w, const Arg& offsets, const Arg& dx,
                               device::cuda::Lane& lane);
CudaLaunch plain_grouped_wgrad(const Arg& dy, const Arg& x, const Arg& offsets, const Arg& dw,
                               device::cuda::Lane& lane);

}  // namespace pleat::kernels::cuda
