#include "schedule/node_reach.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "layout/nodes.h"
#include "schedule/ranks.h"

namespace pleat::schedule {

cost::Reach reach_of(const layout::Layout& layout, int64_t ranks_per_node) {
  cost::Reach reach;
  for (int g = 0; g < program::kNumGroups; ++g) {
    cost::GroupReach& worst = reach.groups[static_cast<size_t>(g)];
    std::vector<char> seen(static_cast<size_t>(layout.world()), 0);
    for (int64_t rank = 0; rank < layout.world(); ++rank) {
      if (seen[static_cast<size_t>(rank)]) continue;
      const std::vector<int> members =
          group_members(layout, static_cast<int>(rank), static_cast<program::Group>(g));
      if (members.empty()) continue;  // some ranks have none of a kind
      for (const int member : members) seen[static_cast<size_t>(member)] = 1;
      std::map<int64_t, int64_t> on;
      for (const int member : members) ++on[member / ranks_per_node];
      cost::GroupReach here{static_cast<int64_t>(members.size()), static_cast<int64_t>(on.size()),
                            static_cast<int64_t>(members.size())};
      for (const auto& [node, count] : on) here.here = std::min(here.here, count);
      if (here.nodes > worst.nodes || (here.nodes == worst.nodes && here.here < worst.here) ||
          worst.ranks == 1)
        worst = here;
    }
  }
  for (int64_t stage = 0; stage < layout.sizes().pp; ++stage)
    reach.far_cuts.push_back(layout::cut_crosses_nodes(layout, stage, ranks_per_node));
  return reach;
}

int64_t ranks_per_node(const config::Config& config, const cost::Machine& machine) {
  const int64_t declared = config.parallel.ranks_per_node;
  if (declared == 0) return machine.node.ranks;
  if (declared > machine.node.ranks)
    base::fail("parallel.ranks_per_node = {}, but a node of machine '{}' has {} (node.ranks of its file)",
               declared, machine.name, machine.node.ranks);
  return declared;
}

config::Config placed_on(config::Config config, const cost::Machine& machine, int64_t num_ranks) {
  // One rank has no neighbours, and ranks of a CPU are threads of one process.
  if (machine.kind == cost::MachineKind::Gpu && num_ranks > 1)
    config.parallel.ranks_per_node = ranks_per_node(config, machine);
  return config;
}

}  // namespace pleat::schedule
