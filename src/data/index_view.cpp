#include "data/index_view.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace pleat::data {

static_assert(std::endian::native == std::endian::little, "the index is little endian and read in place");

namespace {

// How many entries are scanned between two releases: 256 KiB and 512 KiB of the two arrays.
constexpr int64_t kScanBlock = 65536;

template <class T>
T load(std::span<const std::byte> file, size_t at) {
  T value;
  std::memcpy(&value, file.data() + at, sizeof(T));
  return value;
}

}  // namespace

int64_t token_bytes(TokenType type) {
  switch (type) {
    case TokenType::U8:
    case TokenType::I8:
      return 1;
    case TokenType::I16:
    case TokenType::U16:
      return 2;
    case TokenType::I32:
      return 4;
    case TokenType::I64:
      return 8;
  }
  PLEAT_CHECK(false, "token type {}", static_cast<int>(type));
}

const char* token_type_name(TokenType type) {
  switch (type) {
    case TokenType::U8:
      return "uint8";
    case TokenType::I8:
      return "int8";
    case TokenType::I16:
      return "int16";
    case TokenType::I32:
      return "int32";
    case TokenType::I64:
      return "int64";
    case TokenType::U16:
      return "uint16";
  }
  PLEAT_CHECK(false, "token type {}", static_cast<int>(type));
}

IndexView::IndexView(std::span<const std::byte> file, int64_t bin_bytes, std::string name,
                     const Release& release)
    : file_(file), name_(std::move(name)) {
  PLEAT_CHECK(bin_bytes >= 0);
  parse_header();
  check_sequences(bin_bytes, release);
  check_documents(release);
  num_tokens_ = bin_bytes / type_bytes_;
}

void IndexView::parse_header() {
  if (file_.size() < kIndexHeaderBytes)
    base::fail("{}: truncated header: {} bytes, an index has at least {}", name_, file_.size(),
               kIndexHeaderBytes);
  if (std::memcmp(file_.data(), kIndexMagic, sizeof(kIndexMagic)) != 0)
    base::fail("{}: wrong magic: a Megatron index begins with \"MMIDIDX\" and two zero bytes", name_);
  const uint64_t version = load<uint64_t>(file_, 9);
  if (version != 1) base::fail("{}: index version {} is not known; version 1 is needed", name_, version);

  const uint8_t code = load<uint8_t>(file_, 17);
  switch (code) {
    case 1:
    case 2:
    case 3:
    case 4:
    case 5:
    case 8:
      type_ = static_cast<TokenType>(code);
      break;
    case 6:
    case 7:
      base::fail("{}: token type {} is a floating-point type; token ids must be integers", name_, code);
    default:
      base::fail("{}: token type code {} is not known; 1, 2, 3, 4, 5 or 8 is needed", name_, code);
  }
  type_bytes_ = token_bytes(type_);

  // Both counts are bounded by division before anything is multiplied: no product can wrap.
  const uint64_t room = file_.size() - kIndexHeaderBytes;
  const uint64_t sequences = load<uint64_t>(file_, 18);
  if (sequences > room / 12)
    base::fail("{}: sequence count {} needs 12 bytes each, but only {} bytes follow the header", name_,
               sequences, room);
  const uint64_t boundaries = load<uint64_t>(file_, 26);
  const uint64_t room_for_documents = room - sequences * 12;
  if (boundaries > room_for_documents / 8)
    base::fail("{}: document index length {} needs 8 bytes each, but only {} bytes follow the sequences",
               name_, boundaries, room_for_documents);
  if (boundaries == 0) base::fail("{}: document index is empty; it holds at least the leading 0", name_);
  const uint64_t left = room_for_documents - boundaries * 8;
  if (left != 0 && left == sequences)
    base::fail("{}: holds one mode byte per sequence (a multimodal dataset), which is not supported", name_);
  if (left != 0) base::fail("{}: {} bytes follow the end of the document index; none may", name_, left);

  num_sequences_ = static_cast<int64_t>(sequences);
  num_documents_ = static_cast<int64_t>(boundaries) - 1;
  offsets_begin_ = kIndexHeaderBytes + sequences * 4;
  documents_begin_ = offsets_begin_ + sequences * 8;
}

