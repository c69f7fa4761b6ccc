#include "data/indexed_dataset.h"

#include <cstring>
#include <filesystem>
#include <limits>

#include "base/error.h"

namespace pleat::data {
namespace {

// Copies ids to int32 and returns the position of the first one outside [0, vocab), or -1.
template <class T>
int64_t convert(const std::byte* from, std::span<int32_t> out, int64_t vocab_size) {
  bool any_bad = false;
  for (size_t i = 0; i < out.size(); ++i) {
    T value;
    std::memcpy(&value, from + i * sizeof(T), sizeof(T));
    const auto id = static_cast<int64_t>(value);  // NOLINT(bugprone-signed-char-misuse): may be one byte long
    any_bad |= id < 0 || id >= vocab_size;
    out[i] = static_cast<int32_t>(id);
  }
  if (!any_bad) return -1;
  for (size_t i = 0; i < out.size(); ++i) {
    T value;
    std::memcpy(&value, from + i * sizeof(T), sizeof(T));
    const auto id = static_cast<int64_t>(value);  // NOLINT(bugprone-signed-char-misuse): may be one byte long
    if (id < 0 || id >= vocab_size) return static_cast<int64_t>(i);
  }
  return 0;  // the file changed between the two passes; the first position is as good as any
}

int64_t convert_as(TokenType type, const std::byte* from, std::span<int32_t> out, int64_t vocab_size) {
  switch (type) {
    case TokenType::U8:
      return convert<uint8_t>(from, out, vocab_size);
    case TokenType::I8:
      return convert<int8_t>(from, out, vocab_size);
    case TokenType::I16:
      return convert<int16_t>(from, out, vocab_size);
    case TokenType::I32:
      return convert<int32_t>(from, out, vocab_size);
    case TokenType::I64:
      return convert<int64_t>(from, out, vocab_size);
    case TokenType::U16:
      return convert<uint16_t>(from, out, vocab_size);
  }
  PLEAT_CHECK(false, "token type {}", static_cast<int>(type));
}

int64_t load_id(TokenType type, const std::byte* from) {
  const auto load = [from]<class T>(T value) {
    std::memcpy(&value, from, sizeof(T));
    return static_cast<int64_t>(value);
  };
  switch (type) {
    case TokenType::U8:
      return load(uint8_t{});
    case TokenType::I8:
      return load(int8_t{});
    case TokenType::I16:
      return load(int16_t{});
    case TokenType::I32:
      return load(int32_t{});
    case TokenType::I64:
      return load(int64_t{});
    case TokenType::U16:
      return load(uint16_t{});
  }
  PLEAT_CHECK(false, "token type {}", static_cast<int>(type));
}

}  // namespace

void require_dataset(const std::string& prefix) {
  std::error_code ignored;
  const bool bin = std::filesystem::exists(prefix + ".bin", ignored),
             idx = std::filesystem::exists(prefix + ".idx", ignored);
  if (bin && idx) return;
  const char* hint = prefix.ends_with(".bin") || prefix.ends_with(".idx")
                         ? "; give the name without .bin or .idx"
                     : bin || idx ? ""
                                  : "; 'pleat data tokenize' makes them";
  base::fail("there is no dataset '{}': {}{}{} {} missing{}", prefix, bin ? "" : prefix + ".bin",
             bin || idx ? "" : " and ", idx ? "" : prefix + ".idx", bin || idx ? "is" : "are", hint);
}

IndexedDataset::IndexedDataset(const std::string& prefix, int64_t vocab_size)
    : prefix_(prefix),
      vocab_size_(vocab_size),
      bin_file_(prefix + ".bin"),
      idx_file_(prefix + ".idx"),
      index_(idx_file_.bytes(), static_cast<int64_t>(bin_file_.bytes().size()), idx_file_.path(),
             [this](size_t begin, size_t end) { idx_file_.release(begin, end); }),
      info_(read_dataset_info(prefix)) {
  if (vocab_size < 1 || vocab_size > std::numeric_limits<int32_t>::max())
    base::fail("{}: vocabulary size {} must lie between 1 and 2147483647", prefix, vocab_size);
  if (info_ && (info_->num_tokens != num_tokens() || info_->num_documents != num_documents()))
    base::fail(
        "{}.json tells of {} tokens in {} documents, but the index holds {} in {}; they do not belong "
        "together",
        prefix, info_->num_tokens, info_->num_documents, num_tokens(), num_documents());
  const std::string mask_path = prefix + ".mask.bin";
  if (info_ && info_->num_loss_tokens) {
    mask_file_.emplace(mask_path);
    if (static_cast<int64_t>(mask_file_->bytes().size()) != num_tokens())
      base::fail("{}: {} bytes for {} tokens; one for each is needed", mask_path, mask_file_->bytes().size(),
                 num_tokens());
  } else if (std::error_code ignored; std::filesystem::exists(mask_path, ignored)) {
    base::fail("{} is there, but {}.json {}; a loss mask is never ignored: tokenize again or remove it",
               mask_path, prefix, info_ ? "says there is none" : "is not");
  }
}

void IndexedDataset::check_range(int64_t first, size_t num_elements) const {
  const int64_t count = static_cast<int64_t>(num_elements);
  if (first < 0 || first > num_tokens() || count > num_tokens() - first)
    base::fail("{}: tokens [{}, {} + {}) asked for, but there are {}", prefix_, first, first, count,
               num_tokens());
  bin_file_.check_not_shrunk();
  idx_file_.check_not_shrunk();
}

void IndexedDataset::read(int64_t first, std::span<int32_t> out) const {
  check_range(first, out.size());
  const int64_t bytes = token_bytes(token_type());
  const std::byte* from = bin_file_.bytes().data() + first * bytes;
  const int64_t bad = convert_as(token_type(), from, out, vocab_size_);
  if (bad >= 0) {
    const int64_t token_idx = first + bad;
    base::fail("{}: token {} (in document {}) has id {}, outside the vocabulary of {}", bin_file_.path(),
               token_idx, document_of(token_idx), load_id(token_type(), from + bad * bytes), vocab_size_);
  }
}

void IndexedDataset::read_loss_mask(int64_t first, std::span<uint8_t> out) const {
  PLEAT_CHECK(mask_file_, "{} has no loss mask", prefix_);
  check_range(first, out.size());
  mask_file_->check_not_shrunk();
  if (!out.empty()) std::memcpy(out.data(), mask_file_->bytes().data() + first, out.size());
  for (size_t i = 0; i < out.size(); ++i)
    if (out[i] > 1)
      base::fail("{}: byte {} is {}; 0 or 1 is needed", mask_file_->path(), first + static_cast<int64_t>(i),
                 out[i]);
}

}  // namespace pleat::data
