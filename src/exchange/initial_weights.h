// `pleat train CONFIG --init SOURCE`: a new run that begins with the weights of a run or of a Hugging Face
// model folder. Optimizer, data, sequence length, schedule and coefficients are the new run's own.
//
// The source says what the model is. Keys of [model] and [moe] that CONFIG leaves out come from it; those it
// gives must agree where they make the model (config::OnResume::SameModel). Correction biases of routers are
// carried. Where CONFIG names no tokenizer, the source's is taken.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "checkpoint/save_streamed.h"
#include "config/config.h"
#include "run/origin.h"

namespace pleat::exchange {

struct InitOptions {
  std::string source;  // a run folder or a model folder
  std::string step;    // of a run: which checkpoint (checkpoint::parse_which)
};

class InitialWeights {
 public:
  // Reads the configurations, no weights yet; a checkpoint is verified and held. A run folder that has
  // checkpoints already goes on with its own model, if it was started with the same options; otherwise that is
  // an error.
  InitialWeights(const InitOptions& options, const std::string& config_path,
                 const std::vector<std::string>& sets);
  ~InitialWeights();
  InitialWeights(const InitialWeights&) = delete;

  const config::Config& config() const { return config_; }  // validated, as asked
  const std::string& remark() const { return remark_; }     // what the run begins with, for the console
  // origin.json into the run folder of `used`, which is config() resolved. Before asked.toml: a run that is there
  // without its weights must know that it needs them.
  void write_origin(const config::Config& used) const;
  // The source's small files and the checkpoint of step 0, tensor by tensor (exchange/start_state.h).
  void write(const config::Config& used, const checkpoint::StreamWatch& watch = {}) const;

 private:
  struct Source;
  std::unique_ptr<Source> source_;  // none where the run goes on
  config::Config config_;
  run::Origin origin_;
  std::string remark_;
};

}  // namespace pleat::exchange
