#include "interpret/network/network.h"

#include <fmt/format.h>

#include <algorithm>

namespace pleat::interpret {

using program::Group;

namespace {

void count_stages(Network& network) {
  network.first.assign(1, 0);
  for (const Node& node : network.nodes)
    network.first.push_back(network.first.back() + node.program->stages.size());
}

}  // namespace

int Network::neighbour(int node, program::Peer peer) const {
  const auto& line = nodes[static_cast<size_t>(node)].members[static_cast<size_t>(Group::Pipeline)];
  const size_t n = line.size();
  const size_t at = static_cast<size_t>(std::find(line.begin(), line.end(), node) - line.begin());
  return line[(at + (peer == program::Peer::Next ? 1 : n - 1)) % n];
}

Network network_of_roles(std::span<const program::Program> roles) {
  Network out;
  std::vector<int> all(roles.size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int>(i);
  for (size_t i = 0; i < roles.size(); ++i) {
    Node node;
    node.program = &roles[i];
    node.edges = std::make_shared<program::EdgeList>(program::edge_list(roles[i]));
    node.name = fmt::format("stage {}", i);
    for (auto& group : node.members) group = {static_cast<int>(i)};
    node.members[static_cast<size_t>(Group::Pipeline)] = all;
    node.members[static_cast<size_t>(Group::World)] = all;
    if (all.size() > 1) node.members[static_cast<size_t>(Group::Ends)] = {all.front(), all.back()};
    out.nodes.push_back(std::move(node));
  }
  count_stages(out);
  return out;
}

Network network_of_ranks(std::span<const program::Program> roles, int num_ranks, const GroupMembers& members,
                         const std::function<int(int rank)>& stage_of) {
  Network out;
  std::vector<std::shared_ptr<const program::EdgeList>> edges;
  for (const program::Program& role : roles)
    edges.push_back(std::make_shared<program::EdgeList>(program::edge_list(role)));
  for (int rank = 0; rank < num_ranks; ++rank) {
    Node node;
    node.program = &roles[static_cast<size_t>(stage_of(rank))];
    node.edges = edges[static_cast<size_t>(stage_of(rank))];
    node.name = fmt::format("rank {}", rank);
    for (int g = 0; g < program::kNumGroups; ++g)
      node.members[static_cast<size_t>(g)] = members(rank, static_cast<Group>(g));
    out.nodes.push_back(std::move(node));
  }
  count_stages(out);
  return out;
}

std::string describe(const Network& network, At at) {
  const Node& node = network.nodes[static_cast<size_t>(at.node)];
  return fmt::format("{}: {}", node.name, stage_name(node.program->stages[static_cast<size_t>(at.stage)]));
}

}  // namespace pleat::interpret
