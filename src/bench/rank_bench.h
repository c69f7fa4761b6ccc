// The training step of one rank, run by itself, stage after stage, with the time of every stage. Among several ranks the
// others are its mirror images (comm/mirror/mirror_world.h): shapes are those of the layout, numbers mean nothing.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "config/config.h"
#include "cost/cost_file.h"
#include "interpret/trace/timeline.h"
#include "runtime/programs.h"

namespace pleat::bench {

// Times of the stages of one program that have a key, by key.
class StageTimes {
 public:
  explicit StageTimes(const program::Program& program);  // outlives this

  void add(const interpret::Timeline& timeline);
  std::vector<cost::CostEntry> entries() const;  // by ascending key
  // What the stages take one after the other, each its median.
  double sum_of_medians() const;

 private:
  struct Times {
    cost::StageKey key;
    kernels::Work work;
    int64_t stages = 0;
    std::vector<double> ns;
  };
  std::vector<Times> times_;
  std::vector<int32_t> of_stage_;  // index into times_, -1: it has no key
};

// One rank, ready to run steps. Random tokens, one document per sequence; the learning rate is 0, so that every step does
// the same. Rows go to experts evenly among several ranks, whatever the router says: each gets what it sends itself.
class RankStep {
 public:
  // `config` must be resolved and fit the ranks; device.threads are the workers of the rank, the first of its stage of
  // the pipeline. Throws for several ranks on a GPU.
  RankStep(const config::Config& config, int64_t ranks, int64_t pipeline_rank);
  RankStep(const RankStep&) = delete;
  RankStep& operator=(const RankStep&) = delete;

  // One step, all stages one after the other and timed. False: it was refused (too many rows, numbers that are not
  // finite), so it has updated nothing.
  bool run();
  interpret::Executor& executor() { return programs_->train(); }
  const config::Config& config() const { return config_; }

 private:
  config::Config config_;
  std::unique_ptr<comm::Endpoint> endpoint_;
  std::optional<runtime::Crew> crew_;
  std::unique_ptr<runtime::Programs> programs_;
  runtime::RankSetup setup_;
  int64_t step_ = 0;
};

struct RankRun {
  int64_t ranks = 1, pipeline_rank = 0;
  int64_t warmup = 2, steps = 9;
};

struct RankCosts {
  std::vector<cost::CostEntry> entries;
  double step_ns = 0;    // median of the timed steps
  double stages_ns = 0;  // StageTimes::sum_of_medians
};

// Steps that were refused do not count; throws when too few are left.
RankCosts measure_rank(const config::Config& config, const RankRun& run);

}  // namespace pleat::bench
