// What the kernels of the cache ask of their arguments, and what they cost (kernels/contract.h). The maths
// is in cached_attention.h. No GPU kernels: nothing is launched.
#pragma once

#include "kernels/cached_attention/cached_attention.h"

namespace pleat::kernels {

template <class Args>
void check_cache(const Args& args, const Invocation& call) {
  require_rank(args.rows, 2);
  require_rank(args.cache, 3);
  const int64_t rows = args.rows.dim(0), sequences = args.cache.dim(0), slots = args.cache.dim(1);
  if (sequences < 1 || slots < 1 || rows % sequences != 0)
    refuse(args.rows, "{} rows and a cache of {} sequences with {} slots do not fit", rows, sequences, slots);
  const CacheShape s = cache_shape(args.rows, args.cache, call);
  if (s.column < 0 || s.column + s.width > s.row_stride)
    refuse(args.rows, "cache rows of {} from column {} leave rows of {}", s.width, s.column, s.row_stride);
  if (s.window < 0) refuse(args.rows, "window is {}, needed 0 (none) or more", s.window);
  require_shape(args.lengths, {sequences});
  require_shape(args.num_new, {sequences});
  require_type(args.lengths, tensor::Dtype::I32);
  require_type(args.num_new, tensor::Dtype::I32);
}

inline void check(const signature::cached_attention::Forward<Arg>& args, const Invocation& call) {
  check_cache(args, call);
  require_rank(args.q, 2);
  const CachedAttentionShape s = cached_attention_shape(args, call);
  const int64_t d = s.head_dim, dv = s.v_head_dim, rows = args.rows.dim(0);
  if (s.heads < 1 || s.kv_heads < 1 || s.heads % s.kv_heads != 0)
    refuse(args.q, "{} heads must be a multiple of {} key/value heads", s.heads, s.kv_heads);
  if (d < 1 || d > kMaxCachedWidth || dv < 1 || dv > kMaxCachedWidth)
    refuse(args.q, "head widths {} and {}, needed 1 to {}", d, dv, kMaxCachedWidth);
  if (s.kv_heads * d > s.cache.width || s.v_column < 0 || s.v_column + s.kv_heads * dv > s.cache.width)
    refuse(args.q, "keys and values leave a cache row of {}", s.cache.width);
  if (s.q_stride < s.heads * d || args.q.dim(0) != rows)
    refuse(args.q, "argument 'q' is [{}, {}], needed {} rows of at least {}", args.q.dim(0), s.q_stride, rows,
           s.heads * d);
  require_shape(args.sinks, {s.heads});
  require_shape(args.out, {rows, s.heads * dv});
  require_same_type({&args.q, &args.rows, &args.cache, &args.sinks, &args.out});
}
// With a full cache: how much of it is in use is known when it runs.
inline Work work(const signature::cached_attention::Forward<Arg>& args, const Invocation& call) {
  const double rows = static_cast<double>(args.rows.dim(0)), slots = static_cast<double>(args.cache.dim(1));
  return multiplies(
      call, 2.0 * rows * slots * call.attr("heads") * (call.attr("head_dim") + call.attr("v_head_dim")), 0);
}

inline void check(const signature::cache_append::Update<Arg>& args, const Invocation& call) {
  check_cache(args, call);
  require_same_type({&args.rows, &args.cache});
}
// Of the cache only the new rows are written.
inline Work work(const signature::cache_append::Update<Arg>& args, const Invocation&) {
  const double row_bytes = static_cast<double>(args.cache.dim(2) * tensor::size_of(args.cache.dtype));
  return {0, 2 * static_cast<double>(args.rows.dim(0)) * row_bytes, 0};
}

// ---- Scratch: these take none.

template <AnyOf<signature::cached_attention::Forward<Arg>, signature::cache_append::Update<Arg>> Args>
int64_t scratch_bytes(const Args&, const Invocation&, const Gpu&) {
  return 0;
}

}  // namespace pleat::kernels
