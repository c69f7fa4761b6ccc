// What a router_aux stage is set to do, read once per call, on every device.
#pragma once

#include "kernels/invocation.h"
#include "kernels/router/score.h"

namespace pleat::kernels::aux {

enum Loss { kMicro = 0, kSequence = 1, kGlobal = 2, kZ = 3, kNumLosses = 4 };

struct Settings {
  int experts, top_k;
  int64_t num_layers;
  Score score;
  bool hf;
  double coef[kNumLosses];

  explicit Settings(const Invocation& call)
      : experts(static_cast<int>(call.integer("experts"))),
        top_k(static_cast<int>(call.integer("top_k"))),
        num_layers(call.integer("num_layers")),
        score(static_cast<Score>(call.integer("score"))),
        hf(call.integer("hf") != 0),
        coef{call.attr("micro_coef"), call.attr("seq_coef"), call.attr("global_coef"), call.attr("z_coef")} {}

  constexpr bool balances() const { return coef[kMicro] != 0 || coef[kSequence] != 0 || coef[kGlobal] != 0; }
  bool needs_given_counts() const { return (hf && coef[kMicro] != 0) || coef[kGlobal] != 0; }
  bool needs_own_counts() const { return (!hf && coef[kMicro] != 0) || coef[kSequence] != 0; }
};

}  // namespace pleat::kernels::aux
