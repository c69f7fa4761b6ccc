// The tokenizer of a model in use: text in, text out, and the tokens that begin and end a text.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/tokenizer/text_tokenizer.h"

namespace pleat::infer {

class Vocabulary {
 public:
  // "byte", or a file or folder data::open_tokenizer understands.
  explicit Vocabulary(const std::string& name);

  const data::TextTokenizer& tokenizer() const { return *tokenizer_; }
  // Tokens that stand for themselves and appear in no text.
  std::vector<data::SpecialToken> special_tokens() const { return tokenizer_->special_tokens(); }
  // `special`: with the begin and end tokens the tokenizer's file asks for.
  std::vector<int32_t> encode(std::string_view text, bool special) const;
  // Special tokens and ids that stand for nothing are left out; bytes that form no valid UTF-8 come out as
  // they are where that is possible.
  std::string decode(std::span<const int32_t> tokens) const;
  std::optional<int32_t> end_of_document() const;
  // What stands before a text without context: the begin token where texts get one, else end of document.
  std::optional<int32_t> prefix_token() const;

 private:
  std::unique_ptr<data::TextTokenizer> tokenizer_;
};

}  // namespace pleat::infer
