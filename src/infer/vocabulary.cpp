#include "infer/vocabulary.h"

#include "data/tokenizer/open_tokenizer.h"

namespace pleat::infer {

Vocabulary::Vocabulary(const std::string& name) : tokenizer_(data::open_tokenizer(name)) {}

std::vector<int32_t> Vocabulary::encode(std::string_view text, bool special) const {
  data::EncodeOptions options;
  options.add_special_tokens = special;
  return tokenizer_->encode(text, options);
}

std::string Vocabulary::decode(std::span<const int32_t> tokens) const {
  data::DecodeOptions options;
  options.skip_special_tokens = options.keep_broken_utf8 = options.skip_unknown_ids = true;
  return tokenizer_->decode(tokens, options);
}

std::optional<int32_t> Vocabulary::end_of_document() const {
  if (!tokenizer_->has_end_of_document()) return std::nullopt;
  return tokenizer_->end_of_document();
}

std::optional<int32_t> Vocabulary::prefix_token() const {
  const std::vector<int32_t> bare = encode("", true);
  return bare.empty() ? end_of_document() : bare.front();
}

}  // namespace pleat::infer
