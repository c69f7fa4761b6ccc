#include "data/fingerprint.h"

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "base/regular_file.h"

namespace pleat::data {
namespace {

constexpr size_t kPieceBytes = size_t{8} << 20;

void add_file(const MappedFile& file, int num_threads, base::Sha256& sha) {
  const std::span<const std::byte> bytes = file.bytes();
  const size_t num_pieces = (bytes.size() + kPieceBytes - 1) / kPieceBytes;
  std::vector<base::Sha256Digest> digests(num_pieces);
  file.check_not_shrunk();
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i; (i = next.fetch_add(1)) < num_pieces;) {
      const size_t begin = i * kPieceBytes, size = std::min(kPieceBytes, bytes.size() - begin);
      digests[i] = base::sha256(bytes.subspan(begin, size));
      file.release(begin, begin + size);
    }
  };
  {
    std::vector<std::jthread> helpers;
    const size_t wanted = std::min<size_t>(static_cast<size_t>(std::max(num_threads, 1)), num_pieces);
    for (size_t i = 1; i < wanted; ++i) helpers.emplace_back(work);
    work();
  }
  sha.update(fmt::format("{};", bytes.size()));
  for (const base::Sha256Digest& digest : digests) sha.update(digest);
}

// Everything that changes when a file does.
std::string stamp_of(const IndexedDataset& dataset) {
  std::string out;
  dataset.for_each_file([&](const MappedFile& file) { out += file.stamp() + " "; });
  return out;
}

}  // namespace

std::string fingerprint(const IndexedDataset& dataset, int num_threads) {
  base::Sha256 sha;
  dataset.for_each_file([&](const MappedFile& file) { add_file(file, num_threads, sha); });
  return sha.hex();
}

std::string cached_fingerprint(const IndexedDataset& dataset, int num_threads,
                               const std::string& cache_path) {
  // A line is a digest and a stamp. Lines only come; the last one of a stamp counts.
  base::require_regular(cache_path);
  const std::string stamp = stamp_of(dataset);
  std::string known;
  base::Sha256Digest digest;
  {
    std::ifstream in(cache_path, std::ios::binary);
    for (std::string line; std::getline(in, line);)
      if (line.size() > 65 && line.substr(65) == stamp && base::from_hex(line.substr(0, 64), digest))
        known = line.substr(0, 64);
  }
  if (!known.empty()) return known;
  std::string made = fingerprint(dataset, num_threads);
  if (stamp_of(dataset) != stamp)
    base::fail_with(base::ExitCode::Storage, "{}: the dataset changed while it was read", dataset.prefix());
  std::error_code ignored;
  if (std::filesystem::is_directory(std::filesystem::path(cache_path).parent_path(), ignored)) {
    std::ofstream out(cache_path, std::ios::binary | std::ios::app);
    out << made << ' ' << stamp << '\n';
  }
  return made;
}

}  // namespace pleat::data
