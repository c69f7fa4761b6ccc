// Contracts of router_choose, router_count and router_aux (contract.h).
#pragma once

#include "kernels/router/aux_settings.h"
#include "kernels/router/choose.h"
#include "kernels/router/routing_checks.h"

namespace pleat::kernels {

inline void require_score(const Arg& of, const Invocation& call) {
  const int64_t score = call.integer("score");
  if (score < 0 || score > 2) refuse(of, "score is {}, needed 0, 1 or 2", score);
}

// logits [T,E] of the stage's experts, of which a token has top_k.
inline void require_chosen_from(const Arg& logits, const Invocation& call) {
  const int64_t experts = call.integer("experts");
  require_experts(logits, experts);
  require_top_k(logits, call.integer("top_k"), experts);
  require_rank(logits, 2);
  require_shape(logits, {logits.dim(0), experts});
  require_float(logits);
}

// ---- router_choose

// Settings that fit together.
inline void require_choice(const Arg& of, const ChooseSettings& set, bool has_bias) {
  const auto score = static_cast<int64_t>(set.score);
  if (set.pre_softmax && set.score != Score::Softmax)
    refuse(of, "pre_softmax needs score 0 (softmax), got score {}", score);
  if (has_bias && (set.score == Score::Softmax || set.sinkhorn))
    refuse(of, "an expert bias needs score 1 or 2 (sigmoid, sqrtsoftplus), got score {}", score);
  if ((set.groups > 0) != (set.group_topk > 0))
    refuse(of, "groups {} and group_topk {} must both be 0 or both positive", set.groups, set.group_topk);
  if (set.grouped()) {
    if (set.experts % set.groups != 0)
      refuse(of, "{} experts do not divide into {} groups", set.experts, set.groups);
    const int64_t size = set.experts / set.groups;
    if (set.group_topk > set.groups || set.group_topk * size < set.top_k)
      refuse(of, "cannot choose {} experts from {} of {} groups of {}", set.top_k, set.group_topk, set.groups,
             size);
    if (set.group_score_topk < 1 || set.group_score_topk > size)
      refuse(of, "a group's score cannot be the sum of {} of its {} experts", set.group_score_topk, size);
  }
  if (set.sinkhorn && (set.score != Score::Softmax || set.pre_softmax || set.renormalize || set.grouped()))
    refuse(
        of,
        "Sinkhorn needs score 0, pre_softmax 0, renormalize 0 and no groups; got score {}, pre_softmax {}, "
        "renormalize {}, groups {}",
        score, set.pre_softmax, set.renormalize, set.groups);
}

inline void check(const signature::router_choose::Forward<Arg>& args, const Invocation& call) {
  using tensor::Dtype;
  require_score(args.logits, call);
  require_chosen_from(args.logits, call);
  const ChooseSettings set(call);
  require_choice(args.logits, set, args.expert_bias.present);
  const int64_t T = args.logits.dim(0), E = set.experts, k = set.top_k;
  require_shape(args.expert_bias, {E}, Dtype::F32);
  require_shape(args.valid, {T}, Dtype::U8);
  require_shape(args.given, {T, k}, Dtype::I32);
  require_shape(args.idx, {T, k}, Dtype::I32);
  require_shape(args.probs, {T, k}, args.logits.dtype);
  require_shape(args.load, {E}, Dtype::I64);
  require_shape(args.stats, {4}, Dtype::F64);
  require_shape(args.scratch, {T, E}, args.logits.dtype);
  if (set.balances_keys() && !args.given.present && !args.scratch.present)
    refuse(args.logits, "Sinkhorn needs the argument 'scratch' of [{}, {}]", T, E);
}
inline Work work(const signature::router_choose::Forward<Arg>& args, const Invocation& call) {
  return moves(call, ChooseSettings(call).balances_keys() && !args.given.present ? 2 : 1);
}

inline void check(const signature::router_choose::BackwardInput<Arg>& args, const Invocation& call) {
  require_score(args.logits, call);
  require_chosen_from(args.logits, call);
  const ChooseSettings set(call);
  require_choice(args.logits, set, false);
  const int64_t T = args.logits.dim(0);
  require_shape(args.dprobs, {T, set.top_k}, args.logits.dtype);
  require_shape(args.idx, {T, set.top_k}, tensor::Dtype::I32);
  require_shape(args.dlogits, {T, set.experts}, args.logits.dtype);
}
inline Work work(const signature::router_choose::BackwardInput<Arg>&, const Invocation& call) {
  return moves(call);
}

// ---- router_count

inline void check(const signature::router_count::Forward<Arg>& args, const Invocation& call) {
  using tensor::Dtype;
  require_chosen_from(args.logits, call);
  require_shape(args.valid, {args.logits.dim(0)}, Dtype::U8);
  require_shape(args.counts, {args.logits.dim(1)}, Dtype::I64);
  require_shape(args.tokens, {1}, Dtype::I64);
}
// Counters that are overwritten are cleared first.
inline Work work(const signature::router_count::Forward<Arg>& args, const Invocation& call) {
  return moves(call, 1 + (args.counts.into() == Into::Overwrite) + (args.tokens.into() == Into::Overwrite));
}

// ---- router_aux

inline void check(const signature::router_aux::BackwardInput<Arg>& args, const Invocation& call) {
  using tensor::Dtype;
  require_score(args.logits, call);
  require_chosen_from(args.logits, call);
  const aux::Settings set(call);
  if (set.hf && set.coef[aux::kMicro] != 0 && set.coef[aux::kGlobal] != 0)
    refuse(args.logits, "hf and a global loss both need the argument 'counts'; they cannot be combined");
  if (set.hf && set.num_layers < 1)
    refuse(args.logits, "hf needs num_layers of at least 1, got {}", set.num_layers);
  if (set.needs_given_counts() && !(args.counts.present && args.tokens.present))
    refuse(args.logits, "the {} loss needs the arguments 'counts' and 'tokens'",
           set.coef[aux::kGlobal] != 0 ? "global" : "hf");
  const int64_t T = args.logits.dim(0), E = args.logits.dim(1);
  require_shape(args.valid, {T}, Dtype::U8);
  require_shape(args.doc_start, {T}, Dtype::I32);
  require_shape(args.norm, {4}, Dtype::F64);
  require_shape(args.counts, {E}, Dtype::I64);
  require_shape(args.tokens, {1}, Dtype::I64);
  require_shape(args.dlogits, {T, E}, args.logits.dtype);
  require_shape(args.losses, {aux::kNumLosses}, Dtype::F64);
}
// Counts of documents are cleared, counts made, and losses with gradients.
inline Work work(const signature::router_aux::BackwardInput<Arg>&, const Invocation& call) {
  const aux::Settings set(call);
  return moves(call, 1 + set.needs_own_counts() + (set.coef[aux::kSequence] != 0));
}

}  // namespace pleat::kernels
