// What regrouped sums may change between two runs of one model: docs/numerics.md section 9, as numbers.
#pragma once

#include "verify/layout_run.h"

namespace pleat::verify {

// How a run rounds.
struct Rounding {
  double unit = 0x1p-24;  // unit roundoff of what is stored between stages, and of weights
  double terms = 0;       // roundings a result of a product has behind it, beyond those between products
  double update =
      0x1p-24;  // unit roundoff of AdamW's arithmetic; narrower states round beside (model/state.h)
};
// All in float32: every addition of the longest sum rounds.
Rounding float32_rounding(const config::Config& config);
// Numbers are stored in bfloat16 and added in float32: a result is rounded where it is stored, and where it is added to.
Rounding bfloat16_rounding();

// How much of a relative change of every weight arrives in the gradient of each parameter, and in each value the runs
// tap, per step's batch.
using Conditioning = std::vector<std::map<std::string, double>>;
// `run` runs some steps of a float64 model on one rank with the options it is given. Throws when the change
// routes a token differently.
Conditioning conditioning(const config::Config& float64,
                          const std::function<LayoutRun(const config::Config&, const RunOptions&)>& run);

// What arrives in a gradient of the roundings of one product, given its conditioning: those of three products as changes
// of weights, and those of the sum it is itself.
double carried(double conditioning);

struct BoundReport {
  std::string fault;                                             // "" or the first bound that is exceeded
  double gradient = 0, weight = 0;                               // largest norm-wise difference
  double gradient_share = 0, later_share = 0, weight_share = 0;  // of what is allowed
  double least_conditioning = 1e300, most_conditioning = 0;

  void add(const BoundReport& other);  // the worse of both; the first fault stays
};
// `run` against `reference`, both with weights_each_step.
BoundReport inside_bound(const config::Config& config, const Rounding& rounding, const Conditioning& kappa,
                         const LayoutRun& reference, const LayoutRun& run);

}  // namespace pleat::verify
