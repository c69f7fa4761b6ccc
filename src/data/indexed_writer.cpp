#include "data/indexed_writer.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "data/mapped_file.h"

namespace pleat::data {
namespace {

constexpr int64_t kCopyBytes = int64_t{1} << 18;

// Calls `use` with consecutive blocks of everything written to `scratch`.
template <class Use>
void for_each_block(OutputFile& scratch, Use&& use) {
  std::vector<std::byte> block(static_cast<size_t>(kCopyBytes));
  for (int64_t at = 0; at < scratch.size(); at += kCopyBytes) {
    const std::span<std::byte> part(block.data(),
                                    static_cast<size_t>(std::min(kCopyBytes, scratch.size() - at)));
    scratch.read_back(at, part);
    use(std::span<const std::byte>(part));
  }
}

}  // namespace

TokenType token_type_for(int64_t vocab_size) { return vocab_size < 65500 ? TokenType::U16 : TokenType::I32; }

IndexedDatasetWriter::IndexedDatasetWriter(const std::string& prefix, const Options& options)
    : prefix_(prefix),
      options_(options),
      type_(token_type_for(options.vocab_size)),
      bin_(prefix + ".bin"),
      idx_(prefix + ".idx"),
      lengths_(prefix + ".lengths"),
      documents_(prefix + ".documents") {
  if (options.vocab_size < 1 || options.vocab_size > std::numeric_limits<int32_t>::max())
    base::fail("{}: vocabulary size {} must lie between 1 and 2147483647", prefix, options.vocab_size);
  if (options.end_of_document < 0 || options.end_of_document >= options.vocab_size)
    base::fail("{}: end-of-document id {} lies outside the vocabulary of {}", prefix, options.end_of_document,
               options.vocab_size);
  PLEAT_CHECK(options.max_sequence_tokens >= 1 &&
              options.max_sequence_tokens <= std::numeric_limits<int32_t>::max());
  if (options.loss_mask) mask_.emplace(prefix + ".mask.bin");
  lengths_.make_nameless();
  documents_.make_nameless();
  documents_.write_value(int64_t{0});
}

void IndexedDatasetWriter::append(std::span<const int32_t> tokens, std::span<const uint8_t> mask) {
  PLEAT_CHECK(mask.size() == (mask_ ? tokens.size() : 0), "{} tokens, {} of the mask", tokens.size(),
              mask.size());
  for (const int32_t token : tokens)
    if (token < 0 || token >= options_.vocab_size)
      base::fail("{}: token id {} in document {} lies outside the vocabulary of {}", prefix_, token,
                 counts_.num_documents, options_.vocab_size);
  for (const uint8_t counts : mask) {
    PLEAT_CHECK(counts <= 1);
    counts_.num_loss_tokens += counts;
  }
  if (mask_) mask_->write(std::as_bytes(mask));
  std::array<uint16_t, 4096> narrow;
  while (!tokens.empty()) {
    if (sequence_tokens_ == options_.max_sequence_tokens) end_sequence();
    const size_t room = static_cast<size_t>(options_.max_sequence_tokens - sequence_tokens_);
    const std::span<const int32_t> part = tokens.first(std::min({tokens.size(), room, narrow.size()}));
    tokens = tokens.subspan(part.size());
    if (type_ == TokenType::U16) {
      std::transform(part.begin(), part.end(), narrow.begin(),
                     [](int32_t id) { return static_cast<uint16_t>(id); });
      bin_.write(std::as_bytes(std::span(narrow).first(part.size())));
    } else {
      bin_.write(std::as_bytes(part));
    }
    last_token_ = part.back();
    sequence_tokens_ += static_cast<int64_t>(part.size());
    document_tokens_ += static_cast<int64_t>(part.size());
    counts_.num_tokens += static_cast<int64_t>(part.size());
  }
}

void IndexedDatasetWriter::end_sequence() {
  lengths_.write_value(static_cast<int32_t>(sequence_tokens_));
  sequence_tokens_ = 0;
  ++counts_.num_sequences;
}

void IndexedDatasetWriter::end_document(bool end_counts) {
  if (document_tokens_ == 0)
    base::fail("{}: document {} is empty; a document holds at least one token", prefix_,
               counts_.num_documents);
  const uint8_t counts = end_counts ? 1 : 0;
  if (last_token_ != options_.end_of_document)
    append(std::span(&options_.end_of_document, 1), std::span(&counts, mask_ ? 1 : 0));
  end_sequence();
  documents_.write_value(counts_.num_sequences);
  document_tokens_ = 0;
  ++counts_.num_documents;
}

void IndexedDatasetWriter::write_index() {
  idx_.write(std::as_bytes(std::span(kIndexMagic)));
  idx_.write_value(uint64_t{1});
  idx_.write_value(static_cast<uint8_t>(type_));
  idx_.write_value(static_cast<uint64_t>(counts_.num_sequences));
  idx_.write_value(static_cast<uint64_t>(counts_.num_documents) + 1);
  for_each_block(lengths_, [&](std::span<const std::byte> block) { idx_.write(block); });
  int64_t offset = 0;
  for_each_block(lengths_, [&](std::span<const std::byte> block) {
    for (size_t at = 0; at < block.size(); at += sizeof(int32_t)) {
      int32_t length;
      std::memcpy(&length, block.data() + at, sizeof(length));
      idx_.write_value(offset);
      offset += length * token_bytes(type_);
    }
  });
  for_each_block(documents_, [&](std::span<const std::byte> block) { idx_.write(block); });
  PLEAT_CHECK(offset == bin_.size(), "{} against {}", offset, bin_.size());
}

IndexedDatasetWriter::Counts IndexedDatasetWriter::finish(
    const std::function<std::string(const Counts&)>& describe) {
  PLEAT_CHECK(document_tokens_ == 0, "the last document was not ended");
  write_index();
  bin_.sync();
  idx_.sync();
  if (mask_) mask_->sync();
  std::optional<OutputFile> description;
  if (describe) {
    description.emplace(prefix_ + ".json");
    const std::string text = describe(counts_);
    description->write(std::as_bytes(std::span(text)));
    description->sync();
  }
  for (const char* ending : {".idx", ".mask.bin", ".json"})
    if (::unlink((prefix_ + ending).c_str()) != 0 && errno != ENOENT)
      base::fail_with(base::ExitCode::Storage, "{}{}: cannot replace: {}", prefix_, ending,
                      system_message(errno));
  sync_folder_of(prefix_);
  bin_.commit();
  if (mask_) mask_->commit();
  if (description) description->commit();
  sync_folder_of(prefix_);
  idx_.commit();
  sync_folder_of(prefix_);
  return counts_;
}

}  // namespace pleat::data
