#include "checkpoint/save.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

#include "base/crc32c.h"
#include "base/hash.h"
#include "checkpoint/best.h"
#include "checkpoint/directory.h"
#include "checkpoint/load.h"
#include "checkpoint/manifest.h"
#include "checkpoint/retain.h"
#include "checkpoint/shard.h"

namespace pleat::checkpoint {

namespace {

using base::ExitCode;

void check_options(const SaveOptions& options) {
  if (options.keep < 2) base::fail("keep = {}: at least 2 verified checkpoints must stay", options.keep);
  if (options.block_bytes < 1 || options.block_bytes > kMaxBlockBytes)
    base::fail("block_bytes = {} is not in 1..{}", options.block_bytes, kMaxBlockBytes);
  if (options.max_shard_bytes < 1 || options.max_shard_bytes > kMaxSize)
    base::fail("max_shard_bytes = {} is not in 1..{}", options.max_shard_bytes, kMaxSize);
  if (options.max_file_attempts < 1)
    base::fail("max_file_attempts = {}: at least 1 is needed", options.max_file_attempts);
}

// Calls `fill` on a new file, then makes its bytes durable. A failed fsync or close tells nothing about what
// is on the disk and may "succeed" when repeated, so the file is thrown away and another one takes its name.
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

// One shard's bytes from live memory; returns the digest of the file.
class ShardWriter {
 public:
  // `sources` are the tensors in the order of the manifest.
  ShardWriter(const Manifest& manifest, const std::vector<const TensorRef*>& sources)
      : manifest_(manifest), sources_(sources) {}

  base::Sha256Digest write(base::File& file, size_t shard_idx) {
    const ShardLayout layout = ShardLayout::of(manifest_, shard_idx);
    base::Sha256 hash;
    const auto put = [&](std::span<const std::byte> bytes) {
      hash.update(bytes);
      file.write(bytes);
    };
    file.preallocate(layout.file_length());
    put(shard_header(layout));
    for (int64_t block_idx = 0; block_idx < layout.num_blocks(); ++block_idx) {
      stage(layout, block_idx);
      put(buffer_);
    }
    return hash.digest();
  }

 private:
  void stage(const ShardLayout& layout, int64_t block_idx) {
    const int64_t length = layout.payload_bytes(block_idx);
    int64_t at = layout.start + block_idx * layout.block_bytes;
    buffer_.resize(static_cast<size_t>(kBlockHeaderBytes + length));
    const auto& tensors = manifest_.tensors;
    auto tensor = std::upper_bound(tensors.begin(), tensors.end(), at,
                                   [](int64_t offset, const TensorEntry& t) { return offset < t.offset; });
    --tensor;
    uint32_t crc = 0;
    for (int64_t done = 0; done < length; ++tensor) {
      const int64_t inside = at - tensor->offset;
      const int64_t count = std::min(length - done, tensor->length - inside);
      if (count == 0) continue;
      const TensorRef& source = *sources_[static_cast<size_t>(tensor - tensors.begin())];
      const auto to = std::span(buffer_).subspan(static_cast<size_t>(kBlockHeaderBytes + done),
                                                 static_cast<size_t>(count));
      if (source.read) {
        source.read(inside, to);
        crc = base::crc32c(to, crc);
      } else {
        const auto part = source.bytes.subspan(static_cast<size_t>(inside), static_cast<size_t>(count));
        // From the source, not from the copy: the copy is one of the things the checksum guards.
        crc = base::crc32c(part, crc);
        std::memcpy(to.data(), part.data(), part.size());
      }
      done += count;
      at += count;
    }
    const auto header = block_header(layout, block_idx, crc);
    std::copy(header.begin(), header.end(), buffer_.begin());
  }

