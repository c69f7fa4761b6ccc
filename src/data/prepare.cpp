#include "data/prepare.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <string_view>

#include "base/error.h"
#include "data/indexed_writer.h"
#include "data/mapped_file.h"
#include "data/text_source.h"

namespace pleat::data {
namespace {

constexpr int64_t kMillion = 1'000'000;
constexpr int64_t kProgressBytes = int64_t{8} << 20;
constexpr size_t kEncodeBytes = size_t{1} << 18;

InputFormat format_of(const std::string& path, InputFormat asked) {
  if (asked != InputFormat::ByName) return asked;
  const std::string extension = std::filesystem::path(path).extension().string();
  if (extension == ".jsonl" || extension == ".ndjson") return InputFormat::Jsonl;
  if (extension == ".json") base::fail("{}: a .json name may be text or JSONL; say which format it is", path);
  for (const char* packed : {".gz", ".xz", ".zst", ".bz2", ".zip"})
    if (extension == packed) base::fail("{}: compressed files are not read; unpack it first", path);
  return InputFormat::Text;
}

std::unique_ptr<DocumentSource> open_source(const std::string& path, const PrepareOptions& options) {
  if (format_of(path, options.format) == InputFormat::Jsonl)
    return open_jsonl(path, {.key = options.json_key});
  return open_text(path, options.separator);
}

int64_t file_bytes(const std::string& path) {
  const OpenedFile opened = open_regular_file(path);
  ::close(opened.descriptor);
  return opened.size;
}

// One output dataset: collects the pieces of a document, encodes them, ends the document.
class Side {
 public:
  Side(const std::string& prefix, const Tokenizer& tokenizer, int64_t max_document_bytes)
      : tokenizer_(tokenizer),
        max_document_bytes_(max_document_bytes),
        writer_(prefix,
                {.vocab_size = tokenizer.vocab_size(), .end_of_document = tokenizer.end_of_document()}) {
    result_.prefix = prefix;
  }

  void add(std::string_view text) {
    if (text.empty()) return;
    open_ = true;
    result_.num_text_bytes += static_cast<int64_t>(text.size());
    if (tokenizer_.can_cut_anywhere()) {
      for (size_t at = 0; at < text.size(); at += kEncodeBytes)
        writer_.append(tokenizer_.encode(text.substr(at, kEncodeBytes)));
      return;
    }
    if (static_cast<int64_t>(text.size()) > max_document_bytes_ - static_cast<int64_t>(whole_.size()))
      base::fail(
          "document {} is longer than {} bytes, and tokenizer {} needs a document at once; split the text",
          writer_.counts().num_documents, max_document_bytes_, tokenizer_.name());
    whole_.append(text);
  }

  // Does nothing when nothing was added since the last end.
  void end_document() {
    if (!open_) return;
    if (!whole_.empty()) writer_.append(tokenizer_.encode(whole_));
    whole_.clear();
    writer_.end_document();
    open_ = false;
  }

  int64_t num_documents() const { return writer_.counts().num_documents; }

  PreparedDataset finish() {
    const IndexedDatasetWriter::Counts counts = writer_.finish();
    result_.num_documents = counts.num_documents;
    result_.num_tokens = counts.num_tokens;
    return result_;
  }

 private:
  const Tokenizer& tokenizer_;
  int64_t max_document_bytes_;
  IndexedDatasetWriter writer_;
  PreparedDataset result_;
  std::string whole_;
  bool open_ = false;
};

// Calls on_piece(text) and on_end(is_empty) for every document of every input; on_end returns false to stop.
template <class OnPiece, class OnEnd>
void for_each_document(const PrepareOptions& options, const std::function<void(int64_t)>& on_bytes,
                       OnPiece&& on_piece, OnEnd&& on_end) {
  int64_t bytes_before = 0;
  for (const std::string& path : options.inputs) {
    const std::unique_ptr<DocumentSource> source = open_source(path, options);
    TextPiece piece;
    bool is_empty = true;
    while (source->next(piece)) {
      if (!piece.text.empty()) {
        is_empty = false;
        on_piece(piece.text);
      }
      if (on_bytes) on_bytes(bytes_before + source->bytes_read());
      if (!piece.ends_document) continue;
      if (!on_end(is_empty)) return;
      is_empty = true;
    }
    bytes_before += source->bytes_read();
  }
}

// How documents are shared out; decided before anything is written.
struct SplitRule {
  bool by_bytes = false;
  int64_t train_bytes = 0;             // by bytes: where the cut is
  int64_t validation_per_million = 0;  // by documents

