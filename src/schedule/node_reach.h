// How the groups of a layout and the cuts of its pipeline lie on nodes: neighbours in rank order share one.
#pragma once

#include "config/config.h"
#include "cost/exchange_time.h"
#include "layout/layout.h"

namespace pleat::schedule {

// Of each kind of group, the one that lies worst: on most nodes, then with fewest ranks on one of them.
cost::Reach reach_of(const layout::Layout& layout, int64_t ranks_per_node);

// Ranks of a node: as parallel.ranks_per_node declares, else as many as the machine's has. Throws where the key declares
// more than that.
int64_t ranks_per_node(const config::Config& config, const cost::Machine& machine);

// The configuration as a run on that machine finds it: GPUs know who shares their node, so where parallel.ranks_per_node
// declares nothing it is what the machine's nodes have. What programs are built from before there is a run.
config::Config placed_on(config::Config config, const cost::Machine& machine, int64_t num_ranks);

}  // namespace pleat::schedule
