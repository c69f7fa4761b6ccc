// A verdict on memory as `plan --machine --json` and `simulate --json` have it.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "train/memory_fit.h"

namespace pleat::apps {

// Adds fits, memory, memory_limit_bytes, and host: of the node whose ranks take most of their host's memory.
void add_fit(nlohmann::json& out, const train::MemoryFit& fit);

}  // namespace pleat::apps
