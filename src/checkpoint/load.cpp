#include "checkpoint/load.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "checkpoint/damage.h"

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

void Loaded::fail_digest(const TensorEntry& entry) const {
  base::fail_with(ExitCode::Storage, "{}: tensor '{}' does not have the SHA-256 it was saved with", path_,
                  entry.name);
}

void Loaded::read_tensor(const std::string& name, const Bytes& out) const {
  const TensorEntry& entry = tensor(name);
  if (out.size() != entry.length)
    base::fail("tensor '{}' of checkpoint '{}' has {} bytes; the buffer has {}", name, path_, entry.length,
               out.size());
  if (entry.zero) return out.zero();
  PartReader reader(*this);
  base::Sha256 hash;
  out.write(0, entry.length, [&](int64_t begin, std::span<std::byte> room) {
    const Part part{begin, 0, static_cast<int64_t>(room.size())};
    reader.read(name, {&part, 1}, room);
    hash.update(room);
  });
  if (hash.digest() != entry.sha256) fail_digest(entry);
}

void PartReader::read(const std::string& name, std::span<const Part> parts, std::span<std::byte> out) {
  const TensorEntry& entry = loaded_.tensor(name);
  if (walked_ != &entry && !entry.zero) {
    const auto tensor_idx = static_cast<size_t>(&entry - loaded_.manifest_.tensors.data());
    walk_.emplace(loaded_.manifest_, loaded_.index_, tensor_idx, loaded_.path_);
    walked_ = &entry;
  }
  for (const Part& part : parts) {
    const auto fits = [&](int64_t begin, int64_t size) { return begin >= 0 && part.count <= size - begin; };
    if (part.count < 0 || !fits(part.tensor_begin, entry.length) ||
        !fits(part.out_begin, static_cast<int64_t>(out.size())))
      base::fail("{} bytes of tensor '{}' from {} to {}: outside of its {} bytes or of the buffer's {}",
                 part.count, name, part.tensor_begin, part.out_begin, entry.length, out.size());
    if (entry.zero) {
      std::fill_n(out.begin() + part.out_begin, part.count, std::byte{0});
      continue;
    }
    for (int64_t done = 0; done < part.count;) {
      const TensorWalk::Piece piece = walk_->at(part.tensor_begin + done);
      blocks_.read_in_turn(walk_->num_read_in_turn());
      const std::span<const std::byte> bytes = blocks_.at(piece.stored);
      const int64_t count = std::min({part.count - done, piece.count, static_cast<int64_t>(bytes.size())});
      std::memcpy(out.data() + part.out_begin + done, bytes.data(), static_cast<size_t>(count));
      done += count;
    }
  }
}

void Loaded::verify() const { verify({0, manifest_.tensors.size()}); }

void Loaded::verify(TensorRange range, const std::function<void(int64_t)>& progress) const {
  const std::vector<base::Sha256Digest> digests =
      digest_tensors(*vfs_, path_, manifest_, index_, range, progress);
  for (size_t i = 0; i < digests.size(); ++i)
    if (digests[i] != manifest_.tensors[range.begin + i].sha256)
      fail_digest(manifest_.tensors[range.begin + i]);
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
  loaded.index_ = SliceIndex(loaded.manifest_);
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

Loaded open_same(base::Vfs& vfs, const std::string& path, const base::Sha256Digest& manifest_sha256) {
  std::string why = "its manifest is another";
  try {
    Loaded loaded = open(vfs, path);
    if (loaded.manifest_sha256() == manifest_sha256) return loaded;
  } catch (const base::VfsError& error) {
    if (error.error_number() != ENOENT && error.error_number() != EIO) throw;
    why = error.what();
  } catch (const base::Error& error) {
    if (!is_damage(error)) throw;
    why = error.what();
  }
  throw NotForUs(fmt::format(
      "does not see '{}' as rank 0 does: {}; needed is one folder of checkpoints that all hosts share", path,
      why));
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
    if (target.bytes.size() != needed)
      base::fail("target '{}' has {} bytes of memory; its shape needs {}", target.name, target.bytes.size(),
                 needed);
  }
  require_fits(loaded, expected);
  loaded.verify();
  for (const Target& target : targets) loaded.read_tensor(target.name, target.bytes);
}

}  // namespace pleat::checkpoint
