// Byte-level tokenizer: ids 0..255 are the bytes themselves, 256 ends a document. No table, no file, and
// every byte string is its own exact encoding, valid UTF-8 or not.
#pragma once

#include "data/tokenizer/text_tokenizer.h"

namespace pleat::data {

class ByteTokenizer final : public TextTokenizer {
 public:
  static constexpr int32_t kEndOfDocument = 256;
  static constexpr int64_t kVocabSize = 257;
  static constexpr const char* kEndSpelling = "<|endoftext|>";  // never found in text

  std::string name() const override { return "byte"; }
  std::string kind() const override { return "byte"; }
  std::string tokenizer_hash() const override;
  int64_t vocab_size() const override { return kVocabSize; }
  std::optional<int32_t> id_of(std::string_view token) const override;
  std::vector<SpecialToken> special_tokens() const override { return {{kEndSpelling, kEndOfDocument}}; }

  using TextTokenizer::encode;
  std::vector<int32_t> encode(std::string_view text, const EncodeOptions& options) const override;
  std::string decode(std::span<const int32_t> tokens, const DecodeOptions& options) const override;
  // The bytes as they are, broken UTF-8 included.
  std::string decode(std::span<const int32_t> tokens) const override {
    return decode(tokens, {.skip_special_tokens = true, .keep_broken_utf8 = true});
  }
  bool can_cut_anywhere() const override { return true; }

 protected:
  std::optional<int32_t> own_end_of_document() const override { return kEndOfDocument; }
};

}  // namespace pleat::data
