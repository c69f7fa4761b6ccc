#include "data/tokenizer/pre_tokenizer.h"

#include <unicode/uchar.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "base/error.h"
#include "data/tokenizer/text_pattern.h"
#include "data/tokenizer/utf8.h"

namespace pleat::data {

const std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

namespace {

enum class SplitBehavior { Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous };

struct Part {
  size_t begin, end;
  bool is_match;
};

// Parts in order to pieces in order; what Removed drops is dropped by the caller.
std::vector<Part> merged(std::vector<Part> parts, SplitBehavior behavior) {
  const bool backwards = behavior == SplitBehavior::MergedWithNext;
  if (backwards) std::reverse(parts.begin(), parts.end());
  std::vector<Part> out;
  bool previous = false;
  for (const Part& part : parts) {
    const bool joins =
        behavior == SplitBehavior::Contiguous ? part.is_match == previous : part.is_match && !previous;
    if (joins && !out.empty()) {
      if (backwards)
        out.back().begin = part.begin;
      else
        out.back().end = part.end;
    } else {
      out.push_back(part);
    }
    previous = part.is_match;
  }
  if (backwards) std::reverse(out.begin(), out.end());
  return out;
}

// find(visit) reports the parts of `piece`.
template <class Find>
void split(std::string_view piece, bool at_start, SplitBehavior behavior, bool invert, PieceSink& sink,
           const Find& find) {
  const auto hand_on = [&](size_t begin, size_t end) {
    if (end > begin) sink.take(piece.substr(begin, end - begin), at_start && begin == 0);
  };
  if (behavior == SplitBehavior::Isolated || behavior == SplitBehavior::Removed) {
    find([&](size_t begin, size_t end, bool is_match) {
      if (behavior == SplitBehavior::Isolated || is_match == invert) hand_on(begin, end);
    });
    return;
  }
  std::vector<Part> parts;
  find([&](size_t begin, size_t end, bool is_match) { parts.push_back({begin, end, is_match != invert}); });
  for (const Part& part : merged(std::move(parts), behavior)) hand_on(part.begin, part.end);
}

class Split final : public PreTokenizer {
 public:
  Split(const Json& json, const std::string& where)
      : pattern_(need(json, "pattern", where), where + ".pattern"),
        invert_(bool_at(json, "invert", false, where)) {
    const std::string name = string_at(json, "behavior", where);
    if (name == "Removed") {
      behavior_ = SplitBehavior::Removed;
    } else if (name == "Isolated") {
      behavior_ = SplitBehavior::Isolated;
    } else if (name == "MergedWithPrevious") {
      behavior_ = SplitBehavior::MergedWithPrevious;
    } else if (name == "MergedWithNext") {
      behavior_ = SplitBehavior::MergedWithNext;
    } else if (name == "Contiguous") {
      behavior_ = SplitBehavior::Contiguous;
    } else {
      base::fail("{}.behavior: \"{}\" is not supported", where, shown(name));
    }
  }
  void run(std::string_view piece, bool at_start, Regex::Workspace& workspace,
           PieceSink& sink) const override {
    split(piece, at_start, behavior_, invert_, sink,
          [&](const auto& visit) { pattern_.for_each_part(piece, workspace, visit); });
  }

 private:
  TextPattern pattern_;
  bool invert_;
  SplitBehavior behavior_ = SplitBehavior::Isolated;
};

class Digits final : public PreTokenizer {
 public:
  explicit Digits(bool individual)
      : behavior_(individual ? SplitBehavior::Isolated : SplitBehavior::Contiguous) {}
  void run(std::string_view piece, bool at_start, Regex::Workspace&, PieceSink& sink) const override {
    split(piece, at_start, behavior_, false, sink, [&](const auto& visit) {
      size_t done = 0;
      for (size_t at = 0; at < piece.size();) {
        const size_t begin = at;
        const auto c = static_cast<UChar32>(next_code_point(piece, at));
        if ((U_GET_GC_MASK(c) & U_GC_N_MASK) == 0) continue;
        if (begin > done) visit(done, begin, false);
        visit(begin, at, true);
        done = at;
      }
      if (done < piece.size()) visit(done, piece.size(), false);
    });
  }

 private:
  SplitBehavior behavior_;
};

class Metaspace final : public PreTokenizer {
 public:
  Metaspace(const Json& json, const std::string& where) {
    append_code_point(mark_, character_at(json, "replacement", where));
    const bool add_prefix_space = bool_at(json, "add_prefix_space", true, where);
    scheme_ = add_prefix_space ? "always" : "never";
    if (find(json, "prepend_scheme") != nullptr) {
      scheme_ = string_at(json, "prepend_scheme", where);
      if (scheme_ != "always" && scheme_ != "never" && scheme_ != "first")
        base::fail("{}.prepend_scheme: \"{}\" is not supported", where, shown(scheme_));
      if (!add_prefix_space && scheme_ != "never")
        base::fail("{}: add_prefix_space is false but prepend_scheme is \"{}\"", where, scheme_);
    }
    split_ = bool_at(json, "split", true, where);
  }
  void run(std::string_view piece, bool at_start, Regex::Workspace&, PieceSink& sink) const override {
    std::string text;
    text.reserve(piece.size() + piece.size() / 2);
    const bool marked = piece.front() == ' ' || piece.starts_with(mark_);
    if (!marked && (scheme_ == "always" || (scheme_ == "first" && at_start))) text += mark_;
    for (const char c : piece) {
      if (c == ' ')
        text += mark_;
      else
        text += c;
    }
    if (!split_) {
      sink.take(text, at_start);
      return;
    }
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = std::min(text.find(mark_, begin + 1), text.size());
      sink.take(std::string_view(text).substr(begin, end - begin), at_start && begin == 0);
      begin = end;
    }
  }
  bool asks_for_start() const override { return scheme_ == "first"; }

