// Byte-level tokenizer: ids 0..255 are the bytes themselves, 256 ends a document. No table, no file, and
// every byte string is its own exact encoding, valid UTF-8 or not.
#pragma once

#include "data/tokenizer.h"

namespace pleat::data {

class ByteTokenizer final : public Tokenizer {
 public:
  static constexpr int32_t kEndOfDocument = 256;
  static constexpr int64_t kVocabSize = 257;

  std::string name() const override { return "byte"; }
  int64_t vocab_size() const override { return kVocabSize; }
  int32_t end_of_document() const override { return kEndOfDocument; }
  std::vector<int32_t> encode(std::string_view text) const override;
  std::string decode(std::span<const int32_t> tokens) const override;
  bool can_cut_anywhere() const override { return true; }
};

}  // namespace pleat::data
