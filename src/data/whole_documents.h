// Which documents stand in which sequence when none is cut.
//
// First-fit: documents are taken one after the other, and each goes into the first sequence that still has
// room for all of it. With shuffling they are taken in a random order keyed by the seed, else in file order.
// Sequences are filled for kGroupDocuments documents at a time, so that making the table needs little memory
// however large the dataset is; kept are 4 bytes per document and 8 per sequence.
//
// The table is a pure function of (lengths, options): any rank, at any time, has the same. What changes from
// epoch to epoch is the order of sequences, not what they hold.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/indexed_dataset.h"

namespace pleat::data {

class WholeDocuments {
 public:
  static constexpr int64_t kGroupDocuments = int64_t{1} << 20;

  struct Options {
    int64_t seq_len = 0;
    uint64_t seed = 0;
    bool shuffle = true;
    bool drop_long = false;  // leave out documents longer than a sequence; otherwise they are an error
    int64_t group_documents = kGroupDocuments;
  };

  // Throws when a document is too long, naming how many are and the longest, or when nothing is left. Empty
  // documents are passed over.
  WholeDocuments(const IndexedDataset& dataset, const Options& options);

  int64_t num_sequences() const { return static_cast<int64_t>(begin_.size()) - 1; }
  // Of one sequence, in their order in it.
  std::span<const uint32_t> documents(int64_t sequence_idx) const;

  int64_t num_documents() const { return static_cast<int64_t>(documents_.size()); }
  int64_t num_tokens() const { return num_tokens_; }  // of these
  int64_t num_dropped() const { return num_dropped_; }
  int64_t num_dropped_tokens() const { return num_dropped_tokens_; }
  // Share of the sequences' places that hold tokens.
  double filled() const;
  std::string text() const;  // all of this in a line

 private:
  std::vector<uint32_t> documents_;  // sequence after sequence
  std::vector<int64_t> begin_ = {0};
  int64_t seq_len_;
  int64_t num_tokens_ = 0, num_dropped_ = 0, num_dropped_tokens_ = 0;
};

}  // namespace pleat::data
