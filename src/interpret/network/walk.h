// All stages of a network in an order in which every one comes after what it waits for: data, lane, declared
// waits, and its partners in a meeting. The one walk behind "can this hang" and "when does it run".
#pragma once

#include <functional>
#include <vector>

#include "interpret/network/network.h"

namespace pleat::interpret {

enum class LaneUse : uint8_t {
  AsDeclared,  // lanes of a node wait for each other by data only
  // All messages and collectives of a node also run one after the other, as issued; messages that stand side
  // by side in the list, on different lanes and independent, are one call that begins and ends together.
  OneForCommunication,
  OneForCompute,  // lanes on the compute resource share it, as issued
};

// How long a meeting or a single stage takes; called with one of its stages. Absent: no time at all.
using Duration = std::function<int64_t(const program::Program& program, const program::Stage& stage)>;

struct Walk {
  std::vector<At> cycle;                  // stages that wait for each other in a ring; empty: none
  std::vector<int64_t> start_ns, end_ns;  // per stage of the network; only with a duration
};

// Nothing is buffered: a message starts when both ends are there, a collective when all members are. Time is
// the earliest possible under the waits. Stops at the first cycle.
Walk walk(const Network& network, const Meetings& meetings, LaneUse lanes, const Duration& duration = {});

}  // namespace pleat::interpret
