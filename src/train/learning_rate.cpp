#include "train/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace pleat::train {

double learning_rate(const config::Config& config, int64_t step) {
  const auto& o = config.optimizer;
  if (step <= o.warmup_steps) return o.lr * double(step) / double(o.warmup_steps);
  if (o.schedule == "constant") return o.lr;
  const int64_t begin = o.schedule == "wsd" ? config.train.steps - o.decay_steps : o.warmup_steps;
  const int64_t end = o.schedule == "wsd" ? config.train.steps : o.decay_steps;
  if (step <= begin) return o.lr;
  const double done = end > begin ? std::min(1.0, double(step - begin) / double(end - begin)) : 1.0;
  const double left = o.schedule == "cosine" ? 0.5 * (1.0 + std::cos(std::numbers::pi * done)) : 1.0 - done;
  return o.min_lr + (o.lr - o.min_lr) * left;
}

}  // namespace pleat::train
