// Random numbers on the device for benchmarks of whole programs.
#pragma once

#include "device/cuda/cuda.h"

namespace pleat::device::cuda {

// fill_random's numbers with this standard deviation; none is more than 2.45 times as large.
void fill_random_std(Lane& lane, void* data, int64_t num_elements, bool is_bf16, uint32_t seed,
                     float std_dev);

}  // namespace pleat::device::cuda
