// Fuzzes the .idx parser. The first byte chooses between raw bytes and a correct index with a few patches:
// random bytes alone hardly ever get past the exact size check into the array checks.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "base/error.h"
#include "data/index_view.h"

namespace {

using pleat::data::IndexView;

void put(std::vector<std::byte>& out, const void* data, size_t size) {
  const auto* bytes = static_cast<const std::byte*>(data);
  out.insert(out.end(), bytes, bytes + size);
}

// One sequence per byte of `lengths`; a document ends after each sequence of odd length, and after the last.
std::vector<std::byte> make_index(uint8_t type, int64_t type_bytes, std::span<const uint8_t> lengths,
                                  int64_t* bin_bytes) {
  std::vector<int32_t> sequence_lengths;
  std::vector<int64_t> offsets, boundaries = {0};
  int64_t offset = 0;
  for (const uint8_t length : lengths) {
    sequence_lengths.push_back(length);
    offsets.push_back(offset);
    offset += length * type_bytes;
    if (length % 2 == 1) boundaries.push_back(static_cast<int64_t>(offsets.size()));
  }
  boundaries.push_back(static_cast<int64_t>(offsets.size()));
  std::vector<std::byte> out;
  const uint64_t version = 1, num_sequences = offsets.size(), num_boundaries = boundaries.size();
  put(out, pleat::data::kIndexMagic, sizeof(pleat::data::kIndexMagic));
  put(out, &version, 8);
  put(out, &type, 1);
  put(out, &num_sequences, 8);
  put(out, &num_boundaries, 8);
  put(out, sequence_lengths.data(), sequence_lengths.size() * 4);
  put(out, offsets.data(), offsets.size() * 8);
  put(out, boundaries.data(), boundaries.size() * 8);
  *bin_bytes = offset;
  return out;
}

void require(bool holds) {
  if (!holds) std::abort();
}

// Everything the view promises after validation.
void use(const IndexView& view) {
  require(view.document_begin(0) == 0 || view.num_tokens() == 0);
  require(view.document_begin(view.num_documents()) == view.num_tokens());
  for (int64_t d = 0; d < view.num_documents(); ++d) {
    const int64_t begin = view.document_begin(d), end = view.document_begin(d + 1);
    require(begin <= end);
    if (begin == end) continue;
    require(view.document_of(begin) == d);
    require(view.document_of(end - 1) == d);
  }
  int64_t num_tokens = 0;
  for (int64_t s = 0; s < view.num_sequences(); ++s) num_tokens += view.sequence_length(s);
  require(num_tokens == view.num_tokens());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 10) return 0;
  int64_t bin_bytes = 0;
  std::vector<std::byte> file;
  bool is_intact = false;
  if (data[0] % 2 == 0) {
    std::memcpy(&bin_bytes, data + 1, 8);
    if (bin_bytes < 0) return 0;
    put(file, data + 9, size - 9);
  } else {
    constexpr struct {
      uint8_t code;
      int64_t bytes;
    } kTypes[] = {{1, 1}, {2, 1}, {3, 2}, {4, 4}, {5, 8}, {8, 2}};
    const auto type = kTypes[data[1] % 6];
    const size_t num_patches = data[2] % 4, patch_bytes = 10;
    if (size < 3 + num_patches * patch_bytes) return 0;
    const std::span<const uint8_t> lengths(data + 3 + num_patches * patch_bytes, data + size);
    file = make_index(type.code, type.bytes, lengths, &bin_bytes);
    for (size_t p = 0; p < num_patches; ++p) {
      const uint8_t* patch = data + 3 + p * patch_bytes;  // where (2 bytes), what (8 bytes)
      const size_t at = (patch[0] | size_t{patch[1]} << 8) % file.size();
      std::memcpy(file.data() + at, patch + 2, std::min<size_t>(8, file.size() - at));
    }
    is_intact = num_patches == 0;
  }
  file.shrink_to_fit();  // a read past the end must be seen
  try {
    use(IndexView(file, bin_bytes, "fuzz.idx"));
  } catch (const pleat::base::Error&) {
    require(!is_intact);
  }
  return 0;
}
