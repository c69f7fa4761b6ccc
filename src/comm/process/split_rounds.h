// Which groups a world of processes opens together, in which order, so that all of them can be split from one
// communicator.
//
// A split is a call of every rank of the world: who is in none of its groups stands aside. But ranks do not know of
// groups they are not in (a stage of a pipeline has lanes that others lack), so each tells what it asks for, and from
// what all have told every rank works out the same rounds. A round is one split: groups that share no rank.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace pleat::comm {

// What one rank says of a group it asks for. Members follow from who asks, so that a world of many ranks does not send
// each other long lists.
struct AskedGroup {
  std::string name;
  uint64_t hash = 0;  // group_hash of name and members
  int size = 0;
  int place = 0;  // of this rank in the group
  bool operator==(const AskedGroup&) const = default;
};

struct SplitGroup {
  std::string name;
  std::vector<int> ranks;  // of the world, in group order
};
using SplitRound = std::vector<SplitGroup>;

// by_rank[r]: what world rank r asks for, each group once. Throws, with the same words on every rank, when a member of
// a group does not ask for it.
std::vector<SplitRound> split_rounds(std::span<const std::vector<AskedGroup>> by_rank);

// Called by all ranks of `world`, a group in host memory of all ranks in order: what each asks for.
std::vector<std::vector<AskedGroup>> exchange_asked(Communicator& world, std::span<const AskedGroup> mine);

}  // namespace pleat::comm
