// The progress line of a run. On a terminal it rewrites one line after every step; anywhere else (a pipe,
// a batch system's log file) it writes a full line every few seconds, so that the log stays short.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "report/metrics.h"

namespace pleat::report {

// Time left from the pace of the last steps; evaluations and saves between them are part of the pace.
class Eta {
 public:
  explicit Eta(int64_t total_steps) : total_steps_(total_steps) {}
  void step_done(int64_t step, double now_seconds);
  double seconds_left() const;  // kUnknown before two steps are done

 private:
  int64_t total_steps_;
  std::deque<std::pair<int64_t, double>> recent_;
};

// "step 120/400  loss 1.9312  lr 3.0e-04  12.3 ktok/s  1.2 min left  experts balanced"; codes that are not fine, refused
// steps and an evaluation are added where there are any.
std::string progress_text(const StepRecord& record, int64_t total_steps, double seconds_left);

class Progress {
 public:
  enum class Mode { Rewrite, Lines };
  using Sink = std::function<void(std::string_view)>;

  // Rewrite where standard error is a terminal that can, Lines elsewhere.
  static Mode mode_of_stderr();
  static Sink to_stderr();

  // `width` is the terminal's; a longer line is cut in Rewrite mode, because a wrapped line cannot be
  // rewritten. `every_seconds` is the shortest time between two lines in Lines mode.
  Progress(int64_t total_steps, Mode mode, Sink sink, double every_seconds = 10.0, size_t width = 120);

  // Shows the step; a word about experts or codes that was not there before is explained first. The first, the last, and every step with an evaluation or a newly refused step is
  // always shown; evaluations keep their line in Rewrite mode too.
  void step_done(const StepRecord& record, double now_seconds);
  // Leaves the current line standing and prints `line` below it.
  void message(std::string_view line);
  void finish();  // ends a rewritten line

 private:
  int64_t total_steps_;
  Mode mode_;
  Sink sink_;
  double every_seconds_;
  size_t width_;
  Eta eta_;
  double last_shown_ = kUnknown;
  int64_t refused_ = 0;
  std::string experts_word_;               // of the last step that had router health
  std::set<std::string> explained_words_;  // each is explained once, when it first appears
  std::set<CodeState> explained_codes_;    // the same
  bool line_open_ = false;
};

size_t terminal_width();  // of standard error; 120 when it is no terminal

}  // namespace pleat::report
