// The bytes of one shard file: a header, then blocks of equal size (the last may be shorter), each with its
// own header and CRC-32C.
//
// Every header is a function of the manifest and of the block's checksum, so a reader does not interpret
// headers: it computes the one that must be there and compares. Headers carry the checkpoint's mark, so a block
// or shard that belongs to another step, another place or another run is refused by name.
#pragma once

#include <array>

#include "checkpoint/manifest.h"

namespace pleat::checkpoint {

inline constexpr int64_t kShardHeaderBytes = 64;
inline constexpr int64_t kBlockHeaderBytes = 32;
inline constexpr int64_t kMaxBlocks = int64_t{1} << 31;

struct ShardLayout {
  uint32_t version;
  uint32_t shard_idx;
  uint64_t mark;
  int64_t step;
  int64_t start;
  int64_t length;
  int64_t block_bytes;

  static ShardLayout of(const Manifest& manifest, size_t shard_idx);
  int64_t num_blocks() const;
  int64_t payload_bytes(int64_t block_idx) const;
  // Where the block's header is in the file.
  int64_t block_position(int64_t block_idx) const;
  int64_t file_length() const;
};

std::array<std::byte, kShardHeaderBytes> shard_header(const ShardLayout& layout);
std::array<std::byte, kBlockHeaderBytes> block_header(const ShardLayout& layout, int64_t block_idx,
                                                      uint32_t payload_crc);

// Throw a storage error that says what differs, prefixed with `where`.
void check_shard_header(const ShardLayout& layout, std::span<const std::byte> raw, const std::string& where);
// `raw` is header and payload; returns the payload.
std::span<const std::byte> check_block(const ShardLayout& layout, int64_t block_idx,
                                       std::span<const std::byte> raw, const std::string& where);

std::string shard_name(size_t shard_idx);
int64_t ceil_blocks(int64_t length, int64_t block_bytes);

}  // namespace pleat::checkpoint
