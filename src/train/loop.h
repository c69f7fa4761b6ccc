// The loop over steps: resume, train, evaluate, log, save, stop cleanly.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/error.h"
#include "config/config.h"
#include "train/trainer.h"

namespace pleat::train {

struct LoopOptions {
  bool quiet = false;                 // no console output
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

// Prepares text data when data.train names a .txt or .jsonl, opens the run folder, resumes by
// checkpoint.resume, and trains to train.steps. SIGTERM and SIGINT finish the step, save, and end with
// ExitCode::Retry.
//
// With several ranks, threads of this process or processes under MPI, the first prints, writes files and
// gives the result; what one rank is asked, all do.
LoopResult run_training(const config::Config& config, const LoopOptions& options = {});

// data.train / data.valid become prefixes of .bin/.idx below `run_dir`; text is prepared once and reused when
// the source has not changed. Not resolved.
config::Config with_prepared_data(const config::Config& config, bool quiet);

}  // namespace pleat::train
