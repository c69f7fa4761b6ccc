#include "data/tokenizer/decoder.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "data/tokenizer/byte_alphabet.h"
#include "data/tokenizer/growth.h"
#include "data/tokenizer/text_pattern.h"
#include "data/tokenizer/utf8.h"

namespace pleat::data {
namespace {

using Tokens = std::vector<std::string>;

std::string joined(const Tokens& tokens) {
  std::string text;
  for (const std::string& token : tokens) text += token;
  return text;
}

size_t total_bytes(const Tokens& tokens) {
  size_t total = 0;
  for (const std::string& token : tokens) total += token.size();
  return total;
}

class ByteLevelDecoder final : public TokenDecoder {
 public:
  void apply(Tokens& tokens, bool keep_broken_utf8, Regex::Workspace&) const override {
    std::string bytes;
    for (const std::string& token : tokens)
      if (!is_valid_utf8(token) || !append_bytes_of_characters(bytes, token)) bytes += token;
    tokens.assign(1, keep_broken_utf8 ? std::move(bytes) : replace_broken_utf8(bytes));
  }
};

class ByteFallbackDecoder final : public TokenDecoder {
 public:
  void apply(Tokens& tokens, bool keep_broken_utf8, Regex::Workspace&) const override {
    Tokens out;
    std::string bytes;
    const auto flush = [&] {
      if (bytes.empty()) return;
      if (keep_broken_utf8 || is_valid_utf8(bytes)) {
        out.push_back(bytes);
      } else {
        for (size_t i = 0; i < bytes.size(); ++i) out.emplace_back("\xef\xbf\xbd");
      }
      bytes.clear();
    };
    for (std::string& token : tokens) {
      if (const int byte = byte_of(token); byte >= 0) {
        bytes.push_back(static_cast<char>(byte));
      } else {
        flush();
        out.push_back(std::move(token));
      }
    }
    flush();
    tokens = std::move(out);
  }

 private:
  // <0xNN>; -1 for anything else.
  static int byte_of(const std::string& token) {
    if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
    int value = 0;
    for (size_t i = 3; i < 5; ++i) {
      const char c = token[i];
      int digit = 0;
      if (c >= '0' && c <= '9') {
        digit = c - '0';
      } else if (c >= 'a' && c <= 'f') {
        digit = c - 'a' + 10;
      } else if (c >= 'A' && c <= 'F') {
        digit = c - 'A' + 10;
      } else {
        return -1;
      }
      value = value * 16 + digit;
    }
    return value;
  }
};

class FuseDecoder final : public TokenDecoder {
 public:
  void apply(Tokens& tokens, bool, Regex::Workspace&) const override { tokens.assign(1, joined(tokens)); }
};

class ReplaceDecoder final : public TokenDecoder {
 public:
  ReplaceDecoder(const Json& json, const std::string& where)
      : pattern_(need(json, "pattern", where), where + ".pattern"),
        content_(string_at(json, "content", where)) {}
  void apply(Tokens& tokens, bool, Regex::Workspace& workspace) const override {
    const size_t before = total_bytes(tokens);
    size_t made = 0;
    for (std::string& token : tokens) {
      std::string out, valid;
      const std::string_view text = as_valid_utf8(token, valid);
      pattern_.for_each_part(text, workspace, [&](size_t begin, size_t end, bool is_match) {
        if (is_match)
          out += content_;
        else
          out += text.substr(begin, end - begin);
        check_growth("decoder", before, made + out.size());
      });
      made += out.size();
      token = std::move(out);
    }
  }

 private:
  TextPattern pattern_;
  std::string content_;
};

class StripDecoder final : public TokenDecoder {
 public:
  StripDecoder(const Json& json, const std::string& where)
      : start_(integer_at(json, "start", where)), stop_(integer_at(json, "stop", where)) {
    append_code_point(content_, character_at(json, "content", where));
    if (start_ < 0 || stop_ < 0) base::fail("{}: start and stop must not be negative", where);
  }
  void apply(Tokens& tokens, bool, Regex::Workspace&) const override {
    for (std::string& token : tokens) {
      std::string_view left = token;
      for (int64_t i = 0; i < start_ && left.starts_with(content_); ++i) left.remove_prefix(content_.size());
      for (int64_t i = 0; i < stop_ && left.ends_with(content_); ++i) left.remove_suffix(content_.size());
      token = std::string(left);
    }
  }

