#include "data/byte_tokenizer.h"

#include "base/error.h"
#include "base/hash.h"
#include "data/tokenizer/utf8.h"

namespace pleat::data {

std::string ByteTokenizer::tokenizer_hash() const {
  return base::to_hex(base::sha256(std::string_view("pleat byte tokenizer, 257 ids")));
}

std::optional<int32_t> ByteTokenizer::id_of(std::string_view token) const {
  if (token == kEndSpelling) return kEndOfDocument;
  if (token.size() == 1) return static_cast<unsigned char>(token[0]);
  return std::nullopt;
}

std::vector<int32_t> ByteTokenizer::encode(std::string_view text, const EncodeOptions&) const {
  std::vector<int32_t> tokens(text.size());
  for (size_t i = 0; i < text.size(); ++i) tokens[i] = static_cast<unsigned char>(text[i]);
  return tokens;
}

std::string ByteTokenizer::decode(std::span<const int32_t> tokens, const DecodeOptions& options) const {
  std::string text;
  text.reserve(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    const int32_t token = tokens[i];
    if (token < 0 || token >= kVocabSize) {
      if (options.skip_unknown_ids) continue;
      base::fail("byte tokenizer: id {} at position {} lies outside its vocabulary of {}", token, i,
                 kVocabSize);
    }
    if (token != kEndOfDocument)
      text.push_back(static_cast<char>(token));
    else if (!options.skip_special_tokens)
      text += kEndSpelling;
  }
  return options.keep_broken_utf8 ? text : replace_broken_utf8(text);
}

}  // namespace pleat::data
