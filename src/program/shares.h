// Shares of tensors: how a tensor of some elements is cut over ranks, and how shares of several tensors lie
// in one message. Every rank's row holds its share of each tensor in turn; a share begins at a multiple of
// kShareAlign elements, so that it can be used where it lies.
#pragma once

#include <algorithm>
#include <cstdint>

namespace pleat::program {

constexpr int64_t kShareAlign = 64;

// Elements [r s, (r + 1) s) are rank r's; the last ranks may have fewer, or none. A share begins with a unit.
constexpr int64_t share_of(int64_t elements, int64_t num_ranks, int64_t unit = 1) {
  const int64_t units = (elements + unit - 1) / unit;
  return std::min((units + num_ranks - 1) / num_ranks * unit, elements);
}
// What a share takes in a row.
constexpr int64_t share_stride(int64_t elements, int64_t num_ranks) {
  return (share_of(elements, num_ranks) + kShareAlign - 1) / kShareAlign * kShareAlign;
}

}  // namespace pleat::program
