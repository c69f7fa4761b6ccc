#include "checkpoint/shard_writer.h"

#include <algorithm>

#include "checkpoint/shard.h"

namespace pleat::checkpoint {

void write_durably(base::Vfs& vfs, const std::string& path, int max_attempts,
                   const std::function<void(base::File&)>& fill) {
  for (int attempt = 1;; ++attempt) {
    try {
      base::File file = base::File::create(vfs, path);
      fill(file);
      file.fsync();
      file.drop_cached();
      file.close();
      return;
    } catch (const base::VfsError& error) {
      const bool in_doubt = error.op() == base::VfsOp::Fsync || error.op() == base::VfsOp::Close;
      if (!in_doubt || attempt >= max_attempts) throw;
      vfs.unlink(path);
    }
  }
}

void write_shards(base::Vfs& vfs, const std::string& directory, const Manifest& manifest, int64_t start,
                  ShareStream& share, int max_attempts) {
  std::vector<std::byte> buffer;
  for (size_t i = 0; i < manifest.shards.size(); ++i) {
    const ShardEntry& shard = manifest.shards[i];
    if (shard.start < start || shard.start >= start + share.length()) continue;
    const ShardLayout layout = ShardLayout::of(manifest, i);
    write_durably(vfs, base::join_path(directory, shard.file), max_attempts, [&](base::File& file) {
      file.preallocate(layout.file_length());
      file.write(shard_header(layout));
      for (int64_t block = 0; block < layout.num_blocks(); ++block) {
        buffer.resize(static_cast<size_t>(kBlockHeaderBytes + layout.payload_bytes(block)));
        const uint32_t crc = share.read(layout.start + block * layout.block_bytes - start,
                                        std::span(buffer).subspan(kBlockHeaderBytes));
        const auto header = block_header(layout, block, crc);
        std::copy(header.begin(), header.end(), buffer.begin());
        file.write(buffer);
      }
    });
  }
}

}  // namespace pleat::checkpoint
