// Whether the programs of several nodes can run together: every message and collective finds its partners,
// and no ring of waits can hang them. Nothing is run.
#pragma once

#include <string>
#include <vector>

#include "interpret/network/network.h"

namespace pleat::interpret {

struct NetworkReport {
  std::vector<std::string> faults;  // name the stages and nodes
  // The hang there would be if each node had one lane for all its communication, in issue order, with
  // messages side by side as one call (a single NCCL stream with grouped sends and receives); empty: none.
  // Not a fault by itself, but one for ranks whose calls are enqueued (program/meeting.h).
  std::string single_lane_hang;
  // The first message that would be received out of turn if messages between two nodes had no names, only an order
  // (NCCL); empty: none. A fault for the same ranks.
  std::string overtaking;
  size_t num_messages = 0, num_collectives = 0;  // that cross nodes
  bool ok() const { return faults.empty(); }
  // What keeps ranks whose calls are enqueued from running this; empty: nothing.
  const std::string& enqueued_fault() const {
    return single_lane_hang.empty() ? overtaking : single_lane_hang;
  }
};

NetworkReport check_network(const Network& network);

}  // namespace pleat::interpret
