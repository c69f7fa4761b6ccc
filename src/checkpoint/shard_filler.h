// Shards that are filled in the order of the stream by whoever has its bytes, and found again after a stop.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/vfs.h"
#include "checkpoint/manifest.h"

namespace pleat::checkpoint {

class ShardFiller {
 public:
  // Takes the shards in `directory` that are whole, and their digests into manifest.slices, up to the first that is
  // not; what lies behind that one goes. No slice lies in two shards. All outlive this.
  ShardFiller(base::Vfs& vfs, const std::string& directory, Manifest& manifest);

  int64_t position() const { return position_; }  // in the stream: what comes next
  // The next bytes of the stream. A shard that is full is durable before this returns.
  void take(std::span<const std::byte> bytes);
  // Removes what only serves to go on, once nobody needs to.
  static void remove_digests(base::Vfs& vfs, const std::string& directory, const Manifest& manifest);

 private:
  bool find_whole(size_t shard_idx);
  void begin_shard();
  void end_block();
  void end_shard();
  std::string path_of(size_t shard_idx, const char* suffix = "") const;

  base::Vfs& vfs_;
  const std::string& directory_;
  Manifest& manifest_;
  int64_t position_ = 0;
  size_t shard_idx_ = 0, slice_idx_ = 0;
  std::optional<base::File> file_;
  std::vector<std::byte> block_;  // header and payload so far
  int64_t block_idx_ = 0;
  uint32_t crc_ = 0;
  base::Sha256 hash_;  // of the slice so far
};

// Bytes of the stream in whole shards of `directory`, as ShardFiller would find them.
int64_t bytes_in_whole_shards(base::Vfs& vfs, const std::string& directory, const Manifest& manifest);

}  // namespace pleat::checkpoint
