// Keys whose effect depends on how many ranks a run has: judged where that number is known, by those who run
// or plan, with one rule and the same words. A configuration by itself may be meant for any number.
#pragma once

#include <cstdint>

#include "config/config.h"

namespace pleat::config {

// Throws where a key differs from its default and would do nothing on this many ranks.
void require_rank_effects(const Config& config, int64_t num_ranks);

}  // namespace pleat::config
