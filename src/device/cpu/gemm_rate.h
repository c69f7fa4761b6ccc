// The ceiling our figures are shown against: the matrix-product rate of this machine, measured.
#pragma once

#include <functional>
#include <vector>

#include "device/cpu/pool.h"
#include "tensor/dtype.h"

namespace pleat::device {

// FLOP/s of large matrix products, every thread of the pool busy with its own; the best of a few short runs.
double measure_gemm_rate(Pool& pool, tensor::Dtype dtype);

// The same with other ranks at the same time: what this rank's threads reach in each of a few runs. Every run
// lies between two calls of `meet`, which returns when all ranks have called it, and takes the time between
// them. So the sum over ranks of one run is what they reach together, whether or not there is a core for each.
std::vector<double> measure_gemm_rates(Pool& pool, tensor::Dtype dtype, const std::function<void()>& meet);

}  // namespace pleat::device
