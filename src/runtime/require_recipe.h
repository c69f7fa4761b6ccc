// What of precision.recipe can be run, and where; all of it can be planned and simulated.
#pragma once

#include "config/config.h"

namespace pleat::runtime {

// Throws where training steps of this configuration have products that no kernel computes.
void require_recipe(const config::Config& config);

}  // namespace pleat::runtime
