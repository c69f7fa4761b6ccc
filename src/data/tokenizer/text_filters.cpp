#include "data/tokenizer/text_filters.h"

#include <nlohmann/json.hpp>

#include "data/tokenizer/byte_alphabet.h"
#include "data/tokenizer/character_sets.h"
#include "data/tokenizer/utf8.h"

namespace pleat::data {
namespace {

class StripSpace final : public Normalizer {
 public:
  StripSpace(bool left, bool right) : left_(left), right_(right) {}
  void apply(std::string& text, Regex::Workspace&) const override {
    size_t begin = 0, end = text.size();
    while (left_ && begin < end) {
      size_t next = begin;
      if (!is_white_space(next_code_point(text, next))) break;
      begin = next;
    }
    while (right_ && end > begin) {
      const size_t before = previous_character(text, end);
      size_t at = before;
      if (!is_white_space(next_code_point(text, at))) break;
      end = before;
    }
    text.resize(end);
    text.erase(0, begin);
  }
  bool may_remove_start() const override { return left_; }

 private:
  bool left_, right_;
};

class StripAccents final : public Normalizer {
 public:
  void apply(std::string& text, Regex::Workspace&) const override {
    size_t kept = 0;
    for (size_t at = 0; at < text.size();) {
      const size_t begin = at;
      if (is_combining_mark(next_code_point(text, at))) continue;
      for (size_t i = begin; i < at; ++i) text[kept++] = text[i];
    }
    text.resize(kept);
  }
  bool may_remove_start() const override { return true; }
};

class SpellBytes final : public Normalizer {
 public:
  void apply(std::string& text, Regex::Workspace&) const override {
    std::string spelled;
    spelled.reserve(text.size() + text.size() / 4);
    append_byte_characters(spelled, text);
    text = std::move(spelled);
  }
  size_t num_spellings() const override { return 1; }
};

}  // namespace

std::unique_ptr<Normalizer> make_text_filter(const std::string& type, const Json& json,
                                             const std::string& where) {
  if (type == "Strip") {
    only_keys(json, {"type", "strip_left", "strip_right"}, where);
    return std::make_unique<StripSpace>(bool_at(json, "strip_left", where),
                                        bool_at(json, "strip_right", where));
  }
  if (type == "StripAccents") {
    only_keys(json, {"type"}, where);
    return std::make_unique<StripAccents>();
  }
  if (type == "ByteLevel") {
    only_keys(json, {"type"}, where);
    return std::make_unique<SpellBytes>();
  }
  return nullptr;
}

}  // namespace pleat::data
