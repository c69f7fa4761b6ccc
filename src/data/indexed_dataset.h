// A Megatron `.bin/.idx` dataset: a flat array of tokens cut into documents, memory-mapped.
//
// Both files are validated when opened (index_view.h says what then holds) and neither is copied: opening
// and reading use O(1) memory of this process. Token ids are checked against the vocabulary at every read,
// since checking them at opening would read the whole .bin. Reading is const and may run in many threads.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "data/index_view.h"
#include "data/mapped_file.h"

namespace pleat::data {

class IndexedDataset {
 public:
  // Opens `prefix`.bin and `prefix`.idx. Every id read later must lie in [0, vocab_size).
  IndexedDataset(const std::string& prefix, int64_t vocab_size);

  const std::string& prefix() const { return prefix_; }
  int64_t vocab_size() const { return vocab_size_; }
  TokenType token_type() const { return index_.token_type(); }
  int64_t num_tokens() const { return index_.num_tokens(); }
  int64_t num_sequences() const { return index_.num_sequences(); }
  int64_t num_documents() const { return index_.num_documents(); }

  int64_t document_begin(int64_t document_idx) const { return index_.document_begin(document_idx); }
  int64_t document_of(int64_t token_idx) const { return index_.document_of(token_idx); }

  // Overwrites `out` with tokens [first, first + out.size()), across document boundaries. Allocates nothing.
  // Throws when the range leaves the dataset, an id is outside the vocabulary, or a file shrank.
  void read(int64_t first, std::span<int32_t> out) const;

 private:
  std::string prefix_;
  int64_t vocab_size_;
  MappedFile bin_file_;
  MappedFile idx_file_;
  IndexView index_;
};

}  // namespace pleat::data
