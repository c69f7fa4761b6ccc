// What a run says about itself over all its processes: the log of its steps, and the sums its summary is made of.
#pragma once

#include <optional>

#include "config/config.h"
#include "report/jsonl_log.h"
#include "report/tensorboard.h"
#include "train/trainer.h"

namespace pleat::train {

class RunHistory {
 public:
  // `config` outlives this. `started`: when this process began with the run, by the steady clock, in seconds.
  RunHistory(const config::Config& config, double started) : config_(config), started_(started) {}

  // The leader's: opens the log where the state is, drops lines past it, and recalls the sums of the rest.
  void open(const Trainer& trainer);
  // Fills in what the history knows of the step (tokens, wall time) and writes it where there is a log.
  void note(report::StepRecord& record);
  // No line is lost behind this.
  void sync();

  double wall_seconds() const;
  double best_eval() const { return best_eval_; }  // 0: none
  double last_loss() const { return last_loss_; }
  int64_t tokens_before() const { return tokens_before_; }
  // Means over the seconds in steps.
  double tokens_per_s() const { return rate(tokens_); }
  double model_tflops() const { return rate(model_flops_); }
  double hardware_tflops() const { return rate(hardware_flops_); }

 private:
  double rate(double sum) const { return seconds_ > 0 ? sum / seconds_ : 0; }
  void recall_wall_time(const std::string& path);
  void recall(const std::string& path, const Trainer& trainer);
  void count_time(const report::StepRecord& record);
  void note_eval(const report::EvalRecord& eval);

  const config::Config& config_;
  const double started_;
  std::optional<report::JsonlLog> log_;
  std::optional<report::TensorBoardWriter> tensorboard_;
  double best_eval_ = 0, last_loss_ = 0;
  // Over all processes of the run, by its log: seconds in steps, and what was done in them (TFLOP).
  double seconds_ = 0, tokens_ = 0, model_flops_ = 0, hardware_flops_ = 0;
  double wall_before_ = 0;
  int64_t tokens_before_ = 0;  // of data the run was trained on before it got other data
};

}  // namespace pleat::train
