// Bytes of a checkpoint's stream, read from its shards block by block. A block is checked before a byte of it is
// shown, the header and the length of a file when it is opened.
//
// A few blocks and files are kept, the ones used last: whoever reads a tensor in its own order from slices that lie
// side by side reads as many places of the stream in turn.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/vfs.h"
#include "checkpoint/manifest.h"

namespace pleat::checkpoint {

class BlockReader {
 public:
  // `path`: of the checkpoint. The manifest has been checked; all outlive this.
  BlockReader(base::Vfs& vfs, const std::string& path, const Manifest& manifest)
      : vfs_(&vfs), path_(&path), manifest_(&manifest) {}

  // The bytes from `stored` on to the end of their block. They are there until the next call.
  std::span<const std::byte> at(int64_t stored);
  // How many places are read in turn. Two blocks of each are kept: where all go on to their next one in the same round,
  // none may take the place of one that is still to come.
  void read_in_turn(size_t num_places) { num_kept_ = 2 * num_places; }

 private:
  struct Block {
    int64_t begin = 0;
    std::vector<std::byte> raw;
    std::span<const std::byte> payload;
    int64_t used = 0;
  };
  struct Opened {
    base::File file;
    int64_t used = 0;
  };
  base::File& file_of(size_t shard_idx);
  void read(Block& block, size_t shard_idx, int64_t block_idx);
  std::string tensors_between(int64_t begin, int64_t end) const;

  base::Vfs* vfs_;
  const std::string* path_;
  const Manifest* manifest_;
  size_t num_kept_ = 2;
  int64_t time_ = 0;
  std::map<int64_t, Block> blocks_;  // by where they begin in the stream
  std::map<size_t, Opened> files_;
};

}  // namespace pleat::checkpoint
