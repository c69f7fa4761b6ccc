// Ranks that are processes read their configurations by themselves; a run needs one.
#pragma once

#include <string>

#include "comm/communicator.h"
#include "config/config.h"

namespace pleat::train {

// All ranks call it, before anything is built. Where one differs from the first, all throw, naming rank, key and both
// values. device.threads may differ: machines have other numbers of processors. `beside`: what else decides which calls
// a rank makes, a line each.
//
// Made of messages alone: of collectives some ranks might have to compare each call first (comm.check), and others not.
void require_same_configuration(comm::Endpoint& endpoint, const config::Config& config,
                                const std::string& beside = "");

}  // namespace pleat::train
