// What the kernels of shares ask of their arguments, and what they cost (kernels/contract.h). shares.h says what
// they do.
#pragma once

#include "base/checked.h"
#include "kernels/contract.h"
#include "kernels/math/coords.h"
#include "kernels/shares/shares.h"

namespace pleat::kernels {

// `packed` holds rows of the shares of these tensors.
inline void require_share_rows(const Arg& packed, std::span<const Arg> tensors, int64_t num_ranks) {
  if (num_ranks < 1) refuse(packed, "{} ranks, needed 1 or more", num_ranks);
  for (size_t i = 0; i < tensors.size(); ++i)
    if (tensors[i].dtype != packed.dtype)
      refuse(packed, "argument 'tensor {}' is {}, needed {}", i, tensor::name_of(tensors[i].dtype),
             tensor::name_of(packed.dtype));
  const int64_t row = share_row_elements(tensors, num_ranks);
  if (packed.dim(1) != row)
    refuse(packed,
           "argument 'packed' has rows of {} elements, needed {}: the shares of {} tensors over {} ranks",
           packed.dim(1), row, tensors.size(), num_ranks);
}

inline Work share_work(const Invocation& call, std::span<const Arg> tensors) {
  return moves(call, static_cast<int>(base::ceil_div(static_cast<int64_t>(tensors.size()), kShareBatch)));
}

inline void check(const signature::pack_shares::BackwardWeight<Arg>& args, const Invocation&) {
  require_rank(args.packed, 2);
  require_share_rows(args.packed, args.g, args.packed.dim(0));
}
inline Work work(const signature::pack_shares::BackwardWeight<Arg>& args, const Invocation& call) {
  return share_work(call, args.g);
}

inline void check(const signature::pack_own::Update<Arg>& args, const Invocation& call) {
  require_coords(args.coords, call);
  require_rank(args.packed, 2);
  require_share_rows(args.packed, args.w, call.integer("ranks"));
  require_shape(args.packed, {1, args.packed.dim(1)});
}
inline Work work(const signature::pack_own::Update<Arg>& args, const Invocation& call) {
  return share_work(call, args.w);
}

inline void check(const signature::unpack_shares::Update<Arg>& args, const Invocation&) {
  require_rank(args.packed, 2);
  require_share_rows(args.packed, args.w, args.packed.dim(0));
}
inline Work work(const signature::unpack_shares::Update<Arg>& args, const Invocation& call) {
  return share_work(call, args.w);
}

// ---- Scratch: these take none.

template <AnyOf<signature::pack_shares::BackwardWeight<Arg>, signature::pack_own::Update<Arg>,
                signature::unpack_shares::Update<Arg>>
              Args>
int64_t scratch_bytes(const Args&, const Invocation&, const Gpu&) {
  return 0;
}

}  // namespace pleat::kernels
