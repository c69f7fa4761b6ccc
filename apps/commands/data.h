// What the sub-commands of `pleat data` share.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "command.h"

namespace pleat::apps {

// Progress on standard error: one line that is rewritten on a terminal, a line every few seconds elsewhere.
class Meter {
 public:
  Meter();
  // `done` of `total` in any unit decides the time left; `text` says the rest.
  void show(double done, double total, std::string_view text);
  // Ends a rewritten line.
  void finish();
  double seconds() const;

 private:
  bool rewrites_;
  std::chrono::steady_clock::time_point start_;
  double last_shown_ = -1;
  bool line_open_ = false;
};

// Quoted, with line ends and control characters as escapes: the text of a dataset must not drive a terminal.
std::string quoted_text(std::string_view text);

}  // namespace pleat::apps
