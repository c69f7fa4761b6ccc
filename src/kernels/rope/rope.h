// Rotary position embedding: the table of a microbatch, and its use on packed q|k|v with an optional norm per
// head.
//
// rope_table   positions i32[T], inv_freq f64[r/2]  ->  cos_sin [T,r]: scale cos(p f_i) at i, scale sin(p
// f_i) at r/2 + i.
//              Angles are in double. attr scale.
//
// qk_rope      qkv [T,(H+2G)d]: H query heads, then G key heads, then G value heads, d numbers each.
//   forward          n = x, or x rstd w with rstd = 1 / sqrt(mean(x^2) + eps) for each q and k head (w =
//   q_norm or
//                    k_norm [d]; rstd [T,H+G], both norms and rstd present or all absent); the first r
//                    numbers of n are rotated in pairs (a,b) -> (a cos - b sin, b cos + a sin), the rest and
//                    v are copied. Pair i is (i, r/2 + i), or (2i, 2i+1) when interleaved.
//   backward_input   dout, cos_sin, qkv?, q_norm?, k_norm?, rstd?  ->  dqkv (overwritten); the four are
//   present with norms only. backward_weight  dout, cos_sin, qkv, rstd  ->  dq_norm [d], dk_norm [d] (+)=
//   sums over tokens and heads.
//
// Float or double; sums in double: over a head in a fixed order, weights over ascending (t, head) inside row
// blocks that follow from T and d, then over the blocks. attrs heads kv_heads head_dim rotary_dim interleaved
// eps. d <= 4096. dqkv may be dout itself when there are no norms, out may be qkv likewise; nothing else
// overlaps.
#pragma once

#include "kernels/bind.h"

namespace pleat::kernels {

constexpr int64_t kMaxHeadDim = 4096;

// The attributes of qk_rope, checked (throws base::Error).
struct RopeShape {
  int64_t heads, kv_heads, head_dim, rotary_dim;
  bool interleaved;
  int64_t width() const { return (heads + 2 * kv_heads) * head_dim; }
  int64_t num_normed() const { return heads + kv_heads; }
};
RopeShape rope_shape(const Invocation& call);

}  // namespace pleat::kernels
