// Shares of several tensors side by side, for one message (program/shares.h). Copies of bytes: any element
// type, the same for all arguments.
//
//   pack_shares    tensors g... (any shapes) -> packed [n, S], S the sum of their share strides over n ranks.
//                  Row r: share r of every g in turn, zeros behind each up to its stride.
//   pack_own       coords i64[kNumGroups], tensors w... -> packed [1, S]: row c = coords[attr group] of what
//                  pack_shares would give for n = attr ranks.
//   unpack_shares  packed [n, S] -> every element of the tensors w..., from the row of its owner.
#pragma once

#include "kernels/bind.h"
#include "program/shares.h"

namespace pleat::kernels {

constexpr int64_t kShareBatch = 64;  // tensors of one launch on a GPU

// Of a row that holds a share of each of these tensors. The share of tensor i begins behind those before it.
inline int64_t share_row_elements(std::span<const Arg> tensors, int64_t num_ranks) {
  int64_t sum = 0;
  for (const Arg& tensor : tensors) sum += program::share_stride(tensor.size(), num_ranks);
  return sum;
}

}  // namespace pleat::kernels
