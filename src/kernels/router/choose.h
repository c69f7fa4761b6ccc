// What a router_choose stage is set to do, read once per call, and how it weights the chosen experts.
#pragma once

#include "kernels/router/router.h"
#include "kernels/router/score.h"

namespace pleat::kernels {

// How probabilities come from logits: softmax over the chosen, softmax over all, or a score of each logit
// alone.
enum class Weighting : uint8_t { ChosenSoftmax, FullSoftmax, Point };

struct ChooseSettings {
  int64_t experts, top_k;
  Score score;
  bool pre_softmax, renormalize;
  double scale;
  int64_t groups, group_topk, group_score_topk;
  bool renormalize_single, sinkhorn, training;

  explicit ChooseSettings(const Invocation& call)
      : experts(call.integer("experts")),
        top_k(call.integer("top_k")),
        score(static_cast<Score>(call.integer("score"))),
        pre_softmax(call.integer("pre_softmax") != 0),
        renormalize(call.integer("renormalize") != 0),
        scale(call.attr("scale")),
        groups(call.integer("groups")),
        group_topk(call.integer("group_topk")),
        group_score_topk(call.integer("group_score_topk")),
        renormalize_single(call.integer("renormalize_single") != 0),
        sinkhorn(call.integer("sinkhorn") != 0),
        training(call.integer("training") != 0) {}

  // The choice is made from keys of the whole microbatch (sinkhorn.h), unless it is given.
  bool balances_keys() const { return sinkhorn && training; }
  bool grouped() const { return groups > 0 && group_topk > 0; }
  // The score whose value (plus bias) is compared; softmax after the choice compares logits.
  bool chooses_by_logit() const { return score == Score::Softmax && !pre_softmax && !sinkhorn; }
  Score point() const { return sinkhorn ? Score::Sigmoid : score; }
  bool divides() const { return renormalize && (top_k > 1 || renormalize_single); }
  Weighting weighting() const {
    if (sinkhorn) return top_k == 1 ? Weighting::Point : Weighting::FullSoftmax;
    if (score != Score::Softmax) return Weighting::Point;
    // Renormalised, a softmax over all experts is the softmax over the chosen ones.
    return pre_softmax && !divides() ? Weighting::FullSoftmax : Weighting::ChosenSoftmax;
  }
};

}  // namespace pleat::kernels
