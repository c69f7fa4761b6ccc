// What the CPU kernels of this folder share: sums of routed rows in slot order, fillers, and the check of a
// plan that is too long.
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

}  // namespace pleat::kernels::dispatch
