#include "train/vocabulary.h"

#include "data/byte_tokenizer.h"
#include "data/tokenizer/open_tokenizer.h"

namespace pleat::train {
namespace {

const data::TextTokenizer* as_text(const data::Tokenizer& t) {
  return dynamic_cast<const data::TextTokenizer*>(&t);
}

}  // namespace

Vocabulary::Vocabulary(const std::string& name) {
  if (name == "byte")
    tokenizer_ = std::make_unique<data::ByteTokenizer>();
  else
    tokenizer_ = data::open_tokenizer(name);
}

std::vector<int32_t> Vocabulary::encode(std::string_view text, bool special) const {
  data::EncodeOptions options;
  options.add_special_tokens = special;
  if (const data::TextTokenizer* t = as_text(*tokenizer_)) return t->encode(text, options);
  return tokenizer_->encode(text);
}

std::string Vocabulary::decode(std::span<const int32_t> tokens) const {
  data::DecodeOptions options;
  options.skip_special_tokens = options.keep_broken_utf8 = options.skip_unknown_ids = true;
  if (const data::TextTokenizer* t = as_text(*tokenizer_)) return t->decode(tokens, options);
  return tokenizer_->decode(tokens);
}

std::optional<int32_t> Vocabulary::end_of_document() const {
  const data::TextTokenizer* t = as_text(*tokenizer_);
  if (t && !t->has_end_of_document()) return std::nullopt;
  return tokenizer_->end_of_document();
}

std::optional<int32_t> Vocabulary::prefix_token() const {
  const std::vector<int32_t> bare = encode("", true);
  return bare.empty() ? end_of_document() : bare.front();
}

}  // namespace pleat::train
