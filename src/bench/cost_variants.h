// Configurations near one: each differs in one size, halved or doubled, so that what is measured says how a stage's time
// grows. They are short: the few layers that still have every kind of layer, two microbatches for each data replica,
// one pipeline stage.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/config.h"

namespace pleat::bench {

struct CostVariant {
  std::string name;       // "model.hidden_size 64 -> 128"
  config::Config config;  // resolved
  int64_t ranks = 1;
};

struct CostVariants {
  std::vector<CostVariant> fitting;
  std::vector<std::string> skipped;  // name and why: the rules of a configuration or a layout refuse it
};
// `config` must be resolved and fit `ranks`.
CostVariants cost_variants(const config::Config& config, int64_t ranks);

// The short form itself, for one rank with one thread. Throws where the rules refuse it.
config::Config short_single(const config::Config& config);

}  // namespace pleat::bench
