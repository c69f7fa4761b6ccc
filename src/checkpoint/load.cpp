#include "checkpoint/load.h"

#include <algorithm>
#include <cstring>

#include "base/checked.h"
#include "checkpoint/shard.h"

namespace pleat::checkpoint {

using base::ExitCode;

namespace {

template <class Map>
const auto& lookup(const Map& map, const std::string& name, const char* what, const std::string& path) {
  const auto found = map.find(name);
  if (found == map.end()) base::fail("checkpoint '{}' has no {} named '{}'", path, what, name);
  return found->second;
}

}  // namespace

int64_t Loaded::integer(const std::string& name) const {
  return lookup(manifest_.integers, name, "integer", path_);
}
double Loaded::real(const std::string& name) const { return lookup(manifest_.reals, name, "real", path_); }
const std::string& Loaded::text(const std::string& name) const {
  return lookup(manifest_.texts, name, "text", path_);
}

const TensorEntry& Loaded::tensor(const std::string& name) const {
  const auto& tensors = manifest_.tensors;
  const auto found = std::lower_bound(tensors.begin(), tensors.end(), name,
                                      [](const TensorEntry& t, const std::string& n) { return t.name < n; });
  if (found == tensors.end() || found->name != name)
    base::fail("checkpoint '{}' has no tensor named '{}'", path_, name);
  return *found;
}

std::string Loaded::tensors_between(int64_t begin, int64_t end) const {
  std::string names;
  int64_t count = 0;
  for (const TensorEntry& t : manifest_.tensors) {
    if (t.length == 0 || t.offset >= end || t.offset + t.length <= begin) continue;
    if (++count <= 3) names += fmt::format("{}'{}'", count == 1 ? "" : ", ", t.name);
  }
  return count <= 3 ? names : fmt::format("{} and {} more", names, count - 3);
}

std::span<const std::byte> Loaded::read_block(base::File& file, size_t shard_idx, int64_t block_idx,
                                              std::vector<std::byte>& scratch) const {
  const ShardLayout layout = ShardLayout::of(manifest_, shard_idx);
  const int64_t payload_bytes = layout.payload_bytes(block_idx);
  scratch.resize(static_cast<size_t>(kBlockHeaderBytes + payload_bytes));
  const size_t got = file.pread(scratch, layout.block_position(block_idx));
  const std::span<const std::byte> raw = std::span(scratch).first(got);
  try {
    return check_block(layout, block_idx, raw, file.path());
  } catch (const base::Error& error) {
    const int64_t begin = layout.start + block_idx * layout.block_bytes;
    base::fail_with(error.code(), "{} (block {} of {}, tensor {})", error.what(), block_idx,
                    layout.num_blocks(), tensors_between(begin, begin + payload_bytes));
  }
}

void Loaded::read_tensor(const std::string& name, std::span<std::byte> out) const {
  const TensorEntry& entry = tensor(name);
  if (static_cast<int64_t>(out.size()) != entry.length)
    base::fail("tensor '{}' of checkpoint '{}' has {} bytes; the buffer has {}", name, path_, entry.length,
               out.size());
  base::Sha256 hash;
  std::vector<std::byte> scratch;
  const auto& shards = manifest_.shards;
  auto shard = std::upper_bound(shards.begin(), shards.end(), entry.offset,
                                [](int64_t offset, const ShardEntry& s) { return offset < s.start; });
  for (int64_t done = 0; done < entry.length; ++shard) {
    if (done == 0) --shard;
    const auto shard_idx = static_cast<size_t>(shard - shards.begin());
    base::File file = base::File::open_read(*vfs_, base::join_path(path_, shard->file));
    const int64_t shard_end = shard->start + shard->length;
    while (done < entry.length && entry.offset + done < shard_end) {
      const int64_t in_shard = entry.offset + done - shard->start;
      const int64_t block_idx = in_shard / manifest_.block_bytes;
      const int64_t in_block = in_shard % manifest_.block_bytes;
      const std::span<const std::byte> payload = read_block(file, shard_idx, block_idx, scratch);
      const int64_t count = std::min(entry.length - done, static_cast<int64_t>(payload.size()) - in_block);
      const std::span<const std::byte> part =
          payload.subspan(static_cast<size_t>(in_block), static_cast<size_t>(count));
      hash.update(part);
      std::memcpy(out.data() + done, part.data(), part.size());
      done += count;
    }
  }
  if (hash.digest() != entry.sha256)
    base::fail_with(ExitCode::Storage, "{}: tensor '{}' does not have the SHA-256 it was saved with", path_,
                    name);
}

void PartReader::seek(int64_t at) {
  if (at >= block_begin_ && at < block_end_) return;
  const Manifest& manifest = loaded_.manifest();
  const auto shard = std::upper_bound(manifest.shards.begin(), manifest.shards.end(), at,
                                      [](int64_t offset, const ShardEntry& s) { return offset < s.start; }) -
                     1;
  const auto idx = static_cast<size_t>(shard - manifest.shards.begin());
  if (!file_ || idx != shard_idx_) {
    file_.reset();
    file_.emplace(base::File::open_read(*loaded_.vfs_, base::join_path(loaded_.path(), shard->file)));
    shard_idx_ = idx;
  }
  const int64_t block_idx = (at - shard->start) / manifest.block_bytes;
  block_end_ = block_begin_;  // nothing, should the read fail
  payload_ = loaded_.read_block(*file_, idx, block_idx, scratch_);
  block_begin_ = shard->start + block_idx * manifest.block_bytes;
  block_end_ = block_begin_ + static_cast<int64_t>(payload_.size());
}

void PartReader::read(const std::string& name, std::span<const Part> parts, std::span<std::byte> out) {
  const TensorEntry& entry = loaded_.tensor(name);
  for (const Part& part : parts) {
    const auto fits = [&](int64_t begin, int64_t size) { return begin >= 0 && part.count <= size - begin; };
    if (part.count < 0 || !fits(part.tensor_begin, entry.length) ||
        !fits(part.out_begin, static_cast<int64_t>(out.size())))
      base::fail("{} bytes of tensor '{}' from {} to {}: outside of its {} bytes or of the buffer's {}",
                 part.count, name, part.tensor_begin, part.out_begin, entry.length, out.size());
    for (int64_t done = 0; done < part.count;) {
      const int64_t at = entry.offset + part.tensor_begin + done;
      seek(at);
      const int64_t count = std::min(part.count - done, block_end_ - at);
      std::memcpy(out.data() + part.out_begin + done, payload_.data() + (at - block_begin_),
                  static_cast<size_t>(count));
      done += count;
    }
  }
}

void Loaded::verify() const {
  std::vector<std::byte> scratch;
  size_t tensor_idx = 0;
  base::Sha256 tensor_hash;
  int64_t tensor_done = 0;
  const auto finish_tensors = [&] {
    const auto& tensors = manifest_.tensors;
    while (tensor_idx < tensors.size() && tensor_done == tensors[tensor_idx].length) {
      if (tensor_hash.digest() != tensors[tensor_idx].sha256)
        base::fail_with(ExitCode::Storage, "{}: tensor '{}' does not have the SHA-256 it was saved with",
                        path_, tensors[tensor_idx].name);
      tensor_hash = base::Sha256();
      tensor_done = 0;
      ++tensor_idx;
    }
  };
  finish_tensors();
  for (size_t shard_idx = 0; shard_idx < manifest_.shards.size(); ++shard_idx) {
    const ShardEntry& shard = manifest_.shards[shard_idx];
    const ShardLayout layout = ShardLayout::of(manifest_, shard_idx);
    base::File file = base::File::open_read(*vfs_, base::join_path(path_, shard.file));
    base::Sha256 file_hash;
    std::array<std::byte, kShardHeaderBytes> header;
    const size_t got = file.pread(header, 0);
    check_shard_header(layout, std::span(header).first(got), file.path());
    file_hash.update(header);
    for (int64_t block_idx = 0; block_idx < layout.num_blocks(); ++block_idx) {
      std::span<const std::byte> payload = read_block(file, shard_idx, block_idx, scratch);
      file_hash.update(scratch);
      while (!payload.empty()) {
        const int64_t left = manifest_.tensors[tensor_idx].length - tensor_done;
        const auto count = std::min(payload.size(), static_cast<size_t>(left));
        tensor_hash.update(payload.first(count));
        payload = payload.subspan(count);
        tensor_done += static_cast<int64_t>(count);
        finish_tensors();
      }
    }
    std::byte beyond;
    if (file.pread({&beyond, 1}, shard.file_length) != 0)
      base::fail_with(ExitCode::Storage, "{}: longer than the {} bytes the manifest lists", file.path(),
                      shard.file_length);
    if (file_hash.digest() != shard.sha256)
      base::fail_with(ExitCode::Storage, "{}: the file does not have the SHA-256 the manifest lists",
                      file.path());
  }
}

Loaded open(base::Vfs& vfs, const std::string& path) {
  Loaded loaded(vfs, path);
  const std::optional<base::FileStat> found = vfs.stat(path);
  if (!found || found->kind != base::FileKind::Directory)
    base::fail("checkpoint '{}' is not a directory", path);
  const std::vector<std::string> names = vfs.list(path);
  const auto has = [&](const std::string& name) {
    return std::binary_search(names.begin(), names.end(), name);
  };
  const std::string manifest_path = base::join_path(path, kManifestName);
  if (!has(kManifestName)) base::fail_with(ExitCode::Storage, "{}: there is no such file", manifest_path);
  const std::string text = base::read_file(vfs, manifest_path, kMaxManifestBytes);
  loaded.manifest_ = parse_manifest(text, manifest_path);
  loaded.manifest_sha256_ = digest_of_manifest(text);
  for (const ShardEntry& shard : loaded.manifest_.shards) {
    const std::string shard_path = base::join_path(path, shard.file);
    if (!has(shard.file)) base::fail_with(ExitCode::Storage, "{}: there is no such file", shard_path);
    const std::optional<base::FileStat> stat = vfs.stat(shard_path);
    if (!stat || stat->kind != base::FileKind::Regular)
      base::fail_with(ExitCode::Storage, "{}: not a regular file", shard_path);
    if (stat->size != shard.file_length)
      base::fail_with(ExitCode::Storage, "{}: {} bytes; the manifest lists {}", shard_path, stat->size,
                      shard.file_length);
  }
  // Shard names are distinct (the parser requires the numbered ones), so equal counts mean equal sets.
  if (names.size() != loaded.manifest_.shards.size() + 1)
    for (const std::string& name : names) {
      const bool listed = std::any_of(loaded.manifest_.shards.begin(), loaded.manifest_.shards.end(),
                                      [&](const ShardEntry& s) { return s.file == name; });
      if (!listed && name != kManifestName)
        base::fail_with(ExitCode::Storage, "{}: a file the manifest does not list",
                        base::join_path(path, name));
    }
  return loaded;
}

void require_fits(const Loaded& loaded, std::span<const Expected> tensors) {
  const auto shape_text = [](tensor::Dtype dtype, std::span<const int64_t> shape) {
    return fmt::format("{}[{}]", tensor::name_of(dtype), fmt::join(shape.begin(), shape.end(), ", "));
  };
  std::map<std::string, const Expected*> wanted;
  std::string problems;
  for (const Expected& tensor : tensors)
    if (!wanted.emplace(tensor.name, &tensor).second)
      problems += fmt::format("\n  asked for twice: '{}'", tensor.name);
  for (const TensorEntry& entry : loaded.manifest().tensors) {
    const auto found = wanted.find(entry.name);
    if (found == wanted.end()) {
      problems += fmt::format("\n  only in the checkpoint: '{}'", entry.name);
      continue;
    }
    const Expected& tensor = *found->second;
    if (tensor.dtype != entry.dtype || tensor.shape != entry.shape)
      problems += fmt::format("\n  '{}': {} in the checkpoint, {} asked for", entry.name,
                              shape_text(entry.dtype, entry.shape), shape_text(tensor.dtype, tensor.shape));
    wanted.erase(found);
  }
  for (const auto& [name, tensor] : wanted)
    problems += fmt::format("\n  missing in the checkpoint: '{}'", name);
  if (!problems.empty()) base::fail("checkpoint '{}' does not fit this run:{}", loaded.path(), problems);
}

void restore(const Loaded& loaded, std::span<const Target> targets) {
  std::vector<Expected> expected;
  for (const Target& target : targets) {
    expected.push_back({target.name, target.dtype, target.shape});
    const int64_t needed = num_bytes_of(target.dtype, target.shape, target.name);
    if (static_cast<int64_t>(target.bytes.size()) != needed)
      base::fail("target '{}' has {} bytes of memory; its shape needs {}", target.name, target.bytes.size(),
                 needed);
  }
  require_fits(loaded, expected);
  loaded.verify();
  for (const Target& target : targets) loaded.read_tensor(target.name, target.bytes);
}

}  // namespace pleat::checkpoint