  const Manifest& manifest_;
  const std::vector<const TensorRef*>& sources_;
  std::vector<std::byte> buffer_;
};

void cut_into_shards(Manifest& manifest, const SaveOptions& options) {
  manifest.block_bytes = options.block_bytes;
  const int64_t total = manifest.stream_length();
  if (ceil_blocks(total, options.max_shard_bytes) > kMaxShards)
    base::fail("max_shard_bytes = {} gives more than {} shards", options.max_shard_bytes, kMaxShards);
  for (int64_t start = 0; start < total; start += options.max_shard_bytes) {
    const size_t shard_idx = manifest.shards.size();
    const int64_t length = std::min(options.max_shard_bytes, total - start);
    manifest.shards.push_back({shard_name(shard_idx), start, length, 0, {}});
    manifest.shards.back().file_length = ShardLayout::of(manifest, shard_idx).file_length();
  }
  check_shards(manifest, "checkpoint to be saved");
}

// The run of one save; holds what its steps share.
class Saver {
 public:
  Saver(base::Vfs& vfs, const std::string& directory, const StateView& state, const SaveOptions& options)
      : vfs_(vfs), directory_(directory), options_(options), manifest_(describe(state)) {
    std::map<std::string_view, const TensorRef*> by_name;
    for (const TensorRef& tensor : state.tensors) by_name[tensor.name] = &tensor;
    for (const TensorEntry& entry : manifest_.tensors) sources_.push_back(by_name.at(entry.name));
    cut_into_shards(manifest_, options);
    result_.step = manifest_.step;
    result_.path = in_directory(step_name(manifest_.step));
    result_.state_sha256 = base::to_hex(manifest_.state_sha256);
  }

  SaveResult run() {
    make_directory();
    Listing listing = list_checkpoints(vfs_, directory_);
    // Without a committed checkpoint nobody has yet made sure that the directory itself is durable.
    if (listing.steps.empty()) vfs_.fsync_dir(base::parent_path(directory_));
    remove_leftovers(vfs_, directory_, listing.leftovers, result_.warnings);
    std::vector<std::string> replaced;
    if (std::binary_search(listing.steps.rbegin(), listing.steps.rend(), manifest_.step)) {
      if (is_there_already()) return std::move(result_);
      replaced.push_back(move_aside(listing.leftovers));
    }
    choose_parent(listing.steps);
    const std::string temporary =
        in_directory(free_leftover_name(step_name(manifest_.step), listing.leftovers));
    try {
      write_files(temporary);
      read_back(temporary);
    } catch (const base::Error&) {
      discard(temporary);
      throw;
    }
    commit(temporary);
    replace_hint(vfs_, directory_, kLatestName, step_name(manifest_.step) + "\n", listing.leftovers,
                 result_.warnings);
    point_best(listing.leftovers);
    remove_leftovers(vfs_, directory_, replaced, result_.warnings);
    result_.removed_steps = remove_old(vfs_, directory_, manifest_.step, options_.keep, result_.warnings);
    return std::move(result_);
  }

 private:
  std::string in_directory(const std::string& name) const { return base::join_path(directory_, name); }

  void make_directory() {
    const std::optional<base::FileStat> found = vfs_.stat(directory_);
    if (!found)
      vfs_.mkdir(directory_);
    else if (found->kind != base::FileKind::Directory)
      base::fail("cannot save checkpoints in '{}': not a directory", directory_);
  }

  // True when step-N holds this very state; false when it is damaged; throws when it holds another.
  bool is_there_already() {
    try {
      const Loaded loaded = open_step(vfs_, directory_, manifest_.step);
      loaded.verify();
      if (loaded.manifest().state_sha256 == manifest_.state_sha256) {
        // Whoever renamed it may have died before this.
        vfs_.fsync_dir(directory_);
        result_.already_there = true;
        result_.manifest_sha256 = base::to_hex(loaded.manifest_sha256());
        return true;
      }
    } catch (const base::VfsError&) {
      throw;
    } catch (const base::Error& error) {
      result_.warnings.push_back(fmt::format("damaged checkpoint replaced: {}", error.what()));
      return false;
    }
    base::fail("'{}' exists and holds another state; refusing to replace it", result_.path);
  }

  std::string move_aside(std::vector<std::string>& taken) {
    std::string name = free_leftover_name(step_name(manifest_.step), taken);
    vfs_.rename(result_.path, in_directory(name));
    vfs_.fsync_dir(directory_);
    return name;
  }

