// What cross entropy over a whole vocabulary and over pieces of it share: the pass over one row, the sum of
// the rows' losses in an order fixed by their number, and the check of labels.
#pragma once

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/checked.h"
#include "kernels/bind.h"
#include "kernels/math/exp.h"
#include "kernels/math/reduce.h"
#include "kernels/math/tiles.h"

namespace pleat::kernels {

// Partial sums of the loss live on the stack, one per tile.
constexpr int64_t kMaxTiles = 1024;
inline Tiling loss_tiling(int64_t num_rows) {
  return {num_rows, std::max<int64_t>(8, base::ceil_div(num_rows, kMaxTiles))};
}

// Labels of masked rows may be anything.
inline void check_labels(std::string_view kernel, const int32_t* labels, const uint8_t* mask,
                         int64_t num_rows, int64_t vocabulary) {
  for (int64_t t = 0; t < num_rows; ++t)
    if (mask[t] && (labels[t] < 0 || labels[t] >= vocabulary))
      base::fail("[{}] label {} of row {} is outside the vocabulary of {}", kernel, labels[t], t, vocabulary);
}

// Running maxima side by side in vectors. NaN is passed over here and caught by the exponentials.
template <class T>
T maximum(const T* row, int64_t n) {
  typedef T Lanes __attribute__((vector_size(64)));
  constexpr int64_t kLanes = 64 / sizeof(T);
  constexpr T kLowest = -std::numeric_limits<T>::infinity();
  Lanes even = Lanes{} + kLowest, odd = even;
  int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    Lanes a, b;
    std::memcpy(&a, row + i, sizeof a);
    std::memcpy(&b, row + i + kLanes, sizeof b);
    even = a > even ? a : even;
    odd = b > odd ? b : odd;
  }
  T top = kLowest;
  for (; i < n; ++i) top = row[i] > top ? row[i] : top;
  even = odd > even ? odd : even;
  for (int64_t j = 0; j < kLanes; ++j) top = even[j] > top ? even[j] : top;
  return top;
}

// Sum of exp(row - shift).
template <class T>
double sum_exp(const T* row, int64_t n, T shift) {
  constexpr int64_t kBlock = 1024;
  T block[kBlock];
  double sum = 0;
  for (int64_t first = 0; first < n; first += kBlock) {
    const int64_t count = std::min(kBlock, n - first);
    for (int64_t j = 0; j < count; ++j) block[j] = fast_exp(row[first + j] - shift);
    sum += sum_of(block, count);
  }
  return sum;
}

// Runs row_loss(t) over unmasked rows and masked(t) over the others, and writes {sum, count}.
template <class RowLoss, class Masked>
void sum_rows(const Invocation& call, const uint8_t* mask, int64_t num_rows, const Arg& loss,
              const RowLoss& row_loss, const Masked& masked) {
  double partial[kMaxTiles];
  const Tiling tiling = loss_tiling(num_rows);
  call.pool->for_each_tile(tiling.num_tiles(), [&](int64_t tile_idx) {
    double sum = 0;
    for (int64_t t = tiling.begin(tile_idx); t < tiling.end(tile_idx); ++t) {
      if (mask[t]) {
        sum += row_loss(t);
      } else {
        masked(t);
      }
    }
    partial[tile_idx] = sum;
  });
  double sum = 0, num_tokens = 0;
  for (int64_t i = 0; i < tiling.num_tiles(); ++i) sum += partial[i];
  for (int64_t t = 0; t < num_rows; ++t) num_tokens += mask[t] != 0;
  double* to = loss.as<double>();
  const bool accumulate = loss.into() == Into::Accumulate;
  to[0] = accumulate ? to[0] + sum : sum;
  to[1] = accumulate ? to[1] + num_tokens : num_tokens;
}

}  // namespace pleat::kernels
