// Measures what stages take on this machine: the steps of a configuration, of others near it, exchanges between ranks
// and how cores hinder each other. What `pleat bench costs` writes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "config/config.h"
#include "cost/cost_file.h"

namespace pleat::bench {

struct CostBenchOptions {
  std::string name;  // of the configuration, as the file keeps it
  int64_t ranks = 1;
  int64_t steps = 9;       // timed ones of the configuration itself; its neighbours get a third
  bool neighbours = true;  // bench/cost_variants.h
  // On the CPU alone.
  bool crowd = true, links = true;
  std::function<void(const std::string& line)> note;  // how far it is, and what was left out
};

// Every stage of the configuration that has a key (cost::has_cost_key) has an entry. Pipeline stages run one after the
// other; one whose keys are all measured by then is left out. `config` must be resolved; throws where it does not fit
// the ranks, and for several ranks on a GPU.
cost::CostFile measure_costs(const config::Config& config, const CostBenchOptions& options);

// Where the time of a step goes, by kernel and phase, all stages of the pipeline together; longest first. Every stage
// must be in the file, as those of the configuration it was measured for are.
struct KindTime {
  std::string name;  // "linear wgrad"
  int64_t stages = 0;
  double ns = 0;
};
std::vector<KindTime> kind_times(const config::Config& config, int64_t ranks, const cost::CostFile& file);

// The machine this runs on, as costs of this configuration are measured.
cost::CostMachine cost_machine(const config::Config& config);

}  // namespace pleat::bench
