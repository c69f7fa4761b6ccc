// Text, JSONL or conversations in, `.bin/.idx` with a description (dataset_info.h) out.
//
// Documents are encoded by several threads; what is written does not depend on their number. Memory is
// bounded by a few documents per thread, and constant for tokenizers that can cut anywhere. A single document
// is encoded by one thread.
//
// Empty documents are left out and counted. With a split, two datasets are written, `prefix`-train and
// `prefix`-validation:
//   - many documents (both sides get at least kMinSplitDocuments): whole documents, the validation ones
//     spread evenly over the input, so that both sides see every part of it;
//   - fewer, or one: the text is cut once, at the given share of its bytes, moved on to the next UTF-8
//     character; what comes after the cut is validation. The cut document ends on one side and a new one
//     begins on the other. Conversations are never cut: there the first rule holds for any number.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "data/chat/chat_template.h"
#include "data/tokenizer/text_tokenizer.h"

namespace pleat::data {

enum class InputFormat {
  ByName,  // as base/text_name.h says: JSONL, or else text
  Text,
  Jsonl,
};

inline constexpr int64_t kMinSplitDocuments = 10;

struct PrepareProgress {
  int64_t bytes_read = 0;
  int64_t bytes_total = 0;
  int64_t num_documents = 0;
  int64_t num_tokens = 0;
};

struct PrepareOptions {
  std::vector<std::string> inputs = {};
  InputFormat format = InputFormat::ByName;
  std::string separator = {};     // for text; empty: one document per file
  std::string json_key = "text";  // for JSONL
  // Given: every input is JSONL of conversations, and the datasets get a loss mask.
  std::optional<ChatTemplate> chat = {};
  std::string tokenizer_path = {};  // how the description names the tokenizer; empty: its name()
  int64_t num_threads = 0;          // 0: all cores
  std::string output_prefix = {};
  std::optional<double> split = {};  // share of the training side, strictly between 0 and 1
  // For tokenizers that need a whole document at once.
  int64_t max_document_bytes = int64_t{1} << 30;
  std::function<void(const PrepareProgress&)> progress = {};  // called every few MiB and at the end
};

struct PreparedDataset {
  std::string prefix;
  int64_t num_documents = 0;
  int64_t num_tokens = 0;       // end-of-document tokens included
  int64_t num_text_bytes = 0;   // of the documents' text
  int64_t num_loss_tokens = 0;  // with a mask
};

struct PrepareResult {
  PreparedDataset train;
  std::optional<PreparedDataset> validation;
  int64_t num_empty_documents = 0;
  int64_t num_unlearned = 0;  // conversations in which nothing counts
  bool cut_by_bytes = false;
  std::vector<std::optional<ChatForm>> forms = {};  // of the conversations of each input
};

// Throws without leaving a file behind when any input is bad: outputs appear only after all inputs were read,
// the training side first.
PrepareResult prepare(const PrepareOptions& options, const TextTokenizer& tokenizer);

}  // namespace pleat::data
