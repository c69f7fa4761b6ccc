// When every stage of a network would run on machines whose resources stages share: stages that flow at the same time
// each get a fair part of what they have in common, and go on faster when others end.
//
// Fair: of a resource, each takes at most an equal part, and what somebody leaves goes to the others; a stage goes at the
// speed of the resource it gets least of. Lanes of a node wait for each other by data only; what they compete for is
// in StageTime. With nothing in common to share, times are those of `simulate` with lanes of their own.
#pragma once

#include <functional>
#include <vector>

#include "interpret/network/network.h"
#include "interpret/network/walk.h"
#include "program/stage_time.h"

namespace pleat::interpret {

using StageTimes =
    std::function<program::StageTime(const program::Program& program, const program::Stage& stage)>;

// What of a machine several nodes have in common.
struct SharedMachine {
  // Of each node, whose processor it computes with; empty: each has its own.
  std::vector<int> processor_of = {};
  double processors = 1;  // that one of them is: cores of a CPU
  // Element k - 1: how many times as long work that crowds takes with k of these at work; beyond the end, the last. Empty: 1.
  std::vector<double> crowd = {};
  int64_t start_ns = 0;  // of a step: its graph is launched
};

// Throws where nothing more can start before all have ended: the network must have passed its check.
Walk walk_shared(const Network& network, const Meetings& meetings, const StageTimes& times,
                 const SharedMachine& machine = {});

}  // namespace pleat::interpret
