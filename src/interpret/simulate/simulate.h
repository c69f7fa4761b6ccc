// When every stage of a network would run on a described machine.
//
// Events: a stage starts when all it waits for has ended, a message when both ends are there, a collective
// when all members are. Alone: lanes on a node's compute resource share it in issue order, other lanes are links of
// their own, and a stage takes what it takes. Shared: stages that run at the same time slow each other
// (simulate/shared_time.h). Times are whole nanoseconds, so that results are exact and the same on roles and on ranks.
#pragma once

#include <vector>

#include "interpret/network/network.h"
#include "interpret/network/walk.h"
#include "interpret/simulate/shared_time.h"
#include "interpret/trace/timeline.h"

namespace pleat::interpret {

struct NodeTimes {
  Timeline timeline;
  int64_t busy_ns = 0;      // the compute lanes hold a stage, exchanges among them and the update included
  int64_t exchange_ns = 0;  // messages and collectives on any lane, waiting not counted
};

struct Simulation {
  std::vector<NodeTimes> nodes;
  int64_t step_ns = 0;
  // Time a node's compute lanes are empty over the time they hold stages: (p - 1) / m for 1F1B on equal stages
  // with free messages and update.
  double bubble(size_t node) const;
  double bubble() const;  // over all nodes
};

// Throws when the network has faults or can hang.
Simulation simulate(const Network& network, const Duration& duration);
Simulation simulate_shared(const Network& network, const StageTimes& times,
                           const SharedMachine& machine = {});

}  // namespace pleat::interpret
