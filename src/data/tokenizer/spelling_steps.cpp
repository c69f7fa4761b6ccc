#include "data/tokenizer/spelling_steps.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "data/tokenizer/byte_alphabet.h"
#include "data/tokenizer/split_behavior.h"
#include "data/tokenizer/utf8.h"

namespace pleat::data {

const std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

namespace {

class Metaspace final : public PreTokenizer {
 public:
  Metaspace(const Json& json, const std::string& where) {
    append_code_point(mark_, character_at(json, "replacement", where));
    const bool add_prefix_space = bool_at(json, "add_prefix_space", true, where);
    scheme_ = add_prefix_space ? "always" : "never";
    if (find(json, "prepend_scheme") != nullptr) {
      scheme_ = string_at(json, "prepend_scheme", where);
      if (scheme_ != "always" && scheme_ != "never" && scheme_ != "first")
        base::fail("{}.prepend_scheme: \"{}\" is not supported; always, first and never are", where,
                   shown(scheme_));
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
  bool moves_start() const override { return true; }

 private:
  std::string mark_;
  std::string scheme_;
  bool split_ = true;
};

class ByteLevel final : public PreTokenizer {
 public:
  ByteLevel(const Json& json, bool is_last, const std::string& where)
      : is_last_(is_last), add_prefix_space_(bool_at(json, "add_prefix_space", where)) {
    if (bool_at(json, "use_regex", true, where))
      regex_.emplace(kGpt2Pattern, PatternDialect::Oniguruma, where);
  }
  void run(std::string_view piece, bool at_start, Regex::Workspace& workspace,
           PieceSink& sink) const override {
    if (is_last_) {
      cut(piece, at_start, workspace, sink);
    } else {
      Speller speller(sink);
      cut(piece, at_start, workspace, speller);
    }
  }
  bool ends_in_bytes() const override { return is_last_; }
  bool moves_start() const override { return true; }
  size_t num_spellings() const override { return is_last_ ? 0 : 1; }

 private:
  class Speller final : public PieceSink {
   public:
    explicit Speller(PieceSink& sink) : sink_(sink) {}
    void take(std::string_view piece, bool at_start) override {
      std::string spelled;
      append_byte_characters(spelled, piece);
      sink_.take(spelled, at_start);
    }

   private:
    PieceSink& sink_;
  };

  void cut(std::string_view piece, bool at_start, Regex::Workspace& workspace, PieceSink& sink) const {
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

  bool is_last_;
  bool add_prefix_space_;
  std::optional<Regex> regex_;
};

}  // namespace

std::unique_ptr<PreTokenizer> make_spelling_step(const std::string& type, const Json& json, bool is_last,
                                                 const std::string& where) {
  if (type == "Metaspace") {
    // str_rep repeats the replacement in old files.
    only_keys(json, {"type", "replacement", "str_rep", "add_prefix_space", "prepend_scheme", "split"}, where);
    return std::make_unique<Metaspace>(json, where);
  }
  if (type == "ByteLevel") {
    // trim_offsets concerns positions in the text only, which are not reported.
    only_keys(json, {"type", "add_prefix_space", "trim_offsets", "use_regex"}, where);
    return std::make_unique<ByteLevel>(json, is_last, where);
  }
  return nullptr;
}

}  // namespace pleat::data