void IndexView::check_sequences(int64_t bin_bytes, const Release& release) const {
  int64_t end_of_previous = 0;
  for (int64_t block = 0; block < num_sequences_; block += kScanBlock) {
    const int64_t block_end = std::min(block + kScanBlock, num_sequences_);
    for (int64_t i = block; i < block_end; ++i) {
      const int64_t length = length_at(i);
      const int64_t offset = offset_at(i);
      if (length < 0) base::fail("{}: sequence {} has negative length {}", name_, i, length);
      if (offset < 0) base::fail("{}: sequence {} has negative byte offset {}", name_, i, offset);
      if (offset % type_bytes_ != 0)
        base::fail("{}: byte offset {} of sequence {} is not aligned to the {} bytes of {}", name_, offset, i,
                   type_bytes_, token_type_name(type_));
      // length * 8 < 2^34 cannot wrap, and the comparison subtracts instead of adding.
      const int64_t bytes = length * type_bytes_;
      if (offset > bin_bytes || bytes > bin_bytes - offset)
        base::fail("{}: sequence {} ({} bytes at offset {}) lies outside the .bin of {} bytes", name_, i,
                   bytes, offset, bin_bytes);
      if (offset != end_of_previous)
        base::fail(
            "{}: sequence {} begins at byte {}, but the sequences before it end at byte {}; sequences must "
            "lie "
            "back to back",
            name_, i, offset, end_of_previous);
      end_of_previous = offset + bytes;
    }
    if (release) {
      const size_t first = static_cast<size_t>(block), last = static_cast<size_t>(block_end);
      release(kIndexHeaderBytes + first * 4, kIndexHeaderBytes + last * 4);
      release(offsets_begin_ + first * 8, offsets_begin_ + last * 8);
    }
  }
  if (end_of_previous != bin_bytes)
    base::fail(
        "{}: the sequences end at byte {}, but the .bin has {} bytes; the two files do not belong together",
        name_, end_of_previous, bin_bytes);
}

void IndexView::check_documents(const Release& release) const {
  if (const int64_t first = first_sequence_at(0); first != 0)
    base::fail("{}: document index begins with {}; it must begin with 0", name_, first);
  int64_t previous = 0;
  for (int64_t block = 0; block <= num_documents_; block += kScanBlock) {
    const int64_t block_end = std::min(block + kScanBlock, num_documents_ + 1);
    for (int64_t d = block; d < block_end; ++d) {
      const int64_t sequence = first_sequence_at(d);
      if (sequence < previous)
        base::fail("{}: document index falls from {} to {} at entry {}; it must never fall", name_, previous,
                   sequence, d);
      if (sequence > num_sequences_)
        base::fail("{}: document index entry {} is {}, but there are only {} sequences", name_, d, sequence,
                   num_sequences_);
      previous = sequence;
    }
    if (release)
      release(documents_begin_ + static_cast<size_t>(block) * 8,
              documents_begin_ + static_cast<size_t>(block_end) * 8);
  }
  if (previous != num_sequences_)
    base::fail("{}: document index ends with {}; it must end with the sequence count {}", name_, previous,
               num_sequences_);
}

int32_t IndexView::length_at(int64_t sequence_idx) const {
  return load<int32_t>(file_, kIndexHeaderBytes + static_cast<size_t>(sequence_idx) * 4);
}

int64_t IndexView::offset_at(int64_t sequence_idx) const {
  return load<int64_t>(file_, offsets_begin_ + static_cast<size_t>(sequence_idx) * 8);
}

int64_t IndexView::first_sequence_at(int64_t document_idx) const {
  return load<int64_t>(file_, documents_begin_ + static_cast<size_t>(document_idx) * 8);
}

int64_t IndexView::sequence_length(int64_t sequence_idx) const {
  PLEAT_CHECK(sequence_idx >= 0 && sequence_idx < num_sequences_, "sequence {} of {}", sequence_idx,
              num_sequences_);
  return length_at(sequence_idx);
}

int64_t IndexView::document_begin(int64_t document_idx) const {
  PLEAT_CHECK(document_idx >= 0 && document_idx <= num_documents_, "document {} of {}", document_idx,
              num_documents_);
  const int64_t sequence = first_sequence_at(document_idx);
  if (sequence == num_sequences_) return num_tokens_;
  // Another process may write to a mapped file; nothing read from it is used as an address unchecked.
  if (sequence < 0 || sequence > num_sequences_)
    base::fail_with(base::ExitCode::Storage,
                    "{}: document index entry {} changed to {} while the file was in use", name_,
                    document_idx, sequence);
  const int64_t token = offset_at(sequence) / type_bytes_;
  if (token < 0 || token > num_tokens_)
    base::fail_with(base::ExitCode::Storage,
                    "{}: byte offset of sequence {} changed while the file was in use", name_, sequence);
  return token;
}

int64_t IndexView::document_of(int64_t token_idx) const {
  PLEAT_CHECK(token_idx >= 0 && token_idx < num_tokens_, "token {} of {}", token_idx, num_tokens_);
  // The last document that begins at or before the token; empty documents share their successor's beginning
  // and so are never the last.
  int64_t low = 0, high = num_documents_;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (document_begin(middle) <= token_idx ? low : high) = middle;
  }
  return low;
}

}  // namespace pleat::data
