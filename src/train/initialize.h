// Weights from the seed: a pure function of (seed, parameter name, logical element), so that every layout
// starts from the same numbers and adding a parameter leaves all others as they were.
#pragma once

#include "device/cpu/pool.h"
#include "model/parameter.h"
#include "model/shard.h"
#include "tensor/dtype.h"

namespace pleat::train {

// The part of the tensor that `runs` describe, in the rank's own order.
void initialize_slice(const model::Parameter& parameter, uint64_t seed, const std::vector<model::Run>& runs,
                      tensor::Dtype dtype, std::byte* out, device::Pool& pool);

}  // namespace pleat::train