 private:
  std::string content_;
  int64_t start_, stop_;
};

class MetaspaceDecoder final : public TokenDecoder {
 public:
  MetaspaceDecoder(const Json& json, const std::string& where) {
    append_code_point(mark_, character_at(json, "replacement", where));
    drops_first_ = bool_at(json, "add_prefix_space", true, where);
    if (find(json, "prepend_scheme") != nullptr)
      drops_first_ = string_at(json, "prepend_scheme", where) != "never";
  }
  void apply(Tokens& tokens, bool, Regex::Workspace&) const override {
    for (size_t i = 0; i < tokens.size(); ++i) {
      std::string out;
      const std::string& token = tokens[i];
      for (size_t at = 0; at < token.size();) {
        if (std::string_view(token).substr(at).starts_with(mark_)) {
          if (i > 0 || !drops_first_) out += ' ';
          at += mark_.size();
        } else {
          out += token[at++];
        }
      }
      tokens[i] = std::move(out);
    }
  }

 private:
  std::string mark_;
  bool drops_first_ = true;
};

class DecoderSequence final : public TokenDecoder {
 public:
  explicit DecoderSequence(std::vector<std::unique_ptr<TokenDecoder>> parts) : parts_(std::move(parts)) {}
  void apply(Tokens& tokens, bool keep_broken_utf8, Regex::Workspace& workspace) const override {
    const size_t before = total_bytes(tokens);
    for (const auto& part : parts_) {
      part->apply(tokens, keep_broken_utf8, workspace);
      check_growth("decoder", before, total_bytes(tokens));
    }
  }

 private:
  std::vector<std::unique_ptr<TokenDecoder>> parts_;
};

constexpr size_t kMostDecoders = 64;

// The decoders of a sequence, those of sequences in it too: one level, so that its bound on growth holds for
// all of them together.
void add_decoders(const Json& json, const std::string& where,
                  std::vector<std::unique_ptr<TokenDecoder>>& parts) {
  only_keys(json, {"type", "decoders"}, where);
  const Json& list = need(json, "decoders", where);
  if (!list.is_array()) base::fail("{}.decoders: an array is needed", where);
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string place = fmt::format("{}.decoders[{}]", where, i);
    if (list[i].is_null()) base::fail("{}: null", place);
    if (type_of(list[i], place) == "Sequence") {
      add_decoders(list[i], place, parts);
      continue;
    }
    if (parts.size() == kMostDecoders)
      base::fail("{}: more than {} decoders in a row; at most that many are supported", where, kMostDecoders);
    parts.push_back(make_decoder(list[i], place));
  }
}

}  // namespace

std::unique_ptr<TokenDecoder> make_decoder(const Json& json, const std::string& where) {
  if (json.is_null()) return nullptr;
  const std::string type = type_of(json, where);
  if (type == "ByteLevel") {
    only_keys(json, {"type", "add_prefix_space", "trim_offsets", "use_regex"}, where);
    return std::make_unique<ByteLevelDecoder>();
  }
  if (type == "ByteFallback") {
    only_keys(json, {"type"}, where);
    return std::make_unique<ByteFallbackDecoder>();
  }
  if (type == "Fuse") {
    only_keys(json, {"type"}, where);
    return std::make_unique<FuseDecoder>();
  }
  if (type == "Replace") {
    only_keys(json, {"type", "pattern", "content"}, where);
    return std::make_unique<ReplaceDecoder>(json, where);
  }
  if (type == "Strip") {
    only_keys(json, {"type", "content", "start", "stop"}, where);
    return std::make_unique<StripDecoder>(json, where);
  }
  if (type == "Metaspace") {
    only_keys(json, {"type", "replacement", "str_rep", "add_prefix_space", "prepend_scheme", "split"}, where);
    return std::make_unique<MetaspaceDecoder>(json, where);
  }
  if (type == "Sequence") {
    std::vector<std::unique_ptr<TokenDecoder>> parts;
    add_decoders(json, where, parts);
    return std::make_unique<DecoderSequence>(std::move(parts));
  }
  base::fail(
      "{}: decoder \"{}\" is not supported; ByteLevel, ByteFallback, Fuse, Replace, Strip, Metaspace and "
      "Sequence are",
      where, shown(type));
}

}  // namespace pleat::data
