#include "data/tokenizer/normalizer.h"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/uniset.h>
#include <unicode/unistr.h>

#include <climits>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/error.h"
#include "data/tokenizer/character_sets.h"
#include "data/tokenizer/growth.h"
#include "data/tokenizer/text_filters.h"
#include "data/tokenizer/text_pattern.h"
#include "data/tokenizer/utf8.h"

namespace pleat::data {
namespace {

constexpr size_t kMostPrependedBytes = 256;

bool is_ascii(std::string_view text) {
  for (const char c : text)
    if (static_cast<unsigned char>(c) >= 0x80) return false;
  return true;
}

// The characters of Unicode 9, whose tables Hugging Face's library normalizes by; later ones are left as they
// are. U+0EBA got its combining class in Unicode 12.
const icu::UnicodeSet& characters_of_unicode_9() {
  static const icu::UnicodeSet* set = [] {
    UErrorCode error = U_ZERO_ERROR;
    auto* made = new icu::UnicodeSet(UNICODE_STRING_SIMPLE("[[:age=9.0:]-[\\u0EBA]]"), error);
    PLEAT_CHECK(U_SUCCESS(error), "ICU does not know the age of characters: {}", u_errorName(error));
    made->freeze();
    return made;
  }();
  return *set;
}

class UnicodeForm final : public Normalizer {
 public:
  explicit UnicodeForm(const std::string& form) {
    UErrorCode error = U_ZERO_ERROR;
    const icu::Normalizer2* whole = nullptr;
    if (form == "NFC") whole = icu::Normalizer2::getNFCInstance(error);
    if (form == "NFD") whole = icu::Normalizer2::getNFDInstance(error);
    if (form == "NFKC") whole = icu::Normalizer2::getNFKCInstance(error);
    if (form == "NFKD") whole = icu::Normalizer2::getNFKDInstance(error);
    check(error);
    form_ = std::make_unique<icu::FilteredNormalizer2>(*whole, characters_of_unicode_9());
  }
  void apply(std::string& text, Regex::Workspace&) const override {
    if (is_ascii(text)) return;
    if (text.size() > INT_MAX / 4)
      base::fail("a document of {} bytes is too long to normalize; split the text", text.size());
    UErrorCode error = U_ZERO_ERROR;
    const icu::StringPiece in(text.data(), static_cast<int32_t>(text.size()));
    if (form_->isNormalizedUTF8(in, error)) return;
    std::string out;
    out.reserve(text.size());
    icu::StringByteSink<std::string> sink(&out);
    form_->normalizeUTF8(0, in, sink, nullptr, error);
    check(error);
    text = std::move(out);
  }

 private:
  static void check(UErrorCode error) {
    if (U_FAILURE(error)) base::fail("ICU cannot normalize text: {}", u_errorName(error));
  }
  std::unique_ptr<icu::FilteredNormalizer2> form_;
};

// Character by character: no rule that looks at neighbours (the final sigma) applies.
class Lowercase final : public Normalizer {
 public:
  void apply(std::string& text, Regex::Workspace&) const override {
    std::string out;
    out.reserve(text.size());
    for (size_t at = 0; at < text.size();) {
      const uint32_t c = next_code_point(text, at);
      if (c == 0x130) {
        out += "i\xcc\x87";  // the only character whose full mapping is longer
      } else {
        append_code_point(out, to_lower_case(c));
      }
    }
    text = std::move(out);
  }
};

class Prepend final : public Normalizer {
 public:
  Prepend(std::string what, const std::string& where) : what_(std::move(what)) {
    if (what_.size() > kMostPrependedBytes)
      base::fail("{}: \"prepend\" has {} bytes; at most {} are allowed", where, what_.size(),
                 kMostPrependedBytes);
  }
  void apply(std::string& text, Regex::Workspace&) const override {
    if (!text.empty()) text.insert(0, what_);
  }

 private:
  std::string what_;
};

class Replace final : public Normalizer {
 public:
  Replace(const Json& json, const std::string& where)
      : pattern_(need(json, "pattern", where), where + ".pattern"),
        content_(string_at(json, "content", where)) {}
  void apply(std::string& text, Regex::Workspace& workspace) const override {
    std::string out;
    out.reserve(text.size() + text.size() / 4);
    pattern_.for_each_part(text, workspace, [&](size_t begin, size_t end, bool is_match) {
      if (is_match)
        out += content_;
      else
        out.append(text, begin, end - begin);
      check_growth("normalizer", text.size(), out.size());
    });
    text = std::move(out);
  }
  bool may_remove_start() const override { return content_.empty(); }

 private:
  TextPattern pattern_;
  std::string content_;
};

class NormalizerSequence final : public Normalizer {
 public:
  explicit NormalizerSequence(std::vector<std::unique_ptr<Normalizer>> parts) : parts_(std::move(parts)) {}
  void apply(std::string& text, Regex::Workspace& workspace) const override {
    const size_t before = text.size();
    for (const auto& part : parts_) {
      part->apply(text, workspace);
      check_growth("normalizer", before, text.size());
    }
  }
  bool may_remove_start() const override {
    for (const auto& part : parts_)
      if (part->may_remove_start()) return true;
    return false;
  }
  size_t num_spellings() const override {
    size_t sum = 0;
    for (const auto& part : parts_) sum += part->num_spellings();
    return sum;
  }
  std::vector<std::unique_ptr<Normalizer>> take() { return std::move(parts_); }

 private:
  std::vector<std::unique_ptr<Normalizer>> parts_;
};

}  // namespace

std::unique_ptr<Normalizer> make_normalizer(const Json& json, const std::string& where) {
  if (json.is_null()) return nullptr;
  const std::string type = type_of(json, where);
  if (type == "NFC" || type == "NFD" || type == "NFKC" || type == "NFKD") {
    only_keys(json, {"type"}, where);
    return std::make_unique<UnicodeForm>(type);
  }
  if (type == "Lowercase") {
    only_keys(json, {"type"}, where);
    return std::make_unique<Lowercase>();
  }
  if (type == "Prepend") {
    only_keys(json, {"type", "prepend"}, where);
    return std::make_unique<Prepend>(string_at(json, "prepend", where), where);
  }
  if (type == "Replace") {
    only_keys(json, {"type", "pattern", "content"}, where);
    return std::make_unique<Replace>(json, where);
  }
  if (type == "Sequence") {
    only_keys(json, {"type", "normalizers"}, where);
    const Json& list = need(json, "normalizers", where);
    if (!list.is_array()) base::fail("{}.normalizers: an array is needed", where);
    std::vector<std::unique_ptr<Normalizer>> parts;
    for (size_t i = 0; i < list.size(); ++i) {
      const std::string place = fmt::format("{}.normalizers[{}]", where, i);
      if (list[i].is_null()) base::fail("{}: null", place);
      std::unique_ptr<Normalizer> part = make_normalizer(list[i], place);
      // One level, so that its bound on growth holds for all of them together.
      if (auto* inner = dynamic_cast<NormalizerSequence*>(part.get()))
        for (std::unique_ptr<Normalizer>& own : inner->take()) parts.push_back(std::move(own));
      else
        parts.push_back(std::move(part));
    }
    return std::make_unique<NormalizerSequence>(std::move(parts));
  }
  if (auto filter = make_text_filter(type, json, where)) return filter;
  base::fail(
      "{}: normalizer \"{}\" is not supported; NFC, NFD, NFKC, NFKD, Lowercase, Prepend, Replace, Strip, "
      "StripAccents, ByteLevel and Sequence are",
      where, shown(type));
}

}  // namespace pleat::data
