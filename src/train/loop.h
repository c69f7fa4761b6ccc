// The loop over steps: resume, train, evaluate, log, save, stop cleanly.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/error.h"
#include "config/config.h"
#include "train/names_in_use.h"
#include "train/trainer.h"

namespace pleat::train {

struct LoopOptions {
  bool quiet = false;         // no console output
  bool verbose = false;       // every setting at the start
  bool allow_change = false;  // settings that change how the run trains may differ (Key::resume)
  bool lock = true;           // keep other trainers out of the folder
  // A new run from given weights. Both are called on the leader, with the resolved configuration, once the run
  // is accepted and where its folder holds no checkpoint: first what says where the weights come from, then,
  // with asked.toml in place, what writes them as a checkpoint of step 0.
  std::function<void(const config::Config&)> write_origin = {}, write_start = {};
  int ranks = 0;                      // threads of this process as ranks; 0: what the launcher says
  int64_t stop_after = 0;             // leave as a signal would after this step (0: never)
  std::optional<int64_t> fault_step;  // plant a NaN in this step's loss (tests)
  std::string inject;                 // a rank goes wrong at a call (comm/inject.h; tests); "" for none
};

struct LoopResult {
  base::ExitCode code = base::ExitCode::Done;
  int64_t step = 0;
  std::string state_sha256;
  std::optional<EvalOutcome> final_eval;
  std::string summary_path;
};

// Takes the lock of the run folder, prepares text data when data.train names a .txt or .jsonl, resumes by
// checkpoint.resume, and trains to train.steps. A run that is done says so and changes nothing. SIGTERM and SIGINT finish the step, save, and end with
// ExitCode::Retry.
//
// With several ranks, threads of this process or processes under MPI, the first prints, writes files and
// gives the result; what one rank is asked, all do.
LoopResult run_training(const config::Config& config, const LoopOptions& options = {});

// data.train / data.valid become prefixes of .bin/.idx below `run_dir`; text is prepared once and reused when
// the source has not changed. Not resolved. What is in use is never written over: other tokens lie beside it
// until the run is accepted with them, so a refused start changes nothing that a run has.
struct PreparedData {
  bool quiet = false;
  // A run that goes on, and what its checkpoint was trained with: what was prepared stays, also when its source
  // is gone or looks changed (said in a note). Other settings of it are an error.
  std::optional<config::Config> trained_with = {};
  std::optional<Names> in_use = {};  // nothing: looked up when needed
  std::string tokenizer_name = {};   // what datasets say they were made with; empty: data.tokenizer
  std::function<void()> before_writing = {};
};
config::Config with_prepared_data(const config::Config& config, const PreparedData& how);

}  // namespace pleat::train
