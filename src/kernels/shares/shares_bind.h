// What the kernels of shares check when a program is bound, and where a share lies in a row.
#pragma once

#include "kernels/math/coords.h"
#include "program/shares.h"

namespace pleat::kernels {

// The tensors are arguments [first, end) of a call.
struct ShareTensors {
  size_t first = 0, end = 0;
  int64_t count() const { return static_cast<int64_t>(end - first); }
};

inline int64_t row_elements(const Invocation& call, ShareTensors t, int64_t num_ranks) {
  const signature::pack_own::Update args(call.args);
  int64_t sum = 0;
  for (size_t i = t.first; i < t.end; ++i) sum += program::share_stride(call[i].size(), num_ranks);
  return sum;
}

// Where the share of tensor i begins in a row.
inline int64_t begin_in_row(const Invocation& call, ShareTensors t, size_t i, int64_t num_ranks) {
  return row_elements(call, {t.first, i}, num_ranks);
}

inline void require_row(const char* kernel, const Invocation& call, ShareTensors t, const Arg& packed,
                        int64_t num_ranks) {
  const signature::pack_own::Update args(call.args);
  if (num_ranks < 1) base::fail("[{}] {} ranks, needed 1 or more", kernel, num_ranks);
  for (size_t i = t.first; i < t.end; ++i)
    require_dtype(kernel, fmt::format("tensor {}", i - t.first), call[i], packed.dtype);
  const int64_t row = row_elements(call, t, num_ranks);
  if (packed.dim(1) != row)
    base::fail(
        "[{}] argument 'packed' has rows of {} elements, needed {}: the shares of {} tensors over {} "
        "ranks",
        kernel, packed.dim(1), row, t.count(), num_ranks);
}

// Each returns which arguments are the tensors.
inline ShareTensors check_pack_shares(const Invocation& call) {
  const signature::pack_shares::BackwardWeight args(call.args);
  const ShareTensors t{0, call.args.size() - 1};
  const Arg& packed = call[t.end];
  require_rank("pack_shares", "packed", packed, 2);
  require_row("pack_shares", call, t, packed, packed.dim(0));
  return t;
}

inline ShareTensors check_pack_own(const Invocation& call) {
  const ShareTensors t{1, call.args.size() - 1};
  const Arg& packed = call[t.end];
  require_coords("pack_own", call, call[0]);
  require_rank("pack_own", "packed", packed, 2);
  require_row("pack_own", call, t, packed, call.integer("ranks"));
  require_shape("pack_own", "packed", packed, {1, packed.dim(1)});
  return t;
}

inline ShareTensors check_unpack_shares(const Invocation& call) {
  const ShareTensors t{1, call.args.size()};
  require_rank("unpack_shares", "packed", call[0], 2);
  require_row("unpack_shares", call, t, call[0], call[0].dim(0));
  return t;
}

}  // namespace pleat::kernels
