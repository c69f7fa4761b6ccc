// Ranks on machines: `parallel.ranks_per_node` neighbours in rank order share one, the last may have fewer. Pure facts
// of numbers; nobody is asked.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "layout/layout.h"

namespace pleat::layout {

// Whether the ranks lie on more than one machine. `ranks_per_node` is at least 1.
bool crosses_nodes(std::span<const int> ranks, int64_t ranks_per_node);
int64_t num_nodes(int64_t num_ranks, int64_t ranks_per_node);
// Of the groups of a kind, those on more than one machine.
int64_t num_crossing(const Layout& layout, GroupKind kind, int64_t ranks_per_node);
// Whether a message over one cut of the model leaves a machine: from ranks of pipeline stage `from` to their next.
bool cut_crosses_nodes(const Layout& layout, int64_t from, int64_t ranks_per_node);

// One rank as whoever started it says: its place among the ranks of its machine, and how many these are.
struct StartedRank {
  int64_t rank = 0, num_ranks = 1, local_rank = 0, num_here = 1;
};
// How that differs from what was declared (0: nothing was): empty, or words for people.
std::string node_fault(int64_t ranks_per_node, const StartedRank& started);

}  // namespace pleat::layout