  void choose_parent(const std::vector<int64_t>& steps) {
    for (const int64_t step : steps) {
      if (step >= manifest_.step) continue;
      try {
        const Loaded loaded = open_step(vfs_, directory_, step);
        manifest_.parent = ParentEntry{step, loaded.manifest_sha256()};
        warn_if_unchanged(loaded.manifest());
        return;
      } catch (const base::Error& error) {
        result_.warnings.push_back(fmt::format("not taken as parent: {}", error.what()));
      }
    }
  }

  // A trainer that hands over stale copies writes checkpoints that look perfect; this is where it shows.
  void warn_if_unchanged(const Manifest& parent) {
    if (manifest_.tensors.empty()) return;
    const bool same = std::equal(
        parent.tensors.begin(), parent.tensors.end(), manifest_.tensors.begin(), manifest_.tensors.end(),
        [](const TensorEntry& a, const TensorEntry& b) { return a.name == b.name && a.sha256 == b.sha256; });
    if (same)
      result_.warnings.push_back(
          fmt::format("no tensor changed between step {} and step {}", parent.step, manifest_.step));
  }

  void write_files(const std::string& temporary) {
    vfs_.mkdir(temporary);
    ShardWriter writer(manifest_, sources_);
    for (size_t i = 0; i < manifest_.shards.size(); ++i) {
      ShardEntry& shard = manifest_.shards[i];
      write_durably(vfs_, base::join_path(temporary, shard.file), options_.max_file_attempts,
                    [&](base::File& file) { shard.sha256 = writer.write(file, i); });
      result_.num_bytes += shard.file_length;
    }
    const std::string text = print_manifest(manifest_);
    result_.manifest_sha256 = base::to_hex(digest_of_manifest(text));
    result_.num_bytes += static_cast<int64_t>(text.size());
    write_durably(vfs_, base::join_path(temporary, kManifestName), options_.max_file_attempts,
                  [&](base::File& file) { file.write(std::as_bytes(std::span(text))); });
    vfs_.fsync_dir(temporary);
  }

  void read_back(const std::string& temporary) {
    try {
      const Loaded loaded = open(vfs_, temporary);
      if (base::to_hex(loaded.manifest_sha256()) != result_.manifest_sha256)
        base::fail_with(ExitCode::Storage, "{}: another manifest was written", loaded.path());
      loaded.verify();
    } catch (const base::VfsError&) {
      throw;
    } catch (const base::Error& error) {
      base::fail_with(
          ExitCode::Storage,
          "the new checkpoint is not what was in memory when its save began (the disk or memory is "
          "faulty, or the state changed during the save): {}",
          error.what());
    }
  }

  // Frees the space at once if it can; the next save tries again.
  void discard(const std::string& temporary) {
    try {
      vfs_.remove_all(temporary);
    } catch (const base::Error&) {
      // The error that led here is the one to report.
    }
  }

  void commit(const std::string& temporary) {
    try {
      vfs_.rename(temporary, result_.path);
    } catch (const base::Error&) {
      discard(temporary);
      throw;
    }
    try {
      vfs_.fsync_dir(directory_);
    } catch (const base::Error& error) {
      // Not known to be durable, so it must not be seen. Its files stay until a later fsync of the directory
      // holds: the rename may still be the one that survives.
      try {
        vfs_.rename(result_.path, temporary);
      } catch (const base::Error& second) {
        base::fail_with(ExitCode::Storage, "{}; '{}' is complete but may not survive a power loss ({})",
                        error.what(), result_.path, second.what());
      }
      throw;
    }
  }

  void point_best(std::vector<std::string>& taken) {
    if (!options_.valid_loss || !std::isfinite(*options_.valid_loss)) return;
    const std::optional<Best> best = read_best(vfs_, directory_);
    if (best && best->step < manifest_.step && best->loss <= *options_.valid_loss) return;
    write_best(vfs_, directory_, {manifest_.step, *options_.valid_loss}, taken, result_.warnings);
  }

  base::Vfs& vfs_;
  const std::string& directory_;
  const SaveOptions& options_;
  Manifest manifest_;
  std::vector<const TensorRef*> sources_;
  SaveResult result_;
};

}  // namespace

SaveResult save(base::Vfs& vfs, const std::string& directory, const StateView& state,
                const SaveOptions& options) {
  check_options(options);
  return Saver(vfs, directory, state, options).run();
}

}  // namespace pleat::checkpoint
