// What a dataset's files hold, as one digest over every byte: SHA-256 of the digests of pieces of 8 MiB, which
// threads share. Reading all of a large dataset takes a while, so digests are kept beside the run together
// with what the system says of each file (device, inode, size, times of change); a file of which any of this
// differs is read again.
#pragma once

#include <span>
#include <string>

#include "data/indexed_dataset.h"

namespace pleat::data {

// 64 hex digits, of .bin, .idx and, where there is one, .mask.bin.
std::string fingerprint(const IndexedDataset& dataset, int num_threads);

// The same, from `cache_path` where that has it. The file is made or added to where its folder exists; one
// that cannot be read or written is done without.
std::string cached_fingerprint(const IndexedDataset& dataset, int num_threads, const std::string& cache_path);

}  // namespace pleat::data
