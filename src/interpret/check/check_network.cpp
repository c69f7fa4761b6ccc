#include "interpret/check/check_network.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "interpret/network/walk.h"

namespace pleat::interpret {
namespace {

std::string ring_text(const Network& network, const std::vector<At>& cycle) {
  if (cycle.empty()) return "";
  constexpr size_t kShown = 6;
  std::string out = "these wait for each other: ";
  for (size_t i = 0; i < cycle.size(); ++i) {
    // The interesting places are those where the ring leaves a node.
    if (i == kShown) {
      out += fmt::format(" ... {} more", cycle.size() - i);
      break;
    }
    out += (i ? " <- " : "") + describe(network, cycle[i]);
  }
  return out;
}

// Of a ring, the stages where it goes from one node to another, or all when it stays on one.
std::vector<At> crossings(const std::vector<At>& cycle) {
  std::vector<At> out;
  for (size_t i = 0; i < cycle.size(); ++i)
    if (cycle[i].node != cycle[(i + 1) % cycle.size()].node ||
        cycle[i].node != cycle[(i + cycle.size() - 1) % cycle.size()].node)
      out.push_back(cycle[i]);
  return out.empty() ? cycle : out;
}

// Messages go from one node to another in the order of the sender's list; the receiver's must be the same.
std::string first_overtaking(const Network& network, const Meetings& meetings) {
  const auto stage_at = [&](At at) -> const program::Stage& {
    return network.nodes[static_cast<size_t>(at.node)].program->stages[static_cast<size_t>(at.stage)];
  };
  std::map<std::pair<int, int>, std::vector<std::pair<At, At>>> between;
  for (const auto& ends : meetings.meetings) {
    if (ends.size() != 2 || class_of(stage_at(ends[0]).op) != program::OpClass::Transfer) continue;
    const bool first_sends = kernel_of(stage_at(ends[0]).op) == program::KernelKind::send;
    const At from = ends[first_sends ? 0 : 1], to = ends[first_sends ? 1 : 0];
    between[{from.node, to.node}].emplace_back(from, to);
  }
  for (auto& [nodes, messages] : between) {
    std::sort(messages.begin(), messages.end(),
              [](const auto& a, const auto& b) { return a.first.stage < b.first.stage; });
    for (size_t i = 1; i < messages.size(); ++i)
      if (messages[i].second.stage < messages[i - 1].second.stage)
        return fmt::format("{} is sent after {} and received before it", describe(network, messages[i].first),
                           describe(network, messages[i - 1].first));
  }
  return "";
}

}  // namespace

NetworkReport check_network(const Network& network) {
  NetworkReport report;
  Meetings meetings = match(network);
  report.faults = std::move(meetings.faults);
  for (const auto& ends : meetings.meetings) {
    const At at = ends.front();
    const auto& stage =
        network.nodes[static_cast<size_t>(at.node)].program->stages[static_cast<size_t>(at.stage)];
    ++(class_of(stage.op) == program::OpClass::Transfer ? report.num_messages : report.num_collectives);
  }
  report.overtaking = first_overtaking(network, meetings);
  const Walk free = walk(network, meetings, LaneUse::AsDeclared);
  if (!free.cycle.empty()) {
    report.faults.push_back("hang: " + ring_text(network, crossings(free.cycle)));
    return report;
  }
  report.single_lane_hang =
      ring_text(network, crossings(walk(network, meetings, LaneUse::OneForCommunication).cycle));
  return report;
}

}  // namespace pleat::interpret
