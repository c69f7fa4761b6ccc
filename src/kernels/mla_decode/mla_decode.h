// Multi-head Latent Attention over its compressed cache: what stands around kernel `cached_attention`.
//
// A key head is k_h = w_k,h c | R k_pe and a value head v_h = w_v,h c, with one compressed vector c (width r)
// per token. Since q . (w c) = (w^T q) . c, the up projection moves to the query's side and behind the sum:
//   mla_absorb  y_h = w_k,h^T q_nope,h | R q_rope,h      [T, H (r + dr)]
//   (attention with one key head of width r + dr; its value is the first r columns of the key)
//   mla_expand  y_h = w_v,h x_h                          [T, H dv] from x [T, H r]
// so that a cached row is mla_latent's c | R k_pe, r + dr numbers for all heads together.
//
// w [H (dn + dv), r]: per head dn rows of w_k, dv rows of w_v, as kernel `linear` reads it to make
// k_nope | v. The result equals attention over expanded heads up to rounding; products are regrouped.
// Float or double; attrs heads nope_dim rope_dim v_dim interleaved (kernels/mla/mla.h). One tile is one head
// and kTileRows rows, so bits do not depend on the number of threads. No output overlaps an input.
#pragma once

#include "kernels/bind.h"
