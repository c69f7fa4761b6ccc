// What a layer asked of a token budget, in one number that a maximum over ranks keeps whole: the rows of the
// rank that needed most and, of several, the lowest such rank. 0: the budget was enough.
#pragma once

#include <cstdint>

namespace pleat::program {

constexpr int64_t kOverflowRanks = int64_t{1} << 24;

constexpr int64_t encode_overflow(int64_t rows, int64_t rank) {
  return rows * kOverflowRanks + (kOverflowRanks - 1 - rank);
}
constexpr int64_t overflow_rows(int64_t code) { return code / kOverflowRanks; }
constexpr int64_t overflow_rank(int64_t code) { return kOverflowRanks - 1 - code % kOverflowRanks; }

}  // namespace pleat::program
