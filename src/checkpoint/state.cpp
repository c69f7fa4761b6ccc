#include "checkpoint/state.h"

#include <algorithm>
#include <bit>

#include "base/checked.h"
#include "checkpoint/manifest.h"

namespace pleat::checkpoint {

namespace {

// Lengths before contents, so that no two states spell the same bytes.
class FieldHash {
 public:
  void text(std::string_view value) {
    integer(static_cast<int64_t>(value.size()));
    hash_.update(value);
  }
  void integer(int64_t value) {
    const auto bits = static_cast<uint64_t>(value);
    std::byte bytes[8];
    for (int i = 0; i < 8; ++i) bytes[i] = static_cast<std::byte>(bits >> (8 * i));
    hash_.update(bytes);
  }
  void digest(const base::Sha256Digest& value) { hash_.update(value); }
  base::Sha256Digest result() const { return hash_.digest(); }

 private:
  base::Sha256 hash_;
};

}  // namespace

base::Sha256Digest digest_of(const ConstBytes& bytes) {
  base::Sha256 hash;
  ConstBytes::Reader from = bytes.reader();
  for (int64_t at = 0; at < bytes.size();) {
    const std::span<const std::byte> there = from.at(at, bytes.size());
    hash.update(there);
    at += static_cast<int64_t>(there.size());
  }
  return hash.digest();
}

int64_t num_bytes_of(tensor::Dtype dtype, std::span<const int64_t> shape, const std::string& name) {
  if (static_cast<int64_t>(shape.size()) > kMaxRank)
    base::fail("tensor '{}' has {} dimensions; at most {} are allowed", name, shape.size(), kMaxRank);
  int64_t length = tensor::size_of(dtype);
  bool empty = false;
  for (const int64_t extent : shape) {
    if (extent < 0) base::fail("tensor '{}' has a negative extent {}", name, extent);
    if (extent == 0) {
      empty = true;
      continue;
    }
    int64_t product;
    if (__builtin_mul_overflow(length, extent, &product) || product > kMaxSize)
      base::fail("tensor '{}' has more than {} bytes", name, kMaxSize);
    length = product;
  }
  return empty ? 0 : length;
}

base::Sha256Digest digest_of_state(const Manifest& manifest) {
  FieldHash hash;
  hash.text("pleat state 1");
  hash.integer(manifest.step);
  hash.integer(static_cast<int64_t>(manifest.tensors.size()));
  for (const TensorEntry& tensor : manifest.tensors) {
    hash.text(tensor.name);
    hash.text(tensor::name_of(tensor.dtype));
    hash.integer(static_cast<int64_t>(tensor.shape.size()));
    for (const int64_t extent : tensor.shape) hash.integer(extent);
    hash.digest(tensor.sha256);
  }
  hash.integer(static_cast<int64_t>(manifest.integers.size()));
  for (const auto& [name, value] : manifest.integers) hash.text(name), hash.integer(value);
  hash.integer(static_cast<int64_t>(manifest.reals.size()));
  for (const auto& [name, value] : manifest.reals)
    hash.text(name), hash.integer(std::bit_cast<int64_t>(value));
  hash.integer(static_cast<int64_t>(manifest.texts.size()));
  for (const auto& [name, value] : manifest.texts) hash.text(name), hash.text(value);
  return hash.result();
}

namespace {

// The first bytes of a digest as a number.
uint64_t mark_from(const base::Sha256Digest& digest) {
  uint64_t value = 0;
  for (size_t i = 0; i < sizeof value; ++i) value |= std::to_integer<uint64_t>(digest[i]) << (8 * i);
  return value;
}

// Known before the first byte is written: the digests of tensors that lie on several ranks are not.
base::Sha256Digest digest_of_slices(const Manifest& manifest) {
  FieldHash hash;
  hash.text("pleat slices 2");
  hash.integer(manifest.step);
  for (const auto& [name, value] : manifest.texts) hash.text(name), hash.text(value);
  for (const SliceEntry& s : manifest.slices) {
    for (const int64_t value :
         {s.tensor_idx, s.where.row_begin, s.where.row_end, s.where.byte_begin, s.where.byte_end})
      hash.integer(value);
    hash.digest(s.sha256);
  }
  return hash.result();
}

}  // namespace

void complete(Manifest& manifest, const std::string& path) {
  const auto add = [&](int64_t sum, int64_t length) {
    if (length < 0 || length > kMaxSize || sum > kMaxSize - length)
      base::fail("{}: more than {} bytes", path, kMaxSize);
    return sum + length;
  };
  if (manifest.version == 1) {
    for (size_t i = 0; i < manifest.tensors.size(); ++i) {
      TensorEntry& t = manifest.tensors[i];
      t.row_bytes = t.length;
      if (t.length > 0) manifest.slices.push_back({static_cast<int64_t>(i), {0, 1, 0, t.length}, t.sha256});
    }
  } else {
    int64_t offset = 0;
    for (TensorEntry& t : manifest.tensors) t.offset = offset, offset = add(offset, t.stored_length());
  }
  int64_t start = 0;
  for (SliceEntry& s : manifest.slices) {
    int64_t length = 0;
    if (s.where.row_end < s.where.row_begin || s.where.byte_end < s.where.byte_begin ||
        __builtin_mul_overflow(s.where.row_end - s.where.row_begin, s.where.width(), &length))
      base::fail("{}: slice {} has impossible rows or bytes", path, &s - manifest.slices.data());
    s.start = start;
    start = add(start, length);
  }
  if (manifest.version >= kStreamedVersion) return;
  manifest.mark = mark_from(manifest.version == 1 ? manifest.state_sha256 : digest_of_slices(manifest));
}

Manifest describe(const StateView& state) {
  Manifest manifest;
  manifest.step = state.step;
  manifest.integers = state.integers;
  manifest.reals = state.reals;
  manifest.texts = state.texts;
  std::vector<const TensorRef*> sorted;
  for (const TensorRef& tensor : state.tensors) sorted.push_back(&tensor);
  std::sort(sorted.begin(), sorted.end(), [](auto* a, auto* b) { return a->name < b->name; });
  int64_t offset = 0;
  for (const TensorRef* tensor : sorted) {
    const int64_t length = num_bytes_of(tensor->dtype, tensor->shape, tensor->name);
    if (tensor->bytes.size() != length)
      base::fail("tensor '{}' has {} bytes of memory; its shape needs {}", tensor->name, tensor->bytes.size(),
                 length);
    manifest.tensors.push_back(
        {tensor->name, tensor->dtype, tensor->shape, offset, length, length, digest_of(tensor->bytes)});
    offset = base::checked_add(offset, length, "bytes of all tensors");
  }
  manifest.state_sha256 = digest_of_state(manifest);
  check_contents(manifest, "state to be saved");
  // Only the printer can tell a text that cannot be written; better now than with half the files on the disk.
  static_cast<void>(print_manifest(manifest));
  return manifest;
}

std::string state_sha256(const StateView& state) { return base::to_hex(describe(state).state_sha256); }

}  // namespace pleat::checkpoint
