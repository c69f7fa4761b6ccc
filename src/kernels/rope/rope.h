// Rotary position embedding: the table of a microbatch, and its use on packed q|k|v with an optional norm per
// head.
//
// rope_table   positions i32[T], inv_freq f64[r/2]  ->  cos_sin [T,r]: scale cos(p f_i) at i, scale sin(p
//              f_i) at r/2 + i. Angles are in double. attr scale.
//
// qk_rope      qkv [T,(H+2G)d]: H query heads, then G key heads, then G value heads, d numbers each.
//   forward          n = x, or x rstd w with rstd = 1 / sqrt(mean(x^2) + eps); the first r numbers of each
//                    head of n are rotated in pairs (rotate.h), the rest and v are copied. The norms are over
//                    each q and k head (q_norm, k_norm [d], rstd [T,H+G]), or with full_norm over all of q
//                    and all of k (q_norm [Hd], k_norm [Gd], rstd [T,2]). Both norms and rstd are present or
//                    all absent; full_norm needs them.
//   backward_input   dout, cos_sin, qkv?, q_norm?, k_norm?, rstd?  ->  dqkv (overwritten); the four are
//                    present with norms only.
//   backward_weight  dout, cos_sin, qkv, rstd  ->  dq_norm, dk_norm (+)= sums over tokens (and heads, unless
//                    full_norm).
//
// Float or double; sums in double: over a norm in a fixed order; weights of a head norm over ascending (t,
// head) inside row blocks that follow from T and d, then over the blocks; weights of a full norm over
// ascending t. attrs heads kv_heads head_dim rotary_dim interleaved full_norm eps. d <= 4096. dqkv may be
// dout itself when there are no norms, out may be qkv likewise; nothing else overlaps.
#pragma once

#include "kernels/bind.h"

namespace pleat::kernels {

constexpr int64_t kMaxRopeHeadDim = 4096;

// The attributes of qk_rope; contract.h checks them.
struct RopeShape {
  int64_t heads, kv_heads, head_dim, rotary_dim;
  bool interleaved, full_norm;
  int64_t width() const { return (heads + 2 * kv_heads) * head_dim; }
  int64_t num_normed() const { return heads + kv_heads; }  // heads that are rotated, and may be normed

  // Norm n of a row covers norm_width(n) numbers from norm_begin(n) on; head h lies in norm norm_of(h).
  int64_t num_norms() const { return full_norm ? 2 : num_normed(); }
  int64_t norm_of(int64_t h) const { return full_norm ? h >= heads : h; }
  int64_t norm_begin(int64_t n) const { return (full_norm ? n * heads : n) * head_dim; }
  int64_t norm_width(int64_t n) const {
    return full_norm ? (n == 0 ? q_norm_size() : k_norm_size()) : head_dim;
  }
  int64_t q_norm_size() const { return full_norm ? heads * head_dim : head_dim; }
  int64_t k_norm_size() const { return full_norm ? kv_heads * head_dim : head_dim; }
  // The weights of head h; nullptr without norms.
  template <class T>
  const T* weights_of(int64_t h, const T* q_norm, const T* k_norm) const {
    if (!q_norm) return nullptr;
    const bool is_q = h < heads;
    return (is_q ? q_norm : k_norm) + (full_norm ? (is_q ? h : h - heads) * head_dim : 0);
  }
};
inline RopeShape rope_shape(const Invocation& call) {
  return {call.integer("heads"),      call.integer("kv_heads"),         call.integer("head_dim"),
          call.integer("rotary_dim"), call.integer("interleaved") != 0, call.integer("full_norm") != 0};
}

}  // namespace pleat::kernels
