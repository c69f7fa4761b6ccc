// How long ranks take to exchange bytes, from the links the exchange really crosses. Formulas and what holds them:
// docs/simulation.md, section "Exchanges".
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "cost/machine.h"
#include "model/mesh.h"
#include "program/program.h"

namespace pleat::cost {

// How the ranks of a group lie on nodes, of the group of its kind that lies worst.
struct GroupReach {
  int64_t ranks = 1;
  int64_t nodes = 1;
  int64_t here = 1;  // of its ranks, on the node that has fewest of them
};

// Of all groups of a layout, and of the cuts of its pipeline (schedule/node_reach.h).
struct Reach {
  std::array<GroupReach, program::kNumGroups> groups{};  // indexed by program::Group
  std::vector<char> far_cuts;  // whether messages from pipeline stage i to the next leave a node
};

// An exchange alone on its links: latency, then bytes over the node's links and over the network side by side.
struct ExchangeTime {
  double latency_ns = 0, link_ns = 0, network_ns = 0;
  double flow_ns() const { return link_ns > network_ns ? link_ns : network_ns; }
  double total_ns() const { return latency_ns + flow_ns(); }
};

// `bytes`: all parts of the group together, as one rank has them before a reduce-scatter and behind an all-gather.
ExchangeTime ring_time(const Machine& machine, const GroupReach& reach, double bytes);
// The better of twice a ring and a tree over nodes with rings inside them.
ExchangeTime all_reduce_time(const Machine& machine, const GroupReach& reach, double bytes);
// `bytes`: the parts for all ranks, its own included, equally large.
ExchangeTime all_to_all_time(const Machine& machine, const GroupReach& reach, double bytes);
ExchangeTime message_time(const Machine& machine, bool far, double bytes);
// Nothing but that all have come.
ExchangeTime meeting_time(const Machine& machine, const GroupReach& reach);

// Bytes a rank sends to others in this stage; 0 where it is none of theirs to give. Routed values count with
// the rows of balanced routing. A collective of n ranks moves (n - 1) / n of its largest value, an
// all-reduce twice that, a shift round the ring all of it; of one that is not listed nothing is assumed.
double sent_bytes(const model::Mesh& mesh, const program::Program& program, const program::Stage& stage);

// Of a stage that exchanges, messages and stores included. `rows`: routed rows over balanced ones.
// Throws for a store into windows of ranks on other nodes.
ExchangeTime exchange_time(const Machine& machine, const Reach& reach, const model::Mesh& mesh,
                           const program::Program& program, const program::Stage& stage, double rows = 1);

}  // namespace pleat::cost
