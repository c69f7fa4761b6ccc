// A described machine as several of one kind, with parallel.ranks_per_node ranks on each: which groups of a layout, and
// which cuts of its pipeline, stay inside one.
#pragma once

#include "config/config.h"
#include "cost/machine.h"
#include "layout/layout.h"

namespace pleat::schedule {

// As given where the key declares nothing.
cost::Machine with_nodes(cost::Machine machine, const config::Config& config, const layout::Layout& layout);

}  // namespace pleat::schedule
