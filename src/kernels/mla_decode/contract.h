// What latent attention over its compressed cache asks of its arguments, and what it costs
// (kernels/contract.h). The maths is in mla_decode.h. No GPU kernels: nothing is launched.
#pragma once

#include "kernels/mla/contract.h"

namespace pleat::kernels {

inline void check(const signature::mla_absorb::Forward<Arg>& args, const Invocation& call) {
  const MlaShape s = checked_mla_shape(args.q, call);
  require_rank(args.q, 2);
  require_rank(args.w, 2);
  const int64_t rows = args.q.dim(0), rank = args.w.dim(1);
  require_shape(args.q, {rows, s.q_width()});
  require_shape(args.w, {s.kv_width(), rank});
  require_shape(args.cos_sin, {rows, s.rope_dim});
  require_shape(args.y, {rows, s.heads * (rank + s.rope_dim)});
  require_same_type({&args.q, &args.w, &args.y});
  require_type(args.cos_sin, wide_of(args.q.dtype));
}
inline Work work(const signature::mla_absorb::Forward<Arg>& args, const Invocation& call) {
  const MlaShape s = mla_shape(call);
  return multiplies(call, 2.0 * static_cast<double>(args.q.dim(0) * s.heads * s.nope_dim * args.w.dim(1)), 0);
}

inline void check(const signature::mla_latent::Forward<Arg>& args, const Invocation& call) {
  const MlaShape s = checked_mla_shape(args.kv, call);
  require_rank(args.kv, 2);
  const int64_t rows = args.kv.dim(0), rank = args.kv.dim(1);
  require_shape(args.k_pe, {rows, s.rope_dim});
  require_shape(args.cos_sin, {rows, s.rope_dim});
  require_shape(args.rows, {rows, rank + s.rope_dim});
  require_same_type({&args.kv, &args.k_pe, &args.rows});
  require_type(args.cos_sin, wide_of(args.kv.dtype));
}
inline Work work(const signature::mla_latent::Forward<Arg>&, const Invocation& call) {
  return moves(call, 0);
}

inline void check(const signature::mla_expand::Forward<Arg>& args, const Invocation& call) {
  const MlaShape s = checked_mla_shape(args.x, call);
  require_rank(args.x, 2);
  require_rank(args.w, 2);
  const int64_t rows = args.x.dim(0), rank = args.w.dim(1);
  require_shape(args.x, {rows, s.heads * rank});
  require_shape(args.w, {s.kv_width(), rank});
  require_shape(args.y, {rows, s.heads * s.v_dim});
  require_same_type({&args.x, &args.w, &args.y});
}
inline Work work(const signature::mla_expand::Forward<Arg>& args, const Invocation& call) {
  const MlaShape s = mla_shape(call);
  return multiplies(call, 2.0 * static_cast<double>(args.x.dim(0) * s.heads * s.v_dim * args.w.dim(1)), 0);
}

// ---- Scratch: these take none.

template <AnyOf<signature::mla_absorb::Forward<Arg>, signature::mla_latent::Forward<Arg>,
                signature::mla_expand::Forward<Arg>>
              Args>
int64_t scratch_bytes(const Args&, const Invocation&, const Gpu&) {
  return 0;
}

}  // namespace pleat::kernels
