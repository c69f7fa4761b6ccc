#include "report/console.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "base/standard_streams.h"
#include "base/terminal_text.h"
#include "report/format.h"
#include "report/table.h"

namespace pleat::report {

namespace {

constexpr size_t kPaceSteps = 50;

std::string line_of(const StepRecord& record, int64_t total_steps, double seconds_left,
                    std::string_view experts_word) {
  const CodeVerdict codes = code_verdict(record.codes);
  std::string out = fmt::format("step {}/{}  loss {:.4f}", record.step, total_steps, record.loss);
  if (!record.mtp_loss.empty()) out += fmt::format("  mtp {:.4f}", fmt::join(record.mtp_loss, " "));
  if (!std::isnan(record.lr)) out += fmt::format("  lr {:.1e}", record.lr);
  if (!std::isnan(record.tokens_per_s)) out += "  " + format_token_rate(record.tokens_per_s);
  if (!std::isnan(seconds_left) && record.step < total_steps)
    out += "  " + format_duration(seconds_left) + " left";
  if (!experts_word.empty()) out += fmt::format("  experts {}", experts_word);
  if (codes.state != CodeState::Fine) out += fmt::format("  codes {}", codes.word);
  if (record.eval) {
    out += fmt::format("  eval {:.4f}", record.eval->loss);
    if (!std::isnan(record.eval->bits_per_byte))
      out += fmt::format(" ({:.3f} bits/byte)", record.eval->bits_per_byte);
  }
  if (record.refused_steps > 0) out += fmt::format("  {} refused", record.refused_steps);
  return out;
}

// Cut to `width` columns without splitting a UTF-8 character.
std::string cut(std::string text, size_t width) {
  size_t columns = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xC0) == 0x80) continue;
    if (columns++ == width) return text.substr(0, i);
  }
  return text;
}

}  // namespace

void Eta::step_done(int64_t step, double now_seconds) {
  recent_.emplace_back(step, now_seconds);
  if (recent_.size() > kPaceSteps) recent_.pop_front();
}

double Eta::seconds_left() const {
  if (recent_.size() < 2 || recent_.back().first <= recent_.front().first) return kUnknown;
  const double pace = (recent_.back().second - recent_.front().second) /
                      static_cast<double>(recent_.back().first - recent_.front().first);
  return pace * static_cast<double>(std::max<int64_t>(0, total_steps_ - recent_.back().first));
}

std::string progress_text(const StepRecord& record, int64_t total_steps, double seconds_left) {
  return line_of(record, total_steps, seconds_left, router_verdict(record.health).word);
}

Progress::Mode Progress::mode_of_stderr() {
  const char* term = std::getenv("TERM");
  const bool can_rewrite = term != nullptr && std::string_view(term) != "dumb";
  return ::isatty(STDERR_FILENO) && can_rewrite ? Mode::Rewrite : Mode::Lines;
}

Progress::Sink Progress::to_stderr() {
  return [](std::string_view text) { base::write_status(text); };
}

Progress::Progress(int64_t total_steps, Mode mode, Sink sink, double every_seconds, size_t width)
    : total_steps_(total_steps),
      mode_(mode),
      sink_(std::move(sink)),
      every_seconds_(every_seconds),
      width_(width),
      eta_(total_steps) {}

void Progress::step_done(const StepRecord& record, double now_seconds) {
  eta_.step_done(record.step, now_seconds);
  if (!record.health.empty()) {
    const RouterVerdict verdict = router_verdict(record.health);
    experts_word_ = verdict.word;
    if (verdict.word != name_of(Balance::Balanced) && explained_words_.insert(verdict.word).second)
      message(fmt::format("experts {}: {}", verdict.word, verdict.meaning));
  }
  const CodeVerdict codes = code_verdict(record.codes);
  if (codes.state != CodeState::Fine && explained_codes_.insert(codes.state).second)
    message(fmt::format("codes {}: {} ({})", codes.word, meaning_of(codes.state), codes.text));
  const std::string line = line_of(record, total_steps_, eta_.seconds_left(), experts_word_);
  const bool keep = record.eval.has_value() || record.refused_steps > refused_ || record.step >= total_steps_;
  refused_ = record.refused_steps;
  if (mode_ == Mode::Rewrite) {
    // \r and "erase to the end of the line": no trace of a longer line before.
    sink_(fmt::format("\r{}\x1b[K{}", cut(line, width_), keep ? "\n" : ""));
    line_open_ = !keep;
    return;
  }
  if (keep || std::isnan(last_shown_) || now_seconds - last_shown_ >= every_seconds_) {
    sink_(line + "\n");
    last_shown_ = now_seconds;
  }
}

void Progress::message(std::string_view line) {
  finish();
  sink_(base::terminal_text(line) + "\n");
}

void Progress::finish() {
  if (line_open_) sink_("\n");
  line_open_ = false;
}

size_t terminal_width() {
  winsize size{};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 120;
}

}  // namespace pleat::report
