// The learning rate as a pure function of the step: nothing to save, nothing to forget on resume.
#pragma once

#include "config/config.h"

namespace pleat::train {

// `step` counts from 1; `config` must be resolved (decay_steps filled). Linear warm-up from 0 to lr over
// warmup_steps, then
//   constant  lr
//   linear    lr to min_lr from the end of the warm-up to step decay_steps, min_lr afterwards
//   cosine    half a cosine over the same stretch
//   wsd       lr until the last decay_steps of the run, then linear to min_lr
double learning_rate(const config::Config& config, int64_t step);

}  // namespace pleat::train
