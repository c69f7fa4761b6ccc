// What the packing of latent attention asks of its arguments, and what it costs (kernels/contract.h). The
// maths is in mla.h.
#pragma once

#include "kernels/mla/mla.h"

namespace pleat::kernels {

// The attributes, for any kernel that has them.
inline MlaShape checked_mla_shape(const Arg& of, const Invocation& call) {
  const MlaShape s = mla_shape(call);
  if (s.heads < 1 || s.nope_dim < 0 || s.v_dim < 1)
    refuse(of, "heads {}, nope_dim {}, v_dim {}: needed at least 1, 0, 1", s.heads, s.nope_dim, s.v_dim);
  if (s.rope_dim < 2 || s.rope_dim > kMaxRopeDim || s.rope_dim % 2 != 0)
    refuse(of, "rope_dim {} must be even, from 2 to {}", s.rope_dim, kMaxRopeDim);
  return s;
}

inline void check(const signature::mla_pack::Forward<Arg>& args, const Invocation& call) {
  const MlaShape s = checked_mla_shape(args.q, call);
  require_rank(args.q, 2);
  const int64_t rows = args.q.dim(0);
  require_shape(args.q, {rows, s.q_width()});
  require_shape(args.kv, {rows, s.kv_width()});
  require_shape(args.k_pe, {rows, s.rope_dim});
  require_shape(args.cos_sin, {rows, s.rope_dim});
  require_shape(args.qkv, {rows, s.packed_width()});
  require_same_type({&args.q, &args.kv, &args.k_pe, &args.qkv});
  require_type(args.cos_sin, wide_of(args.q.dtype));
}
inline Work work(const signature::mla_pack::Forward<Arg>&, const Invocation& call) { return moves(call); }

inline void check(const signature::mla_pack::BackwardInput<Arg>& args, const Invocation& call) {
  const MlaShape s = checked_mla_shape(args.dqkv, call);
  require_rank(args.dqkv, 2);
  const int64_t rows = args.dqkv.dim(0);
  require_shape(args.dqkv, {rows, s.packed_width()});
  require_shape(args.cos_sin, {rows, s.rope_dim});
  require_shape(args.dq, {rows, s.q_width()});
  require_shape(args.dkv, {rows, s.kv_width()});
  require_shape(args.dk_pe, {rows, s.rope_dim});
  require_same_type({&args.dqkv, &args.dq, &args.dkv, &args.dk_pe});
  require_type(args.cos_sin, wide_of(args.dqkv.dtype));
}
inline Work work(const signature::mla_pack::BackwardInput<Arg>&, const Invocation& call) {
  return moves(call);
}

// ---- Scratch: these take none.

template <AnyOf<signature::mla_pack::Forward<Arg>, signature::mla_pack::BackwardInput<Arg>> Args>
int64_t scratch_bytes(const Args&, const Invocation&, const Gpu&) {
  return 0;
}

}  // namespace pleat::kernels
