// Attention of new tokens over a cache and over each other, and the cache itself: contract of kernels
// `cached_attention` and `cache_append` (program/ops.def).
//
// B sequences, P rows each. Row b P + i is new token i of sequence b; it counts when i < num_new[b] and then
// stands at position lengths[b] + i. The cache [B, C, w] holds the rows of positions below lengths[b],
// position p in slot p mod C. The row of a new token is columns [column, column + w) of `rows`: it is seen
// straight from there by the tokens behind it, and written into the cache only afterwards, by cache_append.
// So a ring may be shorter than window + P, and nothing a call still needs is overwritten.
//
// Inside a cache row key head g is columns [g d, (g + 1) d), value head g columns [v_column + g dv, ... +
// dv); the two may overlap (latent attention: the value is the front of the key). q: head h is columns [h d,
// (h + 1) d) of a row. Position p sees position j when j <= p, and p - j < window where window > 0; scale,
// sinks and the softmax are those of kernel `attention`. Rows that do not count come out as zero.
//
// Wrapping around is legal only where the window allows it: window > 0 and C >= window - 1. Otherwise
// lengths[b] + num_new[b] <= C must hold; anything else throws before a byte is written.
//
// cache_append is a phase-update stage without a commit: what the cache holds counts only as far as the
// caller's lengths say, so a call that is thrown away costs nothing but (in a ring) the rows it replaced.
//
// Bits: one head group and a block of kQueryRows queries is one tile on one thread, keys ascend; so a result
// depends neither on threads nor on the other sequences. It may differ in rounding with the cut into calls.
// Memory: tiles on the stack (under 1 MB), nothing allocated. d and dv at most kMaxCachedWidth, H a multiple
// of G.
#pragma once

#include <cstdint>

#include "kernels/bind.h"

namespace pleat::kernels {

constexpr int kMaxCachedWidth = 1024;
constexpr int kQueryRows = 32;

struct CacheShape {
  int64_t num_sequences = 0, num_rows = 0, capacity = 0, width = 0;  // B, P, C, w
  int64_t window = 0;                                                // 0: none
  int64_t column = 0, row_stride = 0;                                // where a new cache row lies in `rows`

  bool may_wrap() const { return window > 0 && capacity >= window - 1; }
};
// Of rows [B P, *] and a cache [B, C, w], with attrs column and window; contract.h checks them.
inline CacheShape cache_shape(const Arg& rows, const Arg& cache, const Invocation& call) {
  return {cache.dim(0),           rows.dim(0) / cache.dim(0), cache.dim(1), cache.dim(2),
          call.integer("window"), call.integer("column"),     rows.dim(1)};
}

struct CachedAttentionShape {
  CacheShape cache;
  int heads = 0, kv_heads = 0, head_dim = 0, v_head_dim = 0;
  int64_t v_column = 0, q_stride = 0;
  double scale = 1.0;
};
inline CachedAttentionShape cached_attention_shape(const signature::cached_attention::Forward<Arg>& args,
                                                   const Invocation& call) {
  CachedAttentionShape s;
  s.cache = cache_shape(args.rows, args.cache, call);
  s.heads = static_cast<int>(call.integer("heads"));
  s.kv_heads = static_cast<int>(call.integer("kv_heads"));
  s.head_dim = static_cast<int>(call.integer("head_dim"));
  s.v_head_dim = static_cast<int>(call.integer("v_head_dim"));
  s.v_column = call.integer("v_column");
  s.q_stride = args.q.dim(1);
  s.scale = call.attr("scale");
  return s;
}

// Throws base::Error naming the sequence unless lengths and num_new fit the cache.
void check_cache_use(const CacheShape& shape, const int32_t* lengths, const int32_t* num_new);

// sinks may be nullptr.
template <class T>
void cached_attention(const CachedAttentionShape& shape, const T* q, const T* rows, const T* cache,
                      const int32_t* lengths, const int32_t* num_new, const T* sinks, T* out,
                      device::Pool& pool);

template <class T>
void cache_append(const CacheShape& shape, const T* rows, const int32_t* lengths, const int32_t* num_new,
                  T* cache, device::Pool& pool);

}  // namespace pleat::kernels
