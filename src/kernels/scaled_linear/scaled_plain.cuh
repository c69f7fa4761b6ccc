// The two products of codes as their launchers see them, and the plain kernels for what the tensor cores do not take.
#pragma once

#include <cuda_fp8.h>

#include "kernels/contract.h"
#include "kernels/cuda/bind.h"
#include "kernels/cuda/types.cuh"

namespace pleat::kernels::cuda {

// y [rows, n] = x w^T from row codes; with offsets w [E, n, k] has a matrix for each group of rows. What may be absent
// is a null pointer.
struct ScaledRows {
  const Arg &x, &x_scale, &w, &w_scale;
  const Arg *offsets, *bias, *residual;
  const Arg& y;
};
// dw (+)= dy^T x from column codes, group by group with offsets.
struct ScaledDepth {
  const Arg &dy, &dy_scale, &x, &x_scale;
  const Arg* offsets;
  const Arg& dw;
};

CudaLaunch plain_scaled_rows(const ScaledRows& product, device::cuda::Lane& lane);
CudaLaunch plain_scaled_depth(const ScaledDepth& product, device::cuda::Lane& lane);

}  // namespace pleat::kernels::cuda
