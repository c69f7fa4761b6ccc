// Training steps on random tokens, timed: what `pleat bench step` and `pleat trace` run. No data set, no
// logging.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "interpret/trace/timeline.h"
#include "runtime/programs.h"

namespace pleat::train {

// Reads a configuration of the peers' benchmark format (JSON). Throws naming what this back end cannot do.
config::Config peer_config(const std::string& path, int64_t threads);

// Uniformly random tokens, next-token labels, one document per sequence; a function of (seed, step).
void write_random_batch(interpret::Executor& executor, const config::Config& config, int64_t step);

struct BenchOptions {
  int64_t warmup = 2, steps = 10;
  double seconds = 0;  // stop after this many seconds of timed steps (0: no limit)
  bool digest = false;
};

struct BenchResult {
  std::vector<double> step_seconds;
  double median_seconds = 0, tokens_per_s = 0, loss = 0;
  double max_over_mean = 0;  // load of the experts in the last step, the mean over the MoE layers; 0: none
  double model_flops = 0, hardware_flops = 0, gemm_rate = 0;
  // Of the wall time of the timed steps, the part in which the device was not yet or no longer at work on
  // them, in percent: wall time minus the device's time from the first to the last operation of the step's
  // graph. Gaps between kernels inside the graph are not in it. Not known on the CPU and without graphs.
  std::optional<double> host_gap_percent;
  double gemm_share = 0;         // part of the step spent in matrix-product stages
  double gemm_stage_rate = 0;    // FLOP/s inside those stages
  interpret::Timeline timeline;  // of the last step
  interpret::Breakdown breakdown;
  std::string digest;  // of every tensor of the state behind the timed steps, if asked for
};

BenchResult bench_step(runtime::Programs& programs, const BenchOptions& options);

}  // namespace pleat::train
