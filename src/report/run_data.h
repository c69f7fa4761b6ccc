// A run folder read into memory for the report: metrics.jsonl, summary.json and timeline.json. A missing file
// is an empty part; a malformed one is an error that names file and line. Damaged lines of metrics.jsonl are
// left out and named.
//
// summary.json is one object. Keys the report knows (all optional):
//   texts    run, config, state_sha256, sample
//   numbers  steps, final_loss, best_eval_loss, validation_loss, validation_tokens, validation_bits_per_byte,
//            bigram_bits_per_byte, tokens, tokens_per_s, model_tflops, hardware_tflops, gemm_peak_tflops,
//            planned_peak_bytes, measured_peak_bytes, outside_bytes, refused_steps, wall_seconds ("nan",
//            "inf", "-inf" as in metrics.jsonl; null = absent)
//   object   memory_by_owner {owner: bytes}
// Other keys are shown as they are. "config" may also be an object.
//
// timeline.json is a list of {name, lane, start_us, dur_us, category}; lane may be a number. With several ranks
// each has "of", which says whose timeline it is.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "report/curve.h"
#include "report/metrics.h"

namespace pleat::report {

inline constexpr double kMaxBytes = 1e18;  // no memory figure above it is believed

struct TimelineEvent {
  std::string name, lane, category;
  double start_us = 0.0;
  double dur_us = 0.0;
};

struct RunSummary {
  std::map<std::string, std::string> texts;
  std::map<std::string, double> numbers;
  std::vector<std::pair<std::string, double>> memory_by_owner;  // largest first
  std::vector<std::pair<std::string, std::string>> other;       // unknown keys, values as JSON text

  std::optional<double> number(const std::string& key) const;
  std::string text(const std::string& key) const;  // empty when absent
};

struct RunCurves {
  Curve loss, eval_loss, eval_bits_per_byte, lr, grad_norm, tokens_per_s, model_tflops, hardware_tflops;
  std::map<std::string, Curve> aux;
  std::map<int, Curve> max_over_mean;    // by layer
  std::map<std::string, Curve> flushed;  // percent of codes, by "module, side"
};

struct RunData {
  std::string folder;
  std::optional<RunSummary> summary;
  bool has_metrics = false;
  bool torn_log = false;
  std::vector<std::string> log_faults;  // a sentence for each line that is left out
  int64_t num_records = 0;
  RunCurves curves;
  std::optional<StepRecord> last;
  double step_seconds = 0, step_tokens = 0;  // of the steps in the log
  std::vector<RouterHealth> health;          // the last ones logged
  int64_t health_step = 0;
  std::vector<CodeHealth> codes;  // the last ones logged
  int64_t codes_step = 0;
  std::optional<std::vector<TimelineEvent>> timeline;
  std::string timeline_of;  // whose it is, where there are several ranks
};

// A summary older than the log (a run that is under way) gets its numbers from there.
// Throws base::Error when the folder does not exist or holds none of the three files.
RunData read_run(const std::string& folder);

}  // namespace pleat::report
