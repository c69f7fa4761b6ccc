// Filling in what a Config leaves to be derived, with the reason for each value.
#pragma once

#include <map>
#include <string>

#include "config/config.h"

namespace pleat::config {

// Cores this process may run on.
int64_t usable_cores();

// Workers of one of `ranks_here` ranks that share a machine: equal parts of device.threads, at least one each. The
// configuration must be resolved.
int64_t threads_of_rank(const Config& config, int64_t ranks_here);

// As `resolve`; `why` gets a sentence for every key that was filled in.
Config resolve_with_reasons(const Config& config, std::map<std::string, std::string>& why);

}  // namespace pleat::config
