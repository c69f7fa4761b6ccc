// Cuts a dataset into training samples of one fixed length.
//
// Packing::Stream. The token stream is the .bin as it stands: all documents back to back in document order (the writer ended
// each with its end-of-document token; the sampler adds none). Sample i covers stream tokens
// [i * L, i * L + L], L = sequence length: L inputs and, shifted by one, L labels. Neighbours share one
// token, as label here and as input there. An epoch has floor((N - 1) / L) samples; the tokens after the
// last whole sample are not used.
//
// Packing::Whole and WholeDrop. No document is cut: sample i holds the documents that whole_documents.h put
// into sequence i, one after the other. An epoch holds every token once. The last token of a document is an
// input without a label. What is left of the sample is padding: it repeats tokens from the front, as a
// document of its own, so that a router sends it where it sends text; it is not valid and counts nowhere.
//
// The order in an epoch is a permutation keyed by (seed, epoch).
//
// All state is a DataPosition. A sample is a pure function of (dataset, options, position): resuming from a
// stored position continues exactly.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "data/indexed_dataset.h"
#include "data/whole_documents.h"

namespace pleat::data {

enum class Packing {
  Stream,     // back to back, cut where a sample ends
  Whole,      // no document is cut; one that is longer than a sample is an error
  WholeDrop,  // as Whole; longer ones are left out
};
// stream, whole or whole_drop; throws naming these for anything else.
Packing packing_of(std::string_view name);

struct SamplerOptions {
  int64_t seq_len = 0;
  uint64_t seed = 0;
  bool shuffle = true;
  // On: a token sees only its own document, positions restart with each document, and the label that would
  // lead from the last token of a document to the first token of the next is masked out.
  // Off: a sample is one run of text, whatever documents it holds.
  bool isolate_documents = true;  // needed for whole documents
  Packing packing = Packing::Stream;
};

// Where training stands in the data; goes into checkpoints.
struct DataPosition {
  int64_t epoch = 0;
  int64_t next_sample = 0;
  bool operator==(const DataPosition&) const = default;
};

// Where a sample is written; every span has seq_len elements and belongs to the caller.
struct Sample {
  std::span<int32_t> tokens;
  std::span<int32_t> labels;
  // Index in this sample of the first token of the document this token belongs to (0 when the document
  // began earlier, or when documents are not isolated): attention may look back that far.
  std::span<int32_t> doc_start;
  // j - doc_start[j].
  std::span<int32_t> positions;
  // 1 where the label counts: the dataset's own mask, where it has one, without labels across documents.
  std::span<uint8_t> loss_mask;
  // 1 for real tokens, 0 for padding.
  std::span<uint8_t> valid;
};

// Memory for `num_samples` samples in a row, each array contiguous over the samples.
class SampleStorage {
 public:
  SampleStorage(int64_t num_samples, int64_t seq_len);
  Sample sample(int64_t sample_idx);

 private:
  int64_t num_samples_, seq_len_;
  std::vector<int32_t> tokens_, labels_, doc_start_, positions_;
  std::vector<uint8_t> loss_mask_, valid_;
};

class Sampler {
 public:
  // `dataset` must outlive the sampler. Throws when it holds fewer than seq_len + 1 tokens, or of whole
  // documents what WholeDocuments throws. Copies share one table.
  Sampler(const IndexedDataset& dataset, const SamplerOptions& options);

  const SamplerOptions& options() const { return options_; }
  int64_t num_samples_per_epoch() const { return num_samples_; }
  // Tokens that an epoch reads as inputs, without padding.
  int64_t num_tokens_per_epoch() const;
  // Where documents are not cut; else nothing.
  const WholeDocuments* whole_documents() const { return whole_.get(); }

  // Writes the sample at `position` and moves the position on. Allocates nothing; may run in many threads.
  // Throws when the position is impossible for this dataset.
  void next(DataPosition& position, Sample& sample) const;

  // Writes the sample at `position` without moving it.
  void read(const DataPosition& position, Sample& sample) const;

  // The position `num_samples` >= 0 samples later, in O(1).
  DataPosition advanced(const DataPosition& position, int64_t num_samples) const;

  // Which sample stands at `position`: the i of "sample i" above.
  int64_t window_at(const DataPosition& position) const;

 private:
  void check(const DataPosition& position) const;
  void read_whole(int64_t sequence_idx, Sample& sample) const;

  const IndexedDataset& dataset_;
  SamplerOptions options_;
  int64_t num_samples_ = 0;
  std::shared_ptr<const WholeDocuments> whole_;
};

}  // namespace pleat::data
