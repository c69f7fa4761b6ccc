#include "data/tokenizer/pre_tokenizer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/error.h"
#include "data/tokenizer/spelling_steps.h"
#include "data/tokenizer/splitting_steps.h"
#include "data/tokenizer/utf8.h"

namespace pleat::data {
namespace {

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
    return any([](const PreTokenizer& step) { return step.asks_for_start(); });
  }
  bool asks_for_start_of_parts() const override {
    for (size_t i = 0; i < steps_.size(); ++i)
      if (steps_[i]->asks_for_start_of_parts() || (i > 0 && steps_[i]->asks_for_start())) return true;
    return false;
  }
  bool moves_start() const override {
    return any([](const PreTokenizer& step) { return step.moves_start(); });
  }
  size_t num_steps() const override {
    size_t sum = 1;
    for (const auto& step : steps_) sum += step->num_steps();
    return sum;
  }
  size_t num_spellings() const override {
    size_t sum = 0;
    for (const auto& step : steps_) sum += step->num_spellings();
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

  template <class Has>
  bool any(const Has& has) const {
    return std::any_of(steps_.begin(), steps_.end(), [&](const auto& step) { return has(*step); });
  }

  std::vector<std::unique_ptr<PreTokenizer>> steps_;
};

constexpr size_t kMaxSteps = 64;     // the stack is finite
constexpr size_t kMaxSpellings = 4;  // each may double the text

std::unique_ptr<PreTokenizer> make_sequence(const Json& json, bool is_last, const std::string& where);

std::unique_ptr<PreTokenizer> make_step(const Json& json, bool is_last, const std::string& where) {
  const std::string type = type_of(json, where);
  if (type == "Sequence") return make_sequence(json, is_last, where);
  if (auto step = make_splitting_step(type, json, where)) return step;
  if (auto step = make_spelling_step(type, json, is_last, where)) return step;
  base::fail(
      "{}: pre_tokenizer \"{}\" is not supported; ByteLevel, Metaspace, Split, Digits, Punctuation, "
      "Whitespace, WhitespaceSplit, BertPreTokenizer, CharDelimiterSplit, FixedLength and Sequence are",
      where, shown(type));
}

std::unique_ptr<PreTokenizer> make_sequence(const Json& json, bool is_last, const std::string& where) {
  only_keys(json, {"type", "pretokenizers"}, where);
  const Json& list = need(json, "pretokenizers", where);
  if (!list.is_array()) base::fail("{}.pretokenizers: an array is needed", where);
  std::vector<std::unique_ptr<PreTokenizer>> steps;
  bool moved = false;
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string place = fmt::format("{}.pretokenizers[{}]", where, i);
    if (list[i].is_null()) base::fail("{}: null", place);
    steps.push_back(make_step(list[i], is_last && i + 1 == list.size(), place));
    // Where the start of the text is behind such a step is a matter of its library's bookkeeping.
    if (moved && steps.back()->asks_for_start())
      base::fail("{}: prepend_scheme \"first\" behind ByteLevel or Metaspace is not supported", place);
    moved = moved || steps.back()->moves_start();
  }
  return make_pre_tokenizer_sequence(std::move(steps));
}

}  // namespace

std::unique_ptr<PreTokenizer> make_pre_tokenizer_sequence(std::vector<std::unique_ptr<PreTokenizer>> steps) {
  return std::make_unique<PreTokenizerSequence>(std::move(steps));
}

std::unique_ptr<PreTokenizer> make_pre_tokenizer(const Json& json, const std::string& where) {
  if (json.is_null()) return nullptr;
  auto whole = make_step(json, true, where);
  if (whole->num_steps() > kMaxSteps)
    base::fail("{}: {} steps; at most {} are supported", where, whole->num_steps(), kMaxSteps);
  if (whole->num_spellings() > kMaxSpellings)
    base::fail("{}: {} ByteLevel steps before the last; at most {} are supported", where,
               whole->num_spellings(), kMaxSpellings);
  return whole;
}

}  // namespace pleat::data
