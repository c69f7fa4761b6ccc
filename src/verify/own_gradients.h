// What a step makes of its gradients, once more in double: norm, clip factor, moments, weights. A run's own
// gradients go in, so roundings of the products do not come into it, and the bound is a few last places whatever
// the gradients are.
#pragma once

#include "verify/layout_run.h"

namespace pleat::verify {

struct OwnResult {
  double difference = 0, bound = 0;  // largest, relative to: the norm; the factor; the moment; the way moved
  std::string worst;
};
struct OwnResults {
  OwnResult norm, clip, moment1, moment2, weights;
};

// `run` with weights_each_step. `config` as it ran.
OwnResults from_own_gradients(const config::Config& config, const LayoutRun& run);

}  // namespace pleat::verify
