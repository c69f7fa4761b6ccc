#include "commands/data.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "base/standard_streams.h"
#include "report/console.h"
#include "report/format.h"

namespace pleat::apps {

Meter::Meter()
    : rewrites_(report::Progress::mode_of_stderr() == report::Progress::Mode::Rewrite),
      start_(std::chrono::steady_clock::now()) {}

double Meter::seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

void Meter::show(double done, double total, std::string_view text) {
  const double now = seconds();
  if (now - last_shown_ < (rewrites_ ? 0.2 : 5.0)) return;
  last_shown_ = now;
  const double share = total > 0 ? done / total : 1;
  std::string line = fmt::format("{:3.0f} %  {}", 100 * share, text);
  if (rewrites_) {
    constexpr int kBar = 20;
    const int full = static_cast<int>(kBar * std::clamp(share, 0.0, 1.0));
    line.insert(5, fmt::format("  [{}{}]", std::string(static_cast<size_t>(full), '#'),
                               std::string(static_cast<size_t>(kBar - full), '-')));
  }
  if (done > 0 && done < total && now > 1)
    line += fmt::format("  {} left", report::format_duration(now / done * (total - done)));
  const size_t width = report::terminal_width();
  if (rewrites_)
    base::write_status("\r\x1b[K" + line.substr(0, width > 1 ? width - 1 : 1));
  else
    fmt::print(stderr, "{}\n", line);
  line_open_ = rewrites_;
}

void Meter::finish() {
  if (line_open_) fmt::print(stderr, "\n");
  line_open_ = false;
}

std::string quoted_text(std::string_view text) {
  std::string out = "\"";
  for (const char ch : text) {
    const unsigned char b = static_cast<unsigned char>(ch);
    if (ch == '\n')
      out += "\\n";
    else if (ch == '\t')
      out += "\\t";
    else if (ch == '"' || ch == '\\')
      out += {'\\', ch};
    else if (b >= 32 && b != 127)
      out += ch;
    else
      out += fmt::format("\\x{:02x}", b);
  }
  return out + "\"";
}

void add_data(CLI::App& command, Action&) {
  command.require_subcommand(1);
  add_example(command, "pleat data tokenize notes.txt --tokenizer byte --out data/notes --split 0.9");
}

}  // namespace pleat::apps
