// A training step of a layout on a described machine, before there is one: its programs, their plans, their times, and
// the figures people compare. `simulate`, the ledger and whoever searches ask here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cost/load.h"
#include "cost/machine.h"
#include "cost/price.h"
#include "interpret/plan/plan.h"
#include "interpret/simulate/simulate.h"
#include "schedule/ranks.h"

namespace pleat::schedule {

// What a step is simulated on.
struct Ground {
  cost::Machine machine;
  cost::Curves curves;
  std::optional<cost::CostFile> costs = {};
  bool contention = true;          // stages that run at once slow each other
  bool costs_are_carried = false;  // they were measured on another GPU, and are what this one would take
  bool links_measured = false;     // the machine's links are those of the costs
};
// The machine as it is; with a costs file of a CPU, its cores, links and crowding are those of the file; times of another
// GPU are carried over by formula (cost/measured_on.h). Without curves those that fit the costs best, and without costs
// those of the binary.
Ground make_ground(cost::Machine machine, std::optional<cost::CostFile> costs = {},
                   std::optional<cost::Curves> curves = {});

class SimulatedStep {
 public:
  // `ranks` and `ground` outlive this. `config` must be resolved. `roles`: the network of these roles, where it is known.
  // Stages that are repeated are simulated as written out; whoever reads spans against `ranks` hands that in.
  SimulatedStep(const config::Config& config, const RankPrograms& ranks, const Ground& ground,
                cost::RankLoad load = {}, const interpret::Network* roles = nullptr);
  SimulatedStep(const SimulatedStep&) = delete;
  SimulatedStep& operator=(const SimulatedStep&) = delete;

  // On roles; where ranks share the cores of a CPU, on all ranks.
  const interpret::Network& network() const { return network_; }
  const cost::Pricer& pricer() const { return pricer_; }
  interpret::Simulation run() const;
  // The same with every stage alone on its resources.
  interpret::Simulation run_alone() const;
  // The first node that runs the program of a pipeline stage.
  size_t node_of(size_t pipeline_rank) const { return node_of_[pipeline_rank]; }

 private:
  const Ground& ground_;
  const std::optional<RankPrograms> written_out_;  // where stages are repeated
  cost::CostTable table_;
  cost::Pricer pricer_;
  interpret::Network network_;
  interpret::SharedMachine shared_;
  std::vector<size_t> node_of_;
};

// As papers count them.
struct StepFigures {
  double step_ms = 0;
  double tokens = 0;  // of a step, all ranks
  double tokens_per_s_per_rank = 0, model_tflops_per_rank = 0;
  double mfu = 0;  // model FLOP/s over the peak of the model's type; of a CPU the cores it has
};
StepFigures step_figures(const config::Config& config, int64_t num_ranks, const cost::Machine& machine,
                         int64_t step_ns);

}  // namespace pleat::schedule
