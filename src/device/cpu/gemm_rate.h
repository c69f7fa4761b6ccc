// The ceiling our figures are shown against: the matrix-product rate of this machine, measured.
#pragma once

#include "device/cpu/pool.h"
#include "tensor/dtype.h"

namespace pleat::device {

// FLOP/s of large matrix products, every thread of the pool busy with its own; the best of a few short runs.
double measure_gemm_rate(Pool& pool, tensor::Dtype dtype);

}  // namespace pleat::device
