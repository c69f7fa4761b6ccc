#include "interpret/simulate/simulate.h"

#include "interpret/simulate/exchanges.h"

#include <algorithm>

#include "base/error.h"
#include "interpret/simulate/intervals.h"

namespace pleat::interpret {

using namespace program;

double Simulation::bubble(size_t node) const {
  return static_cast<double>(step_ns - nodes[node].busy_ns) / static_cast<double>(nodes[node].busy_ns);
}

double Simulation::bubble() const {
  int64_t busy = 0;
  for (const NodeTimes& node : nodes) busy += node.busy_ns;
  return static_cast<double>(step_ns * static_cast<int64_t>(nodes.size()) - busy) / static_cast<double>(busy);
}

namespace {

Simulation simulation_of(const Network& network, const Walk& times) {
  Simulation out;
  for (size_t n = 0; n < network.nodes.size(); ++n) {
    const Program& program = *network.nodes[n].program;
    NodeTimes& node = out.nodes.emplace_back();
    node.timeline.spans.reserve(program.stages.size());
    // A lane's stages follow each other, so what it holds in one piece is one interval at once.
    std::vector<Intervals> held(program.lanes.size());
    for (size_t s = 0; s < program.stages.size(); ++s) {
      const Stage& stage = program.stages[s];
      const int64_t start = times.start_ns[network.first[n] + s], end = times.end_ns[network.first[n] + s];
      node.timeline.spans.push_back({static_cast<StageId>(s), start, end});
      out.step_ns = std::max(out.step_ns, end);
      if (goes_to_others(stage.op)) node.exchange_ns += end - start;
      if (program.lanes[static_cast<size_t>(stage.lane)].resource != "compute") continue;
      Intervals& lane = held[static_cast<size_t>(stage.lane)];
      if (!lane.empty() && lane.back().end == start)
        lane.back().end = end;
      else
        lane.push_back({start, end});
    }
    Intervals all;
    for (const Intervals& lane : held) all.insert(all.end(), lane.begin(), lane.end());
    node.busy_ns = length(united(std::move(all)));
  }
  return out;
}

Meetings require_meetings(const Network& network) {
  Meetings meetings = match(network);
  if (!meetings.faults.empty())
    base::fail_with(base::ExitCode::Internal, "the programs do not fit together: {}",
                    meetings.faults.front());
  return meetings;
}

}  // namespace

Simulation simulate(const Network& network, const Duration& duration) {
  const Walk times = walk(network, require_meetings(network), LaneUse::OneForCompute, duration);
  if (!times.cycle.empty())
    base::fail_with(base::ExitCode::Internal, "the programs would hang at {}",
                    describe(network, times.cycle.front()));
  return simulation_of(network, times);
}

Simulation simulate_shared(const Network& network, const StageTimes& times, const SharedMachine& machine) {
  return simulation_of(network, walk_shared(network, require_meetings(network), times, machine));
}

}  // namespace pleat::interpret
