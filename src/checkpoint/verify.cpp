#include "checkpoint/verify.h"

#include <algorithm>

#include "base/error.h"
#include "checkpoint/block_reader.h"

namespace pleat::checkpoint {

TensorRange range_for(const Manifest& manifest, int rank, int size) {
  const auto& tensors = manifest.tensors;
  const auto first_at = [&](int r) -> size_t {
    if (r == size) return tensors.size();
    if (r == 0) return 0;
    // A tensor belongs to whoever has its first byte.
    const int64_t length = manifest.stream_length(), bound = length / size * r + length % size * r / size;
    return static_cast<size_t>(
        std::lower_bound(tensors.begin(), tensors.end(), bound,
                         [](const TensorEntry& t, int64_t b) { return t.offset < b; }) -
        tensors.begin());
  };
  return {first_at(rank), first_at(rank + 1)};
}

std::map<int64_t, base::Sha256Digest> digests_of_zeros(const std::set<int64_t>& lengths) {
  constexpr int64_t kAtOnce = int64_t{1} << 20;
  const std::vector<std::byte> zeros(
      static_cast<size_t>(lengths.empty() ? 0 : std::min(*lengths.rbegin(), kAtOnce)));
  std::map<int64_t, base::Sha256Digest> out;
  base::Sha256 hash;
  int64_t at = 0;
  for (const int64_t length : lengths) {
    while (at < length) {
      const int64_t count = std::min(length - at, kAtOnce);
      hash.update(std::span(zeros).first(static_cast<size_t>(count)));
      at += count;
    }
    out[length] = hash.digest();
  }
  return out;
}

std::vector<base::Sha256Digest> digest_tensors(base::Vfs& vfs, const std::string& path,
                                               const Manifest& manifest, const SliceIndex& index,
                                               TensorRange range,
                                               const std::function<void(int64_t)>& progress) {
  BlockReader reader(vfs, path, manifest);
  std::vector<base::Sha256Digest> out;
  std::set<int64_t> zeros;
  for (size_t t = range.begin; t < range.end; ++t)
    if (manifest.tensors[t].zero) zeros.insert(manifest.tensors[t].length);
  const std::map<int64_t, base::Sha256Digest> zero_digests = digests_of_zeros(zeros);
  for (size_t t = range.begin; t < range.end; ++t) {
    const TensorEntry& tensor = manifest.tensors[t];
    if (tensor.zero) {
      out.push_back(zero_digests.at(tensor.length));
      continue;
    }
    const bool whole = index.of(t).size() == 1;  // then the digest of its slice is its own
    TensorWalk walk(manifest, index, t, path);
    base::Sha256 all;
    std::map<size_t, base::Sha256> open;  // of slices that have begun
    base::Sha256Digest last{};
    for (int64_t at = 0; at < tensor.length;) {
      TensorWalk::Piece piece = walk.at(at);
      reader.read_in_turn(walk.num_read_in_turn());
      const SliceEntry& slice = manifest.slices[piece.slice_idx];
      base::Sha256& hash = open[piece.slice_idx];
      for (; piece.count > 0;) {
        std::span<const std::byte> bytes = reader.at(piece.stored);
        bytes = bytes.first(std::min(bytes.size(), static_cast<size_t>(piece.count)));
        hash.update(bytes);
        if (!whole) all.update(bytes);
        const auto count = static_cast<int64_t>(bytes.size());
        piece.stored += count, piece.inside += count, piece.count -= count, at += count;
        if (progress) progress(count);
      }
      if (piece.inside < slice.where.length()) continue;
      last = hash.digest();
      open.erase(piece.slice_idx);
      if (last != slice.sha256)
        base::fail_with(
            base::ExitCode::Storage,
            "{}: tensor '{}', rows {} to {}, of each bytes {} to {}: not the SHA-256 it was saved with", path,
            tensor.name, slice.where.row_begin, slice.where.row_end, slice.where.byte_begin,
            slice.where.byte_end);
    }
    out.push_back(whole ? last : all.digest());
  }
  return out;
}

}  // namespace pleat::checkpoint
