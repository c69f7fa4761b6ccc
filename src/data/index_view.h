// The .idx half of a Megatron indexed dataset, read in place from a span of bytes.
//
// Layout (little endian): "MMIDIDX\0\0", u64 version = 1, u8 token type, u64 sequence count n,
// u64 document index length d, i32 length[n], i64 byte_offset[n], i64 first_sequence[d].
// The arrays start at byte 34, so nothing in them is aligned; every element is loaded by copy.
//
// The file is hostile until the constructor returns. After that it holds that:
//   - the sequences lie back to back in the .bin: byte_offset[0] = 0, byte_offset[i + 1] = byte_offset[i] +
//     length[i] * token size, and the last one ends exactly at the end of the .bin. Megatron's own writer
//     produces nothing else; a file with holes or another order is refused. This is what makes the .bin one
//     flat array of tokens and every document boundary a search away, with no table in memory;
//   - documents are runs of whole sequences: first_sequence starts at 0, never falls, ends at n.
// Validation reads the arrays once, in order, and allocates nothing that grows with them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

namespace pleat::data {

// Codes as they stand in the file. Codes 6 and 7 (float64, float32) are no token types and are refused.
enum class TokenType : uint8_t { U8 = 1, I8 = 2, I16 = 3, I32 = 4, I64 = 5, U16 = 8 };

int64_t token_bytes(TokenType type);
const char* token_type_name(TokenType type);

inline constexpr size_t kIndexHeaderBytes = 34;
inline constexpr char kIndexMagic[9] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', '\0', '\0'};

class IndexView {
 public:
  // Called during validation with a byte range of the file that was read and is not needed soon.
  using Release = std::function<void(size_t begin, size_t end)>;

  // Validates all of `file` against a .bin of `bin_bytes`; throws with `name` and what is wrong.
  // `file` must outlive the view.
  IndexView(std::span<const std::byte> file, int64_t bin_bytes, std::string name,
            const Release& release = {});

  TokenType token_type() const { return type_; }
  int64_t num_sequences() const { return num_sequences_; }
  int64_t num_documents() const { return num_documents_; }
  int64_t num_tokens() const { return num_tokens_; }

  int64_t sequence_length(int64_t sequence_idx) const;

  // First token of a document in the flat token array; document_begin(num_documents()) = num_tokens().
  // Stays inside [0, num_tokens()] even when the bytes change after validation (then it throws).
  int64_t document_begin(int64_t document_idx) const;

  // The document that holds a token, in O(log documents). 0 <= token_idx < num_tokens().
  int64_t document_of(int64_t token_idx) const;

 private:
  int32_t length_at(int64_t sequence_idx) const;
  int64_t offset_at(int64_t sequence_idx) const;
  int64_t first_sequence_at(int64_t document_idx) const;
  void parse_header();
  void check_sequences(int64_t bin_bytes, const Release& release) const;
  void check_documents(const Release& release) const;

  std::span<const std::byte> file_;
  std::string name_;
  TokenType type_ = TokenType::U16;
  int64_t type_bytes_ = 0;
  int64_t num_sequences_ = 0;
  int64_t num_documents_ = 0;
  int64_t num_tokens_ = 0;
  size_t offsets_begin_ = 0;
  size_t documents_begin_ = 0;
};

}  // namespace pleat::data
