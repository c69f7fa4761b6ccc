// How a GPU cuts rows for the gradients of the norms' weights: blocks of rows give partial sums, f32, which are
// added up in their order. So the cut follows from the shape alone.
#pragma once

#include <algorithm>

#include "kernels/cuda/scratch.h"
#include "kernels/rope/rope.h"

namespace pleat::kernels {

struct RopeSums {
  int64_t rows_per_block = 1, row_blocks = 0;
  int64_t stride = 0;  // sums of a block
  int64_t bytes() const { return row_blocks * stride * 4; }
};

// The gradient of the weights alone.
inline RopeSums rope_weight_sums(const RopeShape& shape, int64_t rows) {
  const int64_t slots = shape.full_norm ? shape.num_normed() : 2;
  const int64_t per_block = std::max<int64_t>(8, base::ceil_div(rows, std::max<int64_t>(32, 1024 / slots)));
  return {per_block, base::ceil_div(rows, per_block), slots * shape.head_dim};
}

// Beside that of qkv: few enough rows that there are blocks for every multiprocessor of the largest devices and
// that the table fits.
inline RopeSums rope_back_sums(const RopeShape& shape, int64_t rows) {
  constexpr int64_t kTableFloats = 8192;
  const int64_t blocks = shape.full_norm ? 264 : 528;
  const int64_t most = std::clamp<int64_t>(kTableFloats / std::max<int64_t>(1, shape.rotary_dim), 1, 32);
  const int64_t per_block =
      std::clamp<int64_t>(base::ceil_div(rows, blocks), std::min<int64_t>(4, most), most);
  return {per_block, base::ceil_div(rows, per_block), shape.q_norm_size() + shape.k_norm_size()};
}

}  // namespace pleat::kernels
