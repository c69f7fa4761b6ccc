// Everything that can be planned and simulated, and that `train` refuses on the device it is for.
#pragma once

#include "config/config.h"

namespace pleat::runtime {

// Throws where no kernel of the device computes a training step of this configuration. The configuration need not be valid
// otherwise.
void require_trainable(const config::Config& config);

}  // namespace pleat::runtime
