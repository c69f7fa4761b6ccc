// What the kernels of this folder share: sums of routed rows in slot order, fillers, and checks of arguments.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "base/checked.h"
#include "kernels/bind.h"

namespace pleat::kernels::dispatch {

constexpr int64_t kTileRows = 64;
constexpr int64_t kChunk = 1024;  // columns summed at a time: the running sum stays in the nearest cache

// sum[c] = sum over slots, ascending, of rows[row_of[slot], column + c]; slots at -1 add nothing.
template <class C>
void sum_rows(const C* rows, const int32_t* row_of, int64_t num_slots, int64_t width, int64_t column,
              int64_t num_columns, C* __restrict sum) {
  bool first = true;
  for (int64_t s = 0; s < num_slots; ++s) {
    if (row_of[s] < 0) continue;
    const C* __restrict row = rows + row_of[s] * width + column;
    if (first) {
      std::copy_n(row, num_columns, sum);
      first = false;
    } else {
      for (int64_t c = 0; c < num_columns; ++c) sum[c] += row[c];
    }
  }
  if (first) std::fill_n(sum, num_columns, C(0));
}

// Rows [begin, end) belong to no token.
inline void fill_rows(int32_t* row_token, int32_t* row_slot, int64_t begin, int64_t end) {
  std::fill(row_token + begin, row_token + end, -1);
  std::fill(row_slot + begin, row_slot + end, -1);
}

inline void check_budget(std::string_view kernel, int64_t num_rows, int64_t budget) {
  if (num_rows > budget)
    base::fail("[{}] routing needs {} rows, the budget is {}; a larger token budget or a capacity would fit",
               kernel, num_rows, budget);
}

inline void check_rank(std::string_view kernel, std::string_view name, const Arg& arg, size_t rank) {
  if (arg.shape.size() != rank)
    base::fail("[{}] argument '{}' has {} dimensions, needed {}", kernel, name, arg.shape.size(), rank);
}

inline void check_offsets(std::string_view kernel, const Arg& offsets) {
  require_dtype(kernel, "offsets", offsets, tensor::Dtype::I32);
  check_rank(kernel, "offsets", offsets, 1);
  if (offsets.dim(0) < 2)
    base::fail("[{}] argument 'offsets' is [{}], needed one more than the experts", kernel, offsets.dim(0));
}

inline void check_index_range(std::string_view kernel, int64_t choices, int64_t rows) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  if (choices > kMost || rows > kMost)
    base::fail("[{}] {} choices and {} rows do not fit in 32 bits", kernel, choices, rows);
}

}  // namespace pleat::kernels::dispatch
