// Random numbers on the device: initial weights, and numbers for what is measured (products of zeros draw
// less power and run faster than real ones).
#pragma once

#include <span>

#include "base/rng.h"
#include "device/cuda/cuda.h"
#include "tensor/dtype.h"

namespace pleat::device::cuda {

// Numbers like a network's (mean 0, between -2 and 2), as bf16 or float.
void fill_random(Lane& lane, void* data, int64_t num_elements, bool is_bf16, uint32_t seed);
// The same with this standard deviation; none is more than 2.45 times as large.
void fill_random_std(Lane& lane, void* data, int64_t num_elements, bool is_bf16, uint32_t seed,
                     float std_dev);

// `count` numbers in a row: numbers `first` and on of a stream, elements `to` and on of an array.
struct Drawn {
  int64_t first = 0, to = 0, count = 0;
};
// Elements of `out` become std_dev times the stream's normal numbers, rounded to float: all of it (F32), the
// bf16 of its halves (BF16) or their rest (I16, tensor/halves.h; U8, tensor/short_master.h). The same bits as on the CPU.
// Elements of no piece keep what they hold. Waits.
void fill_normal(Lane& lane, void* out, tensor::Dtype dtype, const base::RandomStream& stream, double std_dev,
                 std::span<const Drawn> pieces);

}  // namespace pleat::device::cuda
