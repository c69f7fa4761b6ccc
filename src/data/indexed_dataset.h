// A Megatron `.bin/.idx` dataset: a flat array of tokens cut into documents, memory-mapped.
//
// Both files are validated when opened (index_view.h says what then holds) and neither is copied: opening
// and reading use O(1) memory of this process. Token ids are checked against the vocabulary at every read,
// since checking them at opening would read the whole .bin. Reading is const and may run in many threads.
//
// Beside them there may be PREFIX.json (dataset_info.h), which must then agree with the index, and, where it
// says so, PREFIX.mask.bin: one byte per token, 1 where the token counts as a label. A mask that nothing
// mentions is refused: it would be ignored.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "data/dataset_info.h"
#include "data/index_view.h"
#include "data/mapped_file.h"

namespace pleat::data {

// Throws saying which of `prefix`.bin and `prefix`.idx is not there.
void require_dataset(const std::string& prefix);

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
  const std::optional<DatasetInfo>& info() const { return info_; }
  bool has_loss_mask() const { return mask_file_.has_value(); }

  int64_t document_begin(int64_t document_idx) const { return index_.document_begin(document_idx); }
  int64_t document_of(int64_t token_idx) const { return index_.document_of(token_idx); }

  // Overwrites `out` with tokens [first, first + out.size()), across document boundaries. Allocates nothing.
  // Throws when the range leaves the dataset, an id is outside the vocabulary, or a file shrank.
  void read(int64_t first, std::span<int32_t> out) const;
  // The same of the loss mask, which must be there; throws on a byte that is neither 0 nor 1.
  void read_loss_mask(int64_t first, std::span<uint8_t> out) const;

  // .bin, .idx and, where there is one, .mask.bin.
  template <class Visit>
  void for_each_file(const Visit& visit) const {
    visit(bin_file_);
    visit(idx_file_);
    if (mask_file_) visit(*mask_file_);
  }

 private:
  void check_range(int64_t first, size_t count) const;

  std::string prefix_;
  int64_t vocab_size_;
  MappedFile bin_file_;
  MappedFile idx_file_;
  IndexView index_;
  std::optional<DatasetInfo> info_;
  std::optional<MappedFile> mask_file_;
};

}  // namespace pleat::data
