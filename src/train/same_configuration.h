// Ranks that are processes read their configurations by themselves; a run needs one.
#pragma once

#include "comm/communicator.h"
#include "config/config.h"

namespace pleat::train {

// All ranks call it, before anything is built. Where one differs from the first, all throw, naming rank, key and both
// values. device.threads may differ: machines have other numbers of processors.
void require_same_configuration(comm::Endpoint& endpoint, const config::Config& config);

}  // namespace pleat::train
