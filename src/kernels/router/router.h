// The router: noise, gate, choice of experts, counters and auxiliary losses. This header is the contract of
// all its kernels; argument lists are in program/ops.def.
//
// Two element types meet here: the compute type C of activations and weights, and the router type R of logits
// and probabilities. Supported pairs C/R: f32/f32, f32/f64, f64/f64. At most kMaxExperts experts. Tiles
// depend on shapes alone; float sums over tokens go over at most kMaxTiles partial sums added in order, and
// counters are integers, so no result depends on the number of threads. Overwritten outputs may hold anything
// before.
//
// jitter            y = x * (1 - eps + 2 eps u), u uniform in [0, 1), keyed by (rng[0] seed, rng[1] step,
//                   layer, token_index[t] * width + column). Backward draws the same numbers. attrs layer,
//                   eps.
// router_force      forced[t,e] = N(0,1) keyed like jitter, plus |bias_std| * N(0,1)_e shared by all tokens,
//                   drawn per step and layer, or once per layer when bias_std < 0; plus loaded_bias for
//                   expert layer mod E. attrs layer, bias_std, loaded_bias.
// router_gate       logits = x w^T + bias, multiplied and added in R. Backward: dx = dlogits w, dw =
//                   dlogits^T x, dbias = column sums of dlogits (in double).
// router_choose     attrs, all required, forward and backward alike:
//                     experts, top_k
//                     score        0 softmax, 1 sigmoid, 2 sqrt(softplus)
//                     pre_softmax  1: softmax over all experts before the choice (score 0 only)
//                     renormalize  1: divide the chosen scores by their sum (+ 1e-20 for scores 1 and 2).
//                                  Without effect at top_k 1 (the probability would be constant); softmax
//                                  after the choice is normalised in any case
//                     scale        factor on the probabilities, last
//                     groups, group_topk  0: off. Only the group_topk best of `groups` equal groups of
//                                  experts may be chosen from; a group's score is the sum of its
//                                  group_score_topk largest keys
//                     renormalize_single  1: renormalise for top_k = 1 too, which makes every weight 1
//                     sinkhorn     1: balanced choice; score 0, no bias, groups or renormalisation
//                     training     0: Sinkhorn chooses by activation
//                   Choice by key: logits (softmax after the choice), else score + expert_bias, or the
//                   Sinkhorn matrix. Largest key first, of equal keys the lower expert; a NaN key counts as
//                   -inf, so the choice is always in range and the probabilities carry the NaN. expert_bias
//                   is legal with scores 1 and 2 only. Probabilities are made from unbiased scores: softmax
//                   over the chosen logits; softmax over all; or the score itself. Sinkhorn: sigmoid(logit)
//                   at top_k 1, else softmax over all experts, not renormalised. `given` replaces the choice
//                   (ascending per token, checked), probabilities are made anew. Tokens with valid = 0 are
//                   routed but enter neither load nor stats nor Sinkhorn's column sums. stats: accumulating
//                   takes the maximum of [0] and adds [1] and [2]; [0] ignores NaN, [1] carries it. Backward:
//                   gradient of the probabilities through score, renormalisation and scale, not the choice.
// router_count      counts[e] = valid tokens with e among their top_k logits (every score grows with its
//                   logit). tokens[0] = valid tokens. attrs experts, top_k.
// router_aux        attrs experts, top_k, score, micro_coef, seq_coef, global_coef, z_coef, hf, num_layers.
//                   With s the scores over all experts (softmax, or scores 1 and 2 divided by their sum +
//                   1e-20), sums over valid tokens only:
//                     micro    norm[1] E / (k T^2) sum_i count_i sum_x s_i(x); T, count of this microbatch.
//                              hf = 1: norm[1] E / tokens^2 sum_i counts_i sum_x s_i(x), with the inputs
//                              counts and tokens (tokens = num_layers T): this layer's share of the loss over
//                              all layers
//                     sequence norm[2] sum over documents d of E / (k T_d^2) sum_i count_di sum_{x in d}
//                              s_i(x); a document starts where doc_start[t] == t
//                     global   norm[3] E / (k tokens) sum_i counts_i sum_x s_i(x), with the inputs counts and
//                              tokens
//                     z        norm[3] sum_x logsumexp(logits(x))^2
//                   losses gets these four values; dlogits gets the gradient of their sum weighted by the
//                   coefficients, the counts taken as constants. A coefficient of 0 skips its loss: value and
//                   gradient exactly 0.
#pragma once

#include <cstdint>

#include "kernels/bind.h"
#include "program/limits.h"

namespace pleat::kernels {

using program::kMaxExperts;

}  // namespace pleat::kernels
