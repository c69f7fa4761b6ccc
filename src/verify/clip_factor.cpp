#include "verify/clip_factor.h"

#include "verify/compare.h"

namespace pleat::verify {

double clip_factor(const config::Config& config, const LayoutRun& run, size_t step, const std::string& name) {
  const auto& o = config.optimizer;
  if (o.clip_by == "global" || o.clip == 0) return run.steps[step].clip;
  double norm = 0;
  if (o.clip_by == "tensor") {
    norm = length_of(run.steps[step].gradients.at(name));
  } else {
    while (step > 0 && !run.steps[step - 1].committed) --step;
    if (step > 0) norm = run.steps[step - 1].norm;
  }
  return norm > o.clip ? o.clip / norm : 1;
}

}  // namespace pleat::verify
