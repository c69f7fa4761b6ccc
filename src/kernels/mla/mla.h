// Multi-head Latent Attention: what its projections give, put into the packed rows the attention kernel
// reads.
//
// mla_pack, per head h of H; dn: width without position, dr: rotary width, dv: value width:
//   forward         q [T,H(dn+dr)] (per head nope | rope), kv [T,H(dn+dv)] (per head k_nope | v), k_pe [T,dr]
//                   (one for all heads), cos_sin [T,dr] (rope_table)  ->  qkv [T,H(2(dn+dr)+dv)]: rows
//                   q (H(dn+dr)) | k (H(dn+dr)) | v (H dv), q_h = q_nope_h | R q_rope_h,
//                   k_h = k_nope_h | R k_pe. So attention runs with kv_heads = heads, head_dim = dn + dr and
//                   v_head_dim = dv.
//   backward_input  dqkv, cos_sin  ->  dq, dkv, dk_pe, all overwritten; dk_pe turns back the sum over heads,
//                   which is taken in double in ascending order.
//
// The rotation R (kernels/rope/rotate.h) leaves every number in its place: pair i is (i, dr/2 + i), or (2i,
// 2i+1) when interleaved. Implementations that first sort the even numbers before the odd ones and then
// rotate halves get the same numbers in another order; q and k are ordered alike either way, so all scores,
// and with them all outputs and gradients outside this row, are the same.
//
// Float or double. attrs heads nope_dim rope_dim v_dim interleaved. rope_dim is even, at most kMaxRopeDim. No
// output overlaps an input. Rows are independent, so bits do not depend on the number of threads.
#pragma once

#include "kernels/bind.h"

namespace pleat::kernels {

constexpr int64_t kMaxRopeDim = 1024;

// The attributes of mla_pack; contract.h checks them.
struct MlaShape {
  int64_t heads, nope_dim, rope_dim, v_dim;
  bool interleaved;
  int64_t qk_dim() const { return nope_dim + rope_dim; }
  int64_t q_width() const { return heads * qk_dim(); }
  int64_t kv_width() const { return heads * (nope_dim + v_dim); }
  int64_t packed_width() const { return 2 * q_width() + heads * v_dim; }
};
inline MlaShape mla_shape(const Invocation& call) {
  return {call.integer("heads"), call.integer("nope_dim"), call.integer("rope_dim"), call.integer("v_dim"),
          call.integer("interleaved") != 0};
}

}  // namespace pleat::kernels
