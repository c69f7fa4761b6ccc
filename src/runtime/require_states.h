// What of the optimizer's states can be run, and where; all of it can be planned and simulated.
#pragma once

#include "config/config.h"

namespace pleat::runtime {

// Throws where training steps of this configuration keep states in a way that no kernel of the device knows.
void require_states(const config::Config& config);

}  // namespace pleat::runtime
