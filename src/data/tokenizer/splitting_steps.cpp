#include "data/tokenizer/splitting_steps.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "data/tokenizer/character_sets.h"
#include "data/tokenizer/split_behavior.h"
#include "data/tokenizer/text_pattern.h"
#include "data/tokenizer/utf8.h"

namespace pleat::data {
namespace {

class Split final : public PreTokenizer {
 public:
  Split(const Json& json, const std::string& where)
      : pattern_(need(json, "pattern", where), where + ".pattern", TextPattern::Empty::FitsEverywhere),
        invert_(bool_at(json, "invert", false, where)),
        behavior_(split_behavior_of(string_at(json, "behavior", where), where)) {}
  void run(std::string_view piece, bool at_start, Regex::Workspace& workspace,
           PieceSink& sink) const override {
    split(piece, at_start, behavior_, invert_, sink,
          [&](const auto& visit) { pattern_.for_each_part(piece, workspace, visit); });
  }

 private:
  TextPattern pattern_;
  bool invert_;
  SplitBehavior behavior_;
};

// Words, and what is neither word nor space; spaces are dropped.
class Whitespace final : public PreTokenizer {
 public:
  explicit Whitespace(const std::string& where) : words_(R"(\w+|[^\w\s]+)", PatternDialect::Rust, where) {}
  void run(std::string_view piece, bool at_start, Regex::Workspace& workspace,
           PieceSink& sink) const override {
    split(piece, at_start, SplitBehavior::Removed, true, sink,
          [&](const auto& visit) { for_each_part(words_, piece, workspace, visit); });
  }

 private:
  Regex words_;
};

// Each character of a set is a match of its own.
class SplitAtCharacters final : public PreTokenizer {
 public:
  using Contains = bool (*)(uint32_t code_point);
  SplitAtCharacters(Contains contains, SplitBehavior behavior) : contains_(contains), behavior_(behavior) {}
  void run(std::string_view piece, bool at_start, Regex::Workspace&, PieceSink& sink) const override {
    split(piece, at_start, behavior_, false, sink, [&](const auto& visit) {
      size_t done = 0;
      for (size_t at = 0; at < piece.size();) {
        const size_t begin = at;
        if (!contains_(next_code_point(piece, at))) continue;
        if (begin > done) visit(done, begin, false);
        visit(begin, at, true);
        done = at;
      }
      if (done < piece.size()) visit(done, piece.size(), false);
    });
  }

 private:
  Contains contains_;
  SplitBehavior behavior_;
};

class Delimiter final : public PreTokenizer {
 public:
  explicit Delimiter(uint32_t character) { append_code_point(delimiter_, character); }
  void run(std::string_view piece, bool at_start, Regex::Workspace&, PieceSink& sink) const override {
    for (size_t begin = 0; begin < piece.size();) {
      const size_t end = std::min(piece.find(delimiter_, begin), piece.size());
      if (end > begin) sink.take(piece.substr(begin, end - begin), at_start && begin == 0);
      begin = end + delimiter_.size();
    }
  }

 private:
  std::string delimiter_;
};

class FixedLength final : public PreTokenizer {
 public:
  FixedLength(const Json& json, const std::string& where)
      : length_(find(json, "length") == nullptr ? 5 : integer_at(json, "length", where)) {
    if (length_ < 1) base::fail("{}.length: {}; at least 1 is needed", where, length_);
  }
  void run(std::string_view piece, bool at_start, Regex::Workspace&, PieceSink& sink) const override {
    for (size_t begin = 0; begin < piece.size();) {
      size_t end = begin;
      for (int64_t i = 0; i < length_ && end < piece.size(); ++i) next_code_point(piece, end);
      sink.take(piece.substr(begin, end - begin), at_start && begin == 0);
      begin = end;
    }
  }

 private:
  int64_t length_;
};

}  // namespace

std::unique_ptr<PreTokenizer> make_splitting_step(const std::string& type, const Json& json,
                                                  const std::string& where) {
  if (type == "Split") {
    only_keys(json, {"type", "pattern", "behavior", "invert"}, where);
    return std::make_unique<Split>(json, where);
  }
  if (type == "Whitespace") {
    only_keys(json, {"type"}, where);
    return std::make_unique<Whitespace>(where);
  }
  if (type == "WhitespaceSplit") {
    only_keys(json, {"type"}, where);
    return std::make_unique<SplitAtCharacters>(&is_white_space, SplitBehavior::Removed);
  }
  if (type == "Punctuation") {
    only_keys(json, {"type", "behavior"}, where);
    const SplitBehavior behavior = find(json, "behavior") == nullptr
                                       ? SplitBehavior::Isolated
                                       : split_behavior_of(string_at(json, "behavior", where), where);
    return std::make_unique<SplitAtCharacters>(&is_punctuation, behavior);
  }
  if (type == "Digits") {
    only_keys(json, {"type", "individual_digits"}, where);
    return std::make_unique<SplitAtCharacters>(&is_number, bool_at(json, "individual_digits", where)
                                                               ? SplitBehavior::Isolated
                                                               : SplitBehavior::Contiguous);
  }
  if (type == "BertPreTokenizer") {
    only_keys(json, {"type"}, where);
    std::vector<std::unique_ptr<PreTokenizer>> steps;
    steps.push_back(std::make_unique<SplitAtCharacters>(&is_white_space, SplitBehavior::Removed));
    steps.push_back(std::make_unique<SplitAtCharacters>(&is_punctuation, SplitBehavior::Isolated));
    return make_pre_tokenizer_sequence(std::move(steps));
  }
  if (type == "CharDelimiterSplit" || type == "Delimiter") {
    only_keys(json, {"type", "delimiter"}, where);
    return std::make_unique<Delimiter>(character_at(json, "delimiter", where));
  }
  if (type == "FixedLength") {
    only_keys(json, {"type", "length"}, where);
    return std::make_unique<FixedLength>(json, where);
  }
  return nullptr;
}

}  // namespace pleat::data
