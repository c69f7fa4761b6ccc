// A sample as training sees it, taken apart for people: which document each stretch belongs to, where
// positions start again, what counts in the loss, and what it says.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/sampler.h"
#include "data/tokenizer/text_tokenizer.h"

namespace pleat::data {

// Tokens of one document that all count as labels, or none of which does.
struct SampleRun {
  int64_t begin = 0, end = 0;  // in the sample; the last label of a cut stream is number seq_len
  int64_t document = 0;
  int64_t position = 0;  // of the first token of the run, as attention sees it
  bool counts = false;   // as labels; the first token of a sample is never one
  std::string text = {};
};

struct InspectedSample {
  explicit InspectedSample(int64_t seq_len) : storage(1, seq_len), sample(storage.sample(0)) {}
  InspectedSample(const InspectedSample&) = delete;
  InspectedSample(InspectedSample&&) = default;

  int64_t window = 0;       // number of the sample before shuffling
  int64_t first_token = 0;  // in the stream; of the first document where documents are whole
  bool continues = false;   // its first document began before it
  int64_t num_documents = 0;
  int64_t num_loss_tokens = 0;
  int64_t num_padding = 0;  // places at the end that hold no document
  SampleStorage storage;
  Sample sample;  // into storage
  std::vector<SampleRun> runs = {};
};

InspectedSample inspect_sample(const IndexedDataset& dataset, const Sampler& sampler,
                               const TextTokenizer& tokenizer, const DataPosition& position);

}  // namespace pleat::data
