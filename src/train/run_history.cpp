#include "train/run_history.h"

#include <chrono>
#include <cmath>
#include <filesystem>

namespace pleat::train {
namespace {

namespace fs = std::filesystem;

double seconds_of(auto time) { return std::chrono::duration<double>(time.time_since_epoch()).count(); }
double wall_now() { return seconds_of(std::chrono::system_clock::now()); }
double steady_seconds() { return seconds_of(std::chrono::steady_clock::now()); }

// A run that never reached its first save left lines behind; they belong to no state any more.
report::JsonlLog fresh_log(const std::string& path) {
  std::error_code ignored;
  fs::remove(path, ignored);
  return report::JsonlLog::fresh(path);
}

}  // namespace

void RunHistory::open(const Trainer& trainer) {
  const std::string path = config_.log.run_dir + "/metrics.jsonl";
  const int64_t step = trainer.run_state().step;
  if (step > 0) recall_wall_time(path);
  log_.emplace(step > 0 ? report::JsonlLog::resumed(path, step) : fresh_log(path));
  for (const std::string& fault : log_->faults()) fmt::print(stderr, "{}\n", fault);
  if (config_.log.tensorboard) tensorboard_.emplace(config_.log.run_dir + "/tensorboard", step);
  if (step > 0) recall(path, trainer);
}

// How long the run took before this process, work that was lost included: before lines are dropped.
void RunHistory::recall_wall_time(const std::string& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return;
  report::for_each_good_record(path, [&](const report::StepRecord& record) {
    wall_before_ = std::max(wall_before_, record.wall_seconds);
  });
}

// What the summary says about the whole run, from the part of the log that survived the stop.
void RunHistory::recall(const std::string& path, const Trainer& trainer) {
  report::for_each_record(path, [&](const report::StepRecord& record) {
    last_loss_ = record.loss;
    if (record.step == trainer.run_state().step) tokens_before_ = record.tokens - trainer.tokens_seen();
    count_time(record);
    if (record.eval) note_eval(*record.eval);
  });
}

void RunHistory::count_time(const report::StepRecord& record) {
  if (!std::isfinite(record.step_seconds) || !std::isfinite(record.tokens_per_s)) return;
  seconds_ += record.step_seconds;
  tokens_ += record.tokens_per_s * record.step_seconds;
  model_flops_ += record.model_tflops * record.step_seconds;
  hardware_flops_ += record.hardware_tflops * record.step_seconds;
}

void RunHistory::note_eval(const report::EvalRecord& eval) {
  if (best_eval_ == 0 || eval.loss < best_eval_) best_eval_ = eval.loss;
}

double RunHistory::wall_seconds() const { return wall_before_ + steady_seconds() - started_; }

void RunHistory::note(report::StepRecord& record) {
  if (record.eval) note_eval(*record.eval);
  last_loss_ = record.loss;
  record.tokens += tokens_before_;
  record.wall_seconds = wall_seconds();
  count_time(record);
  if (!log_) return;
  report::StepRecord logged = record;
  if (config_.log.health_every > 0 && record.step % config_.log.health_every != 0 &&
      record.step != config_.train.steps)
    logged.health.clear();
  log_->append(logged);
  if (tensorboard_) tensorboard_->append(logged, wall_now());
}

void RunHistory::sync() {
  if (log_) log_->sync();
}

}  // namespace pleat::train
