// The programs of a model that is only run, over one arena: weights and caches, no gradients, no optimizer.
//
// All programs declare the same state first (weights, router bias, constants, then the caches), so weights
// are loaded once and a cache filled by the prefill program is read by the decode program.
#pragma once

#include <vector>

#include "config/config.h"
#include "model/parameters.h"
#include "runtime/runtime.h"

namespace pleat::infer {

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

class Inference : public runtime::Runtime {
 public:
  // `config` must be resolved. Weights are not initialised.
  Inference(const config::Config& config, const InferenceChoice& choice);

  // Weights and router bias, for the loader of a checkpoint or a model folder.
  std::vector<checkpoint::Target> weights() const;

  // nullptr where not asked for; prefill also where one row per call is enough.
  interpret::Executor* prefill() { return find(prefill_); }
  interpret::Executor* decode() { return find(decode_); }
  interpret::Executor* whole() { return find(whole_); }
  interpret::Executor* score() { return find(score_); }

  const config::Config& config() const { return config_; }
  const std::vector<model::Parameter>& table() const { return table_; }
  const InferenceChoice& choice() const { return choice_; }
  int64_t arena_bytes() const { return arena().size(); }

 private:
  struct Built;
  static Built build(const config::Config& config, const InferenceChoice& choice);
  explicit Inference(Built built);
  interpret::Executor* find(size_t program) { return program == kNone ? nullptr : &executor(program); }

  static constexpr size_t kNone = static_cast<size_t>(-1);
  config::Config config_;
  InferenceChoice choice_;
  std::vector<model::Parameter> table_;
  size_t prefill_, decode_, whole_, score_;
};

}  // namespace pleat::infer
