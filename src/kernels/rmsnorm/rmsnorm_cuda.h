// The fused gradient of the GPU norm (rmsnorm_back of program/ops.def).
#pragma once

#include "kernels/cuda/bind.h"

namespace pleat::kernels {

// Both gradients in one read of dy and x: "dy x w rstd dresidual? -> dx+ dw+". The sum over rows is cut by
// the number of resident teams, so dw's last bits follow the device model, never the run.
CudaLaunch prepare_rmsnorm_backward(const Invocation& call, device::cuda::Lane& lane);

}  // namespace pleat::kernels
