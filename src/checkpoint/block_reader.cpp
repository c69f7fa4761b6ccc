#include "checkpoint/block_reader.h"

#include <algorithm>
#include <array>

#include "checkpoint/shard.h"

namespace pleat::checkpoint {

using base::ExitCode;

namespace {

constexpr size_t kMaxOpenFiles = 32;

template <class Map>
void drop_least_used(Map& map) {
  map.erase(std::min_element(map.begin(), map.end(),
                             [](const auto& a, const auto& b) { return a.second.used < b.second.used; }));
}

}  // namespace

std::string BlockReader::tensors_between(int64_t begin, int64_t end) const {
  const auto& slices = manifest_->slices;
  auto slice = std::upper_bound(slices.begin(), slices.end(), begin,
                                [](int64_t at, const SliceEntry& s) { return at < s.start; });
  if (slice != slices.begin()) --slice;
  std::string names;
  int64_t count = 0, before = -1;
  for (; slice != slices.end() && slice->start < end; ++slice) {
    if (slice->tensor_idx == before) continue;
    before = slice->tensor_idx;
    if (++count <= 3)
      names +=
          fmt::format("{}'{}'", count == 1 ? "" : ", ", manifest_->tensors[static_cast<size_t>(before)].name);
  }
  return count <= 3 ? names : fmt::format("{} and {} more", names, count - 3);
}

base::File& BlockReader::file_of(size_t shard_idx) {
  if (const auto found = files_.find(shard_idx); found != files_.end()) {
    found->second.used = ++time_;
    return found->second.file;
  }
  if (files_.size() >= kMaxOpenFiles) drop_least_used(files_);
  const ShardEntry& shard = manifest_->shards[shard_idx];
  base::File file = base::File::open_read(*vfs_, base::join_path(*path_, shard.file));
  std::array<std::byte, kShardHeaderBytes> header;
  const size_t got = file.pread(header, 0);
  check_shard_header(ShardLayout::of(*manifest_, shard_idx), std::span(header).first(got), file.path());
  std::byte beyond;
  if (file.pread({&beyond, 1}, shard.file_length) != 0)
    base::fail_with(ExitCode::Storage, "{}: longer than the {} bytes the manifest lists", file.path(),
                    shard.file_length);
  return files_.emplace(shard_idx, Opened{std::move(file), ++time_}).first->second.file;
}

void BlockReader::read(Block& block, size_t shard_idx, int64_t block_idx) {
  const ShardLayout layout = ShardLayout::of(*manifest_, shard_idx);
  const int64_t payload_bytes = layout.payload_bytes(block_idx);
  base::File& file = file_of(shard_idx);
  block.raw.resize(static_cast<size_t>(kBlockHeaderBytes + payload_bytes));
  const size_t got = file.pread(block.raw, layout.block_position(block_idx));
  try {
    block.payload = check_block(layout, block_idx, std::span(block.raw).first(got), file.path());
  } catch (const base::Error& error) {
    base::fail_with(error.code(), "{} (block {} of {}, tensor {})", error.what(), block_idx,
                    layout.num_blocks(), tensors_between(block.begin, block.begin + payload_bytes));
  }
}

std::span<const std::byte> BlockReader::at(int64_t stored) {
  auto found = blocks_.upper_bound(stored);
  if (found != blocks_.begin()) {
    Block& block = std::prev(found)->second;
    if (stored < block.begin + static_cast<int64_t>(block.payload.size())) {
      block.used = ++time_;
      return block.payload.subspan(static_cast<size_t>(stored - block.begin));
    }
  }
  const auto& shards = manifest_->shards;
  const auto shard = std::upper_bound(shards.begin(), shards.end(), stored,
                                      [](int64_t at, const ShardEntry& s) { return at < s.start; }) -
                     1;
  const int64_t block_idx = (stored - shard->start) / manifest_->block_bytes;
  Block block;
  while (blocks_.size() >= num_kept_) {
    // Its memory is used again where there is one.
    const auto oldest = std::min_element(blocks_.begin(), blocks_.end(), [](const auto& a, const auto& b) {
      return a.second.used < b.second.used;
    });
    block.raw = std::move(oldest->second.raw);
    blocks_.erase(oldest);
  }
  block.begin = shard->start + block_idx * manifest_->block_bytes;
  block.used = ++time_;
  read(block, static_cast<size_t>(shard - shards.begin()), block_idx);
  const Block& kept = blocks_[block.begin] = std::move(block);
  return kept.payload.subspan(static_cast<size_t>(stored - kept.begin));
}

}  // namespace pleat::checkpoint