  // Spreads the validation documents evenly: exactly floor(n * share) of the first n.
  bool is_validation(int64_t document_idx) const {
    const auto before = [&](int64_t n) {
      return n / kMillion * validation_per_million + n % kMillion * validation_per_million / kMillion;
    };
    return before(document_idx + 1) > before(document_idx);
  }
};

SplitRule choose_rule(const PrepareOptions& options) {
  SplitRule rule;
  const double split = *options.split;
  if (!(split > 0.0 && split < 1.0)) base::fail("split {} must lie strictly between 0 and 1", split);
  rule.validation_per_million = std::clamp<int64_t>(std::llround((1.0 - split) * kMillion), 1, kMillion - 1);
  const int64_t smaller_side = std::min(rule.validation_per_million, kMillion - rule.validation_per_million);
  const int64_t enough = (kMinSplitDocuments * kMillion + smaller_side - 1) / smaller_side;
  int64_t num_documents = 0, num_bytes = 0;
  for_each_document(
      options, {}, [&](std::string_view text) { num_bytes += static_cast<int64_t>(text.size()); },
      [&](bool is_empty) { return (num_documents += !is_empty) < enough; });
  if (num_documents < enough) {
    rule.by_bytes = true;
    rule.train_bytes = static_cast<int64_t>(split * static_cast<double>(num_bytes));
  }
  return rule;
}

// Where in `text`, whose first byte is number `begin` of all text, the validation side starts; its size when
// that lies further on.
size_t cut_in(std::string_view text, int64_t begin, int64_t target) {
  int64_t at = std::max<int64_t>(0, target - begin);
  const auto is_continuation = [&] {
    return (static_cast<unsigned char>(text[static_cast<size_t>(at)]) & 0xC0) == 0x80;
  };
  while (at < static_cast<int64_t>(text.size()) && begin + at - target < 3 && is_continuation()) ++at;
  return static_cast<size_t>(std::min(at, static_cast<int64_t>(text.size())));
}

}  // namespace

PrepareResult prepare(const PrepareOptions& options, const Tokenizer& tokenizer) {
  if (options.inputs.empty())
    base::fail("no input file was given; at least one text or JSONL file is needed");
  if (options.output_prefix.empty()) base::fail("no output prefix was given");
  PrepareProgress progress;
  for (const std::string& path : options.inputs) progress.bytes_total += file_bytes(path);

  SplitRule rule;
  if (options.split) rule = choose_rule(options);
  PrepareResult result;
  result.cut_by_bytes = rule.by_bytes;

  Side train(options.output_prefix + (options.split ? "-train" : ""), tokenizer, options.max_document_bytes);
  std::optional<Side> validation;
  if (options.split)
    validation.emplace(options.output_prefix + "-validation", tokenizer, options.max_document_bytes);

  int64_t document_idx = 0, text_begin = 0, reported = 0;
  bool past_cut = false;
  const auto on_piece = [&](std::string_view text) {
    const int64_t begin = text_begin;
    text_begin += static_cast<int64_t>(text.size());
    if (!validation) return train.add(text);
    if (!rule.by_bytes) return (rule.is_validation(document_idx) ? *validation : train).add(text);
    const size_t cut = past_cut ? 0 : cut_in(text, begin, rule.train_bytes);
    train.add(text.substr(0, cut));
    if (cut < text.size()) {
      train.end_document();
      past_cut = true;
      validation->add(text.substr(cut));
    }
  };
  const auto on_end = [&](bool is_empty) {
    result.num_empty_documents += is_empty;
    document_idx += !is_empty;
    train.end_document();
    if (validation) validation->end_document();
    return true;
  };
  const auto report = [&](int64_t bytes) {
    progress.bytes_read = bytes;
    progress.num_documents = document_idx;
    if (options.progress) options.progress(progress);
    reported = bytes;
  };
  for_each_document(
      options,
      [&](int64_t bytes) {
        if (bytes - reported >= kProgressBytes) report(bytes);
      },
      on_piece, on_end);
  report(progress.bytes_total);

  if (document_idx == 0)
    base::fail("{}: the inputs hold no text (all documents are empty)", options.inputs.front());
  if (validation && (train.num_documents() == 0 || validation->num_documents() == 0))
    base::fail("split {} of {} bytes of text leaves one side empty; more text or another split is needed",
               *options.split, text_begin);
  result.train = train.finish();
  if (validation) result.validation = validation->finish();
  return result;
}

}  // namespace pleat::data
