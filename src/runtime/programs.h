// The programs of a training run over one parameter table: a step, the same step with room for every routed row,
// an evaluation, logits for sampling, and the gathering of weights that other ranks own.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"
#include "model/parameters.h"
#include "runtime/crew.h"
#include "runtime/runtime.h"
#include "schedule/build.h"
#include "schedule/pass/pass.h"

namespace pleat::runtime {

struct ProgramChoice {
  bool train = true, evaluate = true, logits = false;
  schedule::BuildOptions build;
  std::vector<std::string> disabled_passes;
  bool nan_memory = false;                                                   // Options::nan_memory
  schedule::ProgramEdit edit = {};                                           // of training steps
  program::Meeting meeting = program::Meeting::OnHost;                       // with a crew: as its ranks do
  std::function<void(const std::function<void()>& bind)> bind_in_turn = {};  // Options::bind_in_turn
  MakeCarrier carrier = {};                                                  // Options::carrier
};

Planned plan_training_step(const config::Config& config, const std::vector<model::Parameter>& table,
                           const ProgramChoice& choice = {});

class Programs : public Runtime {
 public:
  // `config` must be resolved. With a crew of several, the programs are this rank's part, and all ranks make theirs
  // at the same time; the crew outlives this.
  Programs(const config::Config& config, const ProgramChoice& choice = {}, Crew* crew = nullptr);

  // Weights from the seed, keyed by parameter name and element; norms one, biases and states of the optimizer zero.
  void initialize();

  // Weights this rank does not own are those of before the last training step until this has run; all ranks
  // run it together. Training steps do so themselves.
  void gather_weights();

  interpret::Executor& train() { return executor(train_); }
  // The training step with room for every routed row (model::rerun_config), for a step that train() refused
  // because it was past its token budget; nullptr unless moe.overflow = "rerun" has something to do.
  interpret::Executor* rerun() { return rerun_ == kNone ? nullptr : &executor(rerun_); }
  interpret::Executor& evaluate() { return executor(evaluate_); }
  interpret::Executor& logits() { return executor(logits_); }
  const Planned& train_plan() const { return planned(train_); }
  const config::Config& config() const { return config_; }
  const std::vector<model::Parameter>& table() const { return table_; }
  const RankSetup& setup() const { return setup_; }

 private:
  struct Built;
  static Built build(const config::Config& config, const ProgramChoice& choice, Crew* crew);
  explicit Programs(Built built);

  static constexpr size_t kNone = static_cast<size_t>(-1);
  config::Config config_;
  RankSetup setup_;
  std::vector<model::Parameter> table_;
  size_t train_ = kNone, rerun_ = kNone, evaluate_ = kNone, logits_ = kNone, gather_ = kNone;
};

}  // namespace pleat::runtime
