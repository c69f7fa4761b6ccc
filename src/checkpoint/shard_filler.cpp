#include "checkpoint/shard_filler.h"

#include <algorithm>

#include "base/crc32c.h"
#include "checkpoint/shard.h"
#include "checkpoint/shard_writer.h"

namespace pleat::checkpoint {

namespace {

constexpr char kUnfinished[] = ".part", kDigests[] = ".digests";
constexpr size_t kDigestLine = 65;

// The slices of a shard: [first, end) of all.
struct SliceRange {
  size_t begin = 0, end = 0;
};
SliceRange slices_in(const Manifest& manifest, const ShardEntry& shard) {
  const auto first_at = [&](int64_t place) {
    return static_cast<size_t>(
        std::lower_bound(manifest.slices.begin(), manifest.slices.end(), place,
                         [](const SliceEntry& s, int64_t at) { return s.start < at; }) -
        manifest.slices.begin());
  };
  return {first_at(shard.start), first_at(shard.start + shard.length)};
}

std::string digest_lines(const Manifest& manifest, const SliceRange& range) {
  std::string out;
  for (size_t i = range.begin; i < range.end; ++i) out += base::to_hex(manifest.slices[i].sha256) + "\n";
  return out + base::to_hex(base::sha256(out)) + "\n";
}

// Of a shard that is whole; nothing where anything is not as it was left.
std::optional<std::vector<base::Sha256Digest>> read_digests(base::Vfs& vfs, const std::string& path,
                                                            size_t count) {
  const std::optional<base::FileStat> found = vfs.stat(path);
  const size_t length = (count + 1) * kDigestLine;
  if (!found || found->kind != base::FileKind::Regular || found->size != static_cast<int64_t>(length))
    return std::nullopt;
  const std::string text = base::read_file(vfs, path, static_cast<int64_t>(length));
  std::vector<base::Sha256Digest> out(count + 1);
  for (size_t i = 0; i <= count; ++i) {
    const std::string_view line = std::string_view(text).substr(i * kDigestLine, kDigestLine);
    if (line.size() != kDigestLine || line.back() != '\n' ||
        !base::from_hex(line.substr(0, kDigestLine - 1), out[i]))
      return std::nullopt;
  }
  if (base::sha256(std::string_view(text).substr(0, count * kDigestLine)) != out.back()) return std::nullopt;
  out.pop_back();
  return out;
}

std::optional<std::vector<base::Sha256Digest>> find_shard(base::Vfs& vfs, const std::string& directory,
                                                          const Manifest& manifest, size_t shard_idx) {
  const ShardEntry& shard = manifest.shards[shard_idx];
  const std::string path = base::join_path(directory, shard.file);
  const std::optional<base::FileStat> found = vfs.stat(path);
  if (!found || found->kind != base::FileKind::Regular || found->size != shard.file_length)
    return std::nullopt;
  const SliceRange range = slices_in(manifest, shard);
  return read_digests(vfs, path + kDigests, range.end - range.begin);
}

void remove_if_there(base::Vfs& vfs, const std::string& path) {
  if (vfs.stat(path)) vfs.remove_all(path);
}

}  // namespace

int64_t bytes_in_whole_shards(base::Vfs& vfs, const std::string& directory, const Manifest& manifest) {
  int64_t bytes = 0;
  for (size_t i = 0; i < manifest.shards.size() && find_shard(vfs, directory, manifest, i); ++i)
    bytes += manifest.shards[i].length;
  return bytes;
}

ShardFiller::ShardFiller(base::Vfs& vfs, const std::string& directory, Manifest& manifest)
    : vfs_(vfs), directory_(directory), manifest_(manifest) {
  while (shard_idx_ < manifest_.shards.size() && find_whole(shard_idx_)) ++shard_idx_;
  for (size_t i = shard_idx_; i < manifest_.shards.size(); ++i)
    for (const char* suffix : {"", kUnfinished, kDigests}) remove_if_there(vfs_, path_of(i, suffix));
}

std::string ShardFiller::path_of(size_t shard_idx, const char* suffix) const {
  return base::join_path(directory_, manifest_.shards[shard_idx].file + suffix);
}

bool ShardFiller::find_whole(size_t shard_idx) {
  const auto digests = find_shard(vfs_, directory_, manifest_, shard_idx);
  if (!digests) return false;
  for (const base::Sha256Digest& digest : *digests) manifest_.slices[slice_idx_++].sha256 = digest;
  position_ += manifest_.shards[shard_idx].length;
  return true;
}

void ShardFiller::begin_shard() {
  const ShardLayout layout = ShardLayout::of(manifest_, shard_idx_);
  file_.emplace(base::File::create(vfs_, path_of(shard_idx_, kUnfinished)));
  file_->preallocate(layout.file_length());
  file_->write(shard_header(layout));
  block_idx_ = 0;
  block_.assign(static_cast<size_t>(kBlockHeaderBytes), std::byte{0});
  crc_ = 0;
}

void ShardFiller::take(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    PLEAT_CHECK(shard_idx_ < manifest_.shards.size(), "more bytes than the table has room for");
    if (!file_) begin_shard();
    const ShardLayout layout = ShardLayout::of(manifest_, shard_idx_);
    const SliceEntry& slice = manifest_.slices[slice_idx_];
    const int64_t in_block = static_cast<int64_t>(block_.size()) - kBlockHeaderBytes;
    const int64_t count =
        std::min({static_cast<int64_t>(bytes.size()), layout.payload_bytes(block_idx_) - in_block,
                  slice.start + slice.where.length() - position_});
    const std::span<const std::byte> now = bytes.first(static_cast<size_t>(count));
    hash_.update(now);
    crc_ = base::crc32c(now, crc_);  // of the source: the copy is one of the things it guards
    block_.insert(block_.end(), now.begin(), now.end());
    bytes = bytes.subspan(now.size());
    position_ += count;
    if (position_ == slice.start + slice.where.length()) {
      manifest_.slices[slice_idx_++].sha256 = hash_.digest();
      hash_ = base::Sha256();
    }
    if (in_block + count == layout.payload_bytes(block_idx_)) end_block();
    if (position_ == layout.start + layout.length) end_shard();
  }
}

void ShardFiller::end_block() {
  const auto header = block_header(ShardLayout::of(manifest_, shard_idx_), block_idx_, crc_);
  std::copy(header.begin(), header.end(), block_.begin());
  file_->write(block_);
  ++block_idx_;
  block_.resize(static_cast<size_t>(kBlockHeaderBytes));
  crc_ = 0;
}

void ShardFiller::end_shard() {
  file_->fsync();
  file_->drop_cached();
  file_->close();
  file_.reset();
  const std::string text = digest_lines(manifest_, slices_in(manifest_, manifest_.shards[shard_idx_]));
  write_durably(vfs_, path_of(shard_idx_, kDigests), 1,
                [&](base::File& file) { file.write(std::as_bytes(std::span(text))); });
  vfs_.rename(path_of(shard_idx_, kUnfinished), path_of(shard_idx_));
  vfs_.fsync_dir(directory_);
  ++shard_idx_;
}

void ShardFiller::remove_digests(base::Vfs& vfs, const std::string& directory, const Manifest& manifest) {
  for (const ShardEntry& shard : manifest.shards)
    vfs.unlink(base::join_path(directory, shard.file + kDigests));
}

}  // namespace pleat::checkpoint
