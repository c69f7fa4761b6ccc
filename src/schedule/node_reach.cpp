#include "schedule/node_reach.h"

#include "layout/nodes.h"
#include "schedule/ranks.h"

namespace pleat::schedule {

cost::Machine with_nodes(cost::Machine machine, const config::Config& config, const layout::Layout& layout) {
  const int64_t per_node = config.parallel.ranks_per_node;
  if (per_node == 0) return machine;
  cost::NodeReach reach;
  reach.near.fill(true);
  for (int g = 0; g < program::kNumGroups; ++g)
    for (int64_t rank = 0; rank < layout.world() && reach.near[static_cast<size_t>(g)]; ++rank)
      reach.near[static_cast<size_t>(g)] = !layout::crosses_nodes(
          group_members(layout, static_cast<int>(rank), static_cast<program::Group>(g)), per_node);
  for (int64_t stage = 0; stage < layout.sizes().pp; ++stage)
    reach.near_cuts.push_back(!layout::cut_crosses_nodes(layout, stage, per_node));
  machine.nodes = std::move(reach);
  return machine;
}

}  // namespace pleat::schedule
