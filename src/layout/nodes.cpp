#include "layout/nodes.h"

#include <fmt/format.h>

#include <algorithm>

namespace pleat::layout {

bool crosses_nodes(std::span<const int> ranks, int64_t ranks_per_node) {
  return std::any_of(ranks.begin(), ranks.end(),
                     [&](int rank) { return rank / ranks_per_node != ranks.front() / ranks_per_node; });
}

int64_t num_nodes(int64_t num_ranks, int64_t ranks_per_node) {
  return (num_ranks + ranks_per_node - 1) / ranks_per_node;
}

int64_t num_crossing(const Layout& layout, GroupKind kind, int64_t ranks_per_node) {
  const auto groups = layout.groups(kind);
  return std::count_if(groups.begin(), groups.end(),
                       [&](const auto& group) { return crosses_nodes(group, ranks_per_node); });
}

bool cut_crosses_nodes(const Layout& layout, int64_t from, int64_t ranks_per_node) {
  for (int64_t rank = 0; rank < layout.world(); ++rank)
    if (layout.attention(rank).pp == from &&
        layout.next_stage(rank) / ranks_per_node != rank / ranks_per_node)
      return true;
  return false;
}

std::string node_fault(int64_t ranks_per_node, const StartedRank& started) {
  if (ranks_per_node == 0) return "";
  const int64_t place = started.rank % ranks_per_node;
  const int64_t declared = std::min(ranks_per_node, started.num_ranks - (started.rank - place));
  if (started.num_here != declared)
    return fmt::format(
        "parallel.ranks_per_node = {} puts {} of {} ranks on the machine of rank {}, but {} run there; start "
        "them so, or change the key",
        ranks_per_node, declared, started.num_ranks, started.rank, started.num_here);
  if (started.local_rank != place)
    return fmt::format(
        "parallel.ranks_per_node = {} makes rank {} number {} on its machine, but it was started as number "
        "{}: "
        "ranks of a machine must be neighbours; start them so, or remove the key",
        ranks_per_node, started.rank, place, started.local_rank);
  return "";
}

}  // namespace pleat::layout
