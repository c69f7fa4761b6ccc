// Trains a byte-level BPE and writes it as a tokenizer.json that Hugging Face's `tokenizers` loads too.
//
// The result depends on the documents as a multiset only, not on their order: the most frequent pair is
// merged first, of equally frequent ones the one with the smaller ids.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace pleat::data {

struct TrainBpeProgress {
  int64_t num_bytes_counted = 0;
  int64_t num_different_pieces = 0;
  int64_t num_tokens = 0;  // of the vocabulary so far; 0 while documents are still being counted
  int64_t num_tokens_wanted = 0;
};

struct TrainBpeOptions {
  int64_t vocab_size = 32000;                                   // special tokens and the 256 bytes included
  int64_t min_frequency = 2;                                    // pairs seen less often are not merged
  std::vector<std::string> special_tokens = {"<|endoftext|>"};  // ids 0, 1, ...
  std::string end_of_document = "<|endoftext|>";                // one of them
  std::string pattern = {};  // how text is cut before merging; empty: GPT-2's
  std::function<void(const TrainBpeProgress&)> progress = {};
};

struct TrainedBpe {
  int64_t vocab_size = 0;  // smaller than wanted when the text has no more pairs
  int64_t num_merges = 0;
  std::string tokenizer_json = {};
  std::string tokenizer_config_json = {};
};

class BpeTrainer {
 public:
  // Throws on options that cannot be met.
  explicit BpeTrainer(TrainBpeOptions options);
  ~BpeTrainer();
  BpeTrainer(const BpeTrainer&) = delete;
  BpeTrainer& operator=(const BpeTrainer&) = delete;

  // One document, whole. Broken UTF-8 is replaced as everywhere.
  void add(std::string_view document);
  // Throws when no document was added.
  TrainedBpe train();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// next(document) fills in a document and returns false after the last.
TrainedBpe train_bpe(const std::function<bool(std::string&)>& next, const TrainBpeOptions& options);

// Writes tokenizer.json and tokenizer_config.json into `folder`, which is made when it is not there.
void write_trained_bpe(const TrainedBpe& trained, const std::string& folder);

}  // namespace pleat::data
