// The programs of one run over one parameter table and one arena: a training step, an evaluation, logits for
// sampling. All declare the same state first, so a weight lies at the same address in each.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/load.h"
#include "checkpoint/state.h"
#include "config/config.h"
#include "device/cpu/arena.h"
#include "device/cpu/pool.h"
#include "interpret/plan/plan.h"
#include "interpret/run/cuda_executor.h"
#include "interpret/run/executor.h"
#include "model/parameters.h"
#include "program/program.h"
#include "schedule/build.h"
#include "train/crew.h"

namespace pleat::train {

struct ProgramChoice {
  bool train = true, evaluate = true, logits = false;
  schedule::BuildOptions build;
  std::vector<std::string> disabled_passes;
};

// A program with its plan, both checked.
struct Planned {
  program::Program program;
  interpret::Plan plan;
};
Planned plan_training_step(const config::Config& config, const std::vector<model::Parameter>& table,
                           const ProgramChoice& choice = {});

class Programs {
 public:
  // `config` must be resolved. Allocates exactly the largest plan, filled with a pattern; weights are not
  // initialised. With a crew of several, the programs are this rank's part, and all ranks make theirs at the
  // same time; the crew outlives this.
  Programs(const config::Config& config, const ProgramChoice& choice = {}, Crew* crew = nullptr);

  // Weights from the seed, keyed by parameter name and element; norms one, biases and moments zero.
  void initialize();

  // Weights this rank does not own are those of before the last training step until this has run; all ranks
  // run it together. Training steps do so themselves.
  void gather_weights();

  interpret::Executor& train() { return *train_; }
  // The training step with room for every routed row (model::rerun_config), for a step that train() refused
  // because it was past its token budget; nullptr unless moe.overflow = "rerun" has something to do.
  interpret::Executor* rerun() { return rerun_.get(); }
  interpret::Executor& evaluate() { return *evaluate_; }
  interpret::Executor& logits() { return *logits_; }
  const Planned& train_plan() const { return train_plan_; }
  const config::Config& config() const { return config_; }
  const std::vector<model::Parameter>& table() const { return table_; }
  device::Pool& pool() { return pool_; }
  const device::Arena& arena() const { return *arena_; }
  interpret::CudaMachine* machine() { return machine_.get(); }  // nullptr: the CPU
  const interpret::CudaMachine* machine() const { return machine_.get(); }

  // On a GPU the state has a copy on the host, which targets() and tensors() show. The first sends it to the
  // device after targets were written, the second fetches it (tensors() does so by itself). On the CPU both
  // do nothing.
  void push_state();
  void pull_state() const;

  // Every persistent tensor that is not derived from the config, as this rank holds it: weights, moments,
  // router bias.
  std::vector<checkpoint::TensorRef> tensors() const;
  std::vector<checkpoint::Target> targets();
  const checkpoint::Target& target(const std::string& name) const;
  // One of them as it is now, wherever it lies.
  void read(const std::string& name, std::span<std::byte> to) const;

 private:
  void write_constants();
  void open_groups();
  void require_same_state() const;
  config::Config config_;
  Crew* crew_;
  RankSetup setup_;
  std::vector<model::Parameter> table_;
  device::Pool pool_;
  config::Config rerun_config_;
  Planned train_plan_, rerun_plan_, evaluate_plan_, logits_plan_, gather_plan_;
  std::unique_ptr<interpret::CudaMachine> machine_;
  std::unique_ptr<device::Arena> arena_;  // everything; on a GPU the host's copy of the state
  std::unique_ptr<interpret::Executor> train_, rerun_, evaluate_, logits_, gather_;
  const Planned* any_ = nullptr;  // one that exists; state lies the same in all
  std::map<std::string, checkpoint::Target> targets_;
};

}  // namespace pleat::train
