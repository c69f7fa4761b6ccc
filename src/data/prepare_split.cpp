#include "data/prepare_split.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/text_name.h"

namespace pleat::data {
namespace {

constexpr int64_t kMillion = 1'000'000;

std::unique_ptr<DocumentSource> open_source(const std::string& path, const PrepareOptions& options) {
  if (format_of(path, options.format) == InputFormat::Jsonl)
    return open_jsonl(path, {.key = options.json_key});
  return open_text(path, options.separator);
}

}  // namespace

bool SplitRule::is_validation(int64_t document_idx) const {
  const auto before = [&](int64_t n) {
    return n / kMillion * validation_per_million + n % kMillion * validation_per_million / kMillion;
  };
  return before(document_idx + 1) > before(document_idx);
}

InputFormat format_of(const std::string& path, InputFormat asked) {
  if (asked != InputFormat::ByName) return asked;
  if (base::text_name(path).kind == base::TextKind::Jsonl) return InputFormat::Jsonl;
  return InputFormat::Text;
}

void for_each_document(const PrepareOptions& options, const DocumentVisitor& visitor) {
  int64_t bytes_before = 0;
  for (const std::string& path : options.inputs) {
    const std::unique_ptr<DocumentSource> source = open_source(path, options);
    TextPiece piece;
    bool is_empty = true;
    while (source->next(piece)) {
      if (visitor.on_bytes) visitor.on_bytes(bytes_before + source->bytes_read());
      if (!piece.text.empty()) {
        is_empty = false;
        visitor.on_piece(piece.text);
      }
      if (!piece.ends_document) continue;
      if (!visitor.on_end(is_empty)) return;
      is_empty = true;
    }
    bytes_before += source->bytes_read();
  }
}

SplitRule choose_split(const PrepareOptions& options) {
  SplitRule rule;
  const double split = *options.split;
  if (!(split > 0.0 && split < 1.0)) base::fail("split {} must lie strictly between 0 and 1", split);
  rule.validation_per_million = std::clamp<int64_t>(std::llround((1.0 - split) * kMillion), 1, kMillion - 1);
  if (options.chat) return rule;
  const int64_t smaller_side = std::min(rule.validation_per_million, kMillion - rule.validation_per_million);
  const int64_t enough = (kMinSplitDocuments * kMillion + smaller_side - 1) / smaller_side;
  int64_t num_documents = 0, num_bytes = 0;
  for_each_document(
      options, {.on_piece = [&](std::string_view text) { num_bytes += static_cast<int64_t>(text.size()); },
                .on_end = [&](bool is_empty) { return (num_documents += !is_empty) < enough; }});
  if (num_documents < enough) {
    rule.by_bytes = true;
    rule.train_bytes = static_cast<int64_t>(split * static_cast<double>(num_bytes));
  }
  return rule;
}

size_t cut_in(std::string_view text, int64_t begin, int64_t target) {
  int64_t at = std::max<int64_t>(0, target - begin);
  const auto is_continuation = [&] {
    return (static_cast<unsigned char>(text[static_cast<size_t>(at)]) & 0xC0) == 0x80;
  };
  while (at < static_cast<int64_t>(text.size()) && begin + at - target < 3 && is_continuation()) ++at;
  return static_cast<size_t>(std::min(at, static_cast<int64_t>(text.size())));
}

}  // namespace pleat::data
