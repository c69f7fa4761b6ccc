// The programs of a model that is only run, over one arena: weights and caches, no gradients, no optimizer.
//
// All programs declare the same state first (weights, router bias, constants, then the caches), so weights
// are loaded once and a cache filled by the prefill program is read by the decode program.
#pragma once

#include <memory>
#include <vector>

#include "checkpoint/load.h"
#include "config/config.h"
#include "device/cpu/arena.h"
#include "device/cpu/pool.h"
#include "interpret/run/executor.h"
#include "model/parameters.h"
#include "train/programs.h"

namespace pleat::train {

struct InferenceChoice {
  // New tokens over a cache: num_sequences at a time, each at most max_length long, prompts in pieces of
  // prefill_rows.
  int64_t num_sequences = 0;  // 0: no generation
  int64_t max_length = 0;
  int64_t prefill_rows = 64;
  bool all_logits = false;  // of every row the prefill program sees
  // Whole sequences instead of a cache: the reference the cache is compared with.
  bool whole_sequences = false;
  // Packed tokens whose likelihood is wanted; 0: no scoring.
  int64_t score_tokens = 0;
};

class Inference {
 public:
  // `config` must be resolved. Weights are not initialised.
  Inference(const config::Config& config, const InferenceChoice& choice);

  // Weights and router bias, for the loader of a checkpoint or a model folder.
  std::vector<checkpoint::Target> targets();

  // nullptr where not asked for; prefill also where one row per call is enough.
  interpret::Executor* prefill() { return prefill_.get(); }
  interpret::Executor* decode() { return decode_.get(); }
  interpret::Executor* whole() { return whole_.get(); }
  interpret::Executor* score() { return score_.get(); }

  const config::Config& config() const { return config_; }
  const std::vector<model::Parameter>& table() const { return table_; }
  const InferenceChoice& choice() const { return choice_; }
  int64_t arena_bytes() const { return arena_->size(); }

 private:
  config::Config config_;
  InferenceChoice choice_;
  std::vector<model::Parameter> table_;
  device::Pool pool_;
  std::vector<std::unique_ptr<Planned>> plans_;
  std::unique_ptr<device::Arena> arena_;
  std::unique_ptr<interpret::Executor> prefill_, decode_, whole_, score_;
};

}  // namespace pleat::train
