// Random numbers on the device, for what is measured: products of zeros draw less power and run faster than
// real ones.
#pragma once

#include "device/cuda/cuda.h"

namespace pleat::device::cuda {

// Numbers like a network's (mean 0, between -2 and 2), as bf16 or float.
void fill_random(Lane& lane, void* data, int64_t num_elements, bool is_bf16, uint32_t seed);
// The same with this standard deviation; none is more than 2.45 times as large.
void fill_random_std(Lane& lane, void* data, int64_t num_elements, bool is_bf16, uint32_t seed,
                     float std_dev);

}  // namespace pleat::device::cuda
