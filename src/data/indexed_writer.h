// Writes a Megatron `.bin/.idx` pair, streaming: memory does not grow with tokens or documents.
//
// Every document ends in the end-of-document token: end_document() appends it unless the document already
// ends in it. Readers therefore never add tokens, and the .bin is exactly the token stream of training.
// A document longer than one sequence can be (2^31 - 1 tokens) becomes several sequences.
//
// With a loss mask, PREFIX.mask.bin gets one byte per token: 1 where the token counts as a label, else 0.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>

#include "data/index_view.h"
#include "data/output_file.h"

namespace pleat::data {

// As Megatron chooses: uint16 below 65,500 ids, int32 from there on.
TokenType token_type_for(int64_t vocab_size);

class IndexedDatasetWriter {
 public:
  struct Options {
    int64_t vocab_size = 0;
    int32_t end_of_document = 0;
    int64_t max_sequence_tokens = std::numeric_limits<int32_t>::max();
    bool loss_mask = false;
  };
  struct Counts {
    int64_t num_documents = 0;
    int64_t num_sequences = 0;
    int64_t num_tokens = 0;       // end-of-document tokens included
    int64_t num_loss_tokens = 0;  // with a mask
  };

  IndexedDatasetWriter(const std::string& prefix, const Options& options);

  // Adds ids to the current document; throws when one lies outside [0, vocab_size), and then adds none.
  // With a mask, `mask` says for each whether it counts; without one it is empty.
  void append(std::span<const int32_t> tokens, std::span<const uint8_t> mask = {});
  // Ends the current document, which must hold at least one token. `end_counts`: whether the end-of-document
  // token, where one is added, counts as a label.
  void end_document(bool end_counts = true);

  // Makes all files durable and visible; the .idx is renamed last and is the commit point. Files that were
  // there before are replaced: the .idx goes first, so that no moment pairs an old .idx with a new .bin, and
  // a mask or description of what was there before does not stay. `describe` gives the text of PREFIX.json;
  // without it there is none. Without finish() nothing is left behind.
  Counts finish(const std::function<std::string(const Counts&)>& describe = {});

  const Counts& counts() const { return counts_; }

 private:
  void end_sequence();
  void write_index();

  std::string prefix_;
  Options options_;
  TokenType type_;
  OutputFile bin_;
  OutputFile idx_;
  std::optional<OutputFile> mask_;
  OutputFile lengths_;    // scratch: int32 per sequence
  OutputFile documents_;  // scratch: int64 per document boundary
  Counts counts_;
  int64_t sequence_tokens_ = 0;
  int64_t document_tokens_ = 0;
  int32_t last_token_ = 0;
};

}  // namespace pleat::data
