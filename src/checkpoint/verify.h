// Reading tensors in their own order and comparing them with what the manifest says.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <vector>

#include "base/vfs.h"
#include "checkpoint/slices.h"

namespace pleat::checkpoint {

// Tensors [begin, end) of a table.
struct TensorRange {
  size_t begin = 0, end = 0;
};
// What rank `rank` of `size` verifies: tensors in a row, with about as many bytes as every other rank's.
TensorRange range_for(const Manifest& manifest, int rank, int size);

// Reads every byte of these tensors once, in the tensor's order: headers and checksums of blocks, digests of slices.
// Returns the digests of the tensors, in their order, which nothing has been compared with yet. `progress` hears of
// bytes that were read, a block or less at a time.
std::vector<base::Sha256Digest> digest_tensors(base::Vfs& vfs, const std::string& path,
                                               const Manifest& manifest, const SliceIndex& index,
                                               TensorRange range,
                                               const std::function<void(int64_t)>& progress = {});

// SHA-256 of so many zero bytes, for each of the lengths, in one pass over the longest.
std::map<int64_t, base::Sha256Digest> digests_of_zeros(const std::set<int64_t>& lengths);

}  // namespace pleat::checkpoint
