// Several programs that talk to each other, and which of their stages meet.
//
// A node is a role (all ranks of a pipeline stage, which share one program and are in step) or one rank. On
// roles a group inside a stage is the node itself, and only groups that cross stages (pipeline, world, ends)
// have several members; on ranks every group has its members. Everything that is said about a network must be
// the same on both.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "program/order.h"
#include "program/program.h"

namespace pleat::interpret {

struct Node {
  const program::Program* program = nullptr;
  std::shared_ptr<const program::EdgeList> edges;  // of the program; nodes with one program share them
  std::string name;                                // "stage 2", "rank 13"
  std::array<std::vector<int>, program::kNumGroups> members;  // nodes of each group in order, itself included
};

struct Network {
  std::vector<Node> nodes;
  std::vector<size_t> first;  // position of each node's first stage when all are put in one list, and the end
  size_t num_stages() const { return first.back(); }
  // Neighbour along the pipeline; the last one's next is the first.
  int neighbour(int node, program::Peer peer) const;
};

// One node per program, in pipeline order.
Network network_of_roles(std::span<const program::Program> roles);
// One node per rank. `members` gives the world ranks of a group of a rank, `stage_of` its pipeline rank.
using GroupMembers = std::function<std::vector<int>(int rank, program::Group group)>;
Network network_of_ranks(std::span<const program::Program> roles, int num_ranks, const GroupMembers& members,
                         const std::function<int(int rank)>& stage_of);

// Where a stage is: node and position in its program.
struct At {
  int node = 0;
  program::StageId stage = 0;
};
std::string describe(const Network& network, At at);  // "stage 2: fwd mb0 send_x"

// Stages that happen at once because they are one message or one collective.
struct Meetings {
  std::vector<std::vector<At>> meetings;
  std::vector<int> of;              // per stage of the network: its meeting, -1: it meets nobody
  std::vector<std::string> faults;  // what finds no partner, or another one than it expects
};
// A message is told by its ends, direction, microbatch, cut of the model (part) and phase; both ends agree
// about its type and bytes. The k-th collective of a group on a lane is the same on all members: operation,
// phase, type and bytes.
Meetings match(const Network& network);

}  // namespace pleat::interpret