 private:
  std::string mark_;
  std::string scheme_;
  bool split_ = true;
};

class ByteLevel final : public PreTokenizer {
 public:
  ByteLevel(const Json& json, const std::string& where)
      : add_prefix_space_(bool_at(json, "add_prefix_space", where)) {
    if (bool_at(json, "use_regex", true, where))
      regex_.emplace(kGpt2Pattern, PatternDialect::Oniguruma, where);
  }
  void run(std::string_view piece, bool at_start, Regex::Workspace& workspace,
           PieceSink& sink) const override {
    std::string prefixed;
    if (add_prefix_space_ && piece.front() != ' ') {
      prefixed.reserve(piece.size() + 1);
      prefixed += ' ';
      prefixed += piece;
      piece = prefixed;
    }
    if (!regex_) {
      sink.take(piece, at_start);
      return;
    }
    split(piece, at_start, SplitBehavior::Isolated, false, sink,
          [&](const auto& visit) { for_each_part(*regex_, piece, workspace, visit); });
  }
  bool ends_in_bytes() const override { return true; }

 private:
  bool add_prefix_space_;
  std::optional<Regex> regex_;
};

class PreTokenizerSequence final : public PreTokenizer {
 public:
  explicit PreTokenizerSequence(std::vector<std::unique_ptr<PreTokenizer>> steps)
      : steps_(std::move(steps)) {}
  void run(std::string_view piece, bool at_start, Regex::Workspace& workspace,
           PieceSink& sink) const override {
    run_from(0, piece, at_start, workspace, sink);
  }
  bool ends_in_bytes() const override { return !steps_.empty() && steps_.back()->ends_in_bytes(); }
  bool asks_for_start() const override {
    return std::any_of(steps_.begin(), steps_.end(), [](const auto& step) { return step->asks_for_start(); });
  }
  size_t num_steps() const override {
    size_t sum = 1;
    for (const auto& step : steps_) sum += step->num_steps();
    return sum;
  }

 private:
  class Onward final : public PieceSink {
   public:
    Onward(const PreTokenizerSequence& owner, size_t step, Regex::Workspace& workspace, PieceSink& last)
        : owner_(owner), step_(step), workspace_(workspace), last_(last) {}
    void take(std::string_view piece, bool at_start) override {
      owner_.run_from(step_, piece, at_start, workspace_, last_);
    }

   private:
    const PreTokenizerSequence& owner_;
    size_t step_;
    Regex::Workspace& workspace_;
    PieceSink& last_;
  };

  void run_from(size_t step, std::string_view piece, bool at_start, Regex::Workspace& workspace,
                PieceSink& last) const {
    if (step == steps_.size()) {
      last.take(piece, at_start);
    } else if (step + 1 == steps_.size()) {
      steps_[step]->run(piece, at_start, workspace, last);
    } else {
      Onward onward(*this, step + 1, workspace, last);
      steps_[step]->run(piece, at_start, workspace, onward);
    }
  }

  std::vector<std::unique_ptr<PreTokenizer>> steps_;
};

constexpr size_t kMaxSteps = 64;  // the stack is finite

}  // namespace

std::unique_ptr<PreTokenizer> make_pre_tokenizer(const Json& json, const std::string& where) {
  if (json.is_null()) return nullptr;
  const std::string type = type_of(json, where);
  if (type == "Split") {
    only_keys(json, {"type", "pattern", "behavior", "invert"}, where);
    return std::make_unique<Split>(json, where);
  }
  if (type == "Digits") {
    only_keys(json, {"type", "individual_digits"}, where);
    return std::make_unique<Digits>(bool_at(json, "individual_digits", where));
  }
  if (type == "Metaspace") {
    only_keys(json, {"type", "replacement", "add_prefix_space", "prepend_scheme", "split"}, where);
    return std::make_unique<Metaspace>(json, where);
  }
  if (type == "ByteLevel") {
    // trim_offsets concerns positions in the text only, which are not reported.
    only_keys(json, {"type", "add_prefix_space", "trim_offsets", "use_regex"}, where);
    return std::make_unique<ByteLevel>(json, where);
  }
  if (type == "Sequence") {
    only_keys(json, {"type", "pretokenizers"}, where);
    const Json& list = need(json, "pretokenizers", where);
    if (!list.is_array()) base::fail("{}.pretokenizers: an array is needed", where);
    std::vector<std::unique_ptr<PreTokenizer>> steps;
    for (size_t i = 0; i < list.size(); ++i) {
      const std::string place = fmt::format("{}.pretokenizers[{}]", where, i);
      if (list[i].is_null()) base::fail("{}: null", place);
      steps.push_back(make_pre_tokenizer(list[i], place));
      if (steps.back()->ends_in_bytes() && i + 1 != list.size())
        base::fail("{}: ByteLevel is supported as the last step only", place);
    }
    auto sequence = std::make_unique<PreTokenizerSequence>(std::move(steps));
    if (sequence->num_steps() > kMaxSteps)
      base::fail("{}: {} steps; at most {} are supported", where, sequence->num_steps(), kMaxSteps);
    return sequence;
  }
  base::fail("{}: pre_tokenizer \"{}\" is not supported", where, shown(type));
}

}  // namespace pleat::data
