#include "data/byte_tokenizer.h"

#include "base/error.h"

namespace pleat::data {

std::vector<int32_t> ByteTokenizer::encode(std::string_view text) const {
  std::vector<int32_t> tokens(text.size());
  for (size_t i = 0; i < text.size(); ++i) tokens[i] = static_cast<unsigned char>(text[i]);
  return tokens;
}

std::string ByteTokenizer::decode(std::span<const int32_t> tokens) const {
  std::string text;
  text.reserve(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    const int32_t token = tokens[i];
    if (token < 0 || token >= kVocabSize)
      base::fail("byte tokenizer: id {} at position {} lies outside its vocabulary of {}", token, i,
                 kVocabSize);
    if (token != kEndOfDocument) text.push_back(static_cast<char>(token));
  }
  return text;
}

}  // namespace pleat::data
