#include "checkpoint/save_streamed.h"

#include <algorithm>

#include "base/checked.h"
#include "checkpoint/commit.h"
#include "checkpoint/damage.h"
#include "checkpoint/directory.h"
#include "checkpoint/load.h"
#include "checkpoint/retain.h"
#include "checkpoint/shard.h"
#include "checkpoint/shard_filler.h"
#include "checkpoint/shard_writer.h"

namespace pleat::checkpoint {

namespace {

using base::ExitCode;

constexpr char kPlanName[] = "PLAN";
constexpr char kWhat[] = "state to be saved";

// The table of contents but for all digests. Slices end where shards do, so that the digests of a whole shard are
// known when it is.
Manifest table_of(const StreamedState& state, const SaveOptions& options) {
  if (options.block_bytes < 1 || options.block_bytes > kMaxBlockBytes)
    base::fail("block_bytes = {} is not in 1..{}", options.block_bytes, kMaxBlockBytes);
  if (options.max_shard_bytes < 1 || options.max_shard_bytes > kMaxSize)
    base::fail("max_shard_bytes = {} is not in 1..{}", options.max_shard_bytes, kMaxSize);
  Manifest m;
  m.version = kStreamedVersion;
  m.step = state.step;
  m.integers = state.integers;
  m.reals = state.reals;
  m.texts = state.texts;
  m.block_bytes = options.block_bytes;
  for (const StreamedTensor& t : state.tensors) {
    const int64_t length = num_bytes_of(t.dtype, t.shape, t.name);
    m.tensors.push_back({t.name, t.dtype, t.shape, 0, length, length, {}, t.zero && length > 0});
  }
  std::sort(m.tensors.begin(), m.tensors.end(),
            [](const TensorEntry& a, const TensorEntry& b) { return a.name < b.name; });
  int64_t stream = 0;
  for (size_t i = 0; i < m.tensors.size(); ++i)
    for (int64_t at = 0, length = m.tensors[i].stored_length(); at < length;) {
      const int64_t count = std::min(length - at, options.max_shard_bytes - stream % options.max_shard_bytes);
      m.slices.push_back({static_cast<int64_t>(i), {0, 1, at, at + count}});
      at += count;
      stream = base::checked_add(stream, count, "bytes of all tensors");
      if (static_cast<int64_t>(m.slices.size()) > kMaxSlices)
        base::fail("max_shard_bytes = {} gives more than {} slices", options.max_shard_bytes, kMaxSlices);
    }
  for (int64_t start = 0; start < stream; start += options.max_shard_bytes)
    m.shards.push_back(
        {shard_name(m.shards.size()), start, std::min(options.max_shard_bytes, stream - start), 0, {}});
  complete(m, kWhat);
  for (size_t i = 0; i < m.shards.size(); ++i) m.shards[i].file_length = ShardLayout::of(m, i).file_length();
  m.state_sha256 = digest_of_state(m);
  check_contents(m, kWhat);
  check_slices(m, kWhat);
  check_shards(m, kWhat);
  return m;
}

// Of all that is known before the first byte.
base::Sha256Digest plan_of(const Manifest& table, const std::string& source) {
  base::Sha256 hash;
  hash.update(fmt::format("pleat streamed 3\n{} bytes\n", source.size()));
  hash.update(source);
  hash.update(print_manifest(table));
  return hash.digest();
}

uint64_t mark_of(const base::Sha256Digest& plan) {
  uint64_t value = 0;
  for (size_t i = 0; i < sizeof value; ++i) value |= std::to_integer<uint64_t>(plan[i]) << (8 * i);
  return value;
}

class StreamedSaver {
 public:
  StreamedSaver(base::Vfs& vfs, const std::string& directory, const StreamedState& state,
                const SaveOptions& options)
      : vfs_(vfs),
        directory_(directory),
        options_(options),
        manifest_(table_of(state, options)),
        require_same_(state.require_same) {
    const base::Sha256Digest plan = plan_of(manifest_, state.source);
    plan_text_ = base::to_hex(plan) + "\n";
    manifest_.mark = mark_of(plan);
    result_.step = manifest_.step;
    result_.path = in_directory(step_name(manifest_.step));
  }

  int64_t bytes_missing() {
    int64_t found = 0;
    if (vfs_.stat(directory_)) {
      const Listing listing = list_checkpoints(vfs_, directory_);
      if (const std::string* begun = find_begun(listing))
        found = bytes_in_whole_shards(vfs_, in_directory(*begun), manifest_);
    }
    return manifest_.stream_length() - found;
  }

  SaveResult run(const Pour& pour, const StreamWatch& watch) {
    make_directory(vfs_, directory_);
    Listing listing = list_checkpoints(vfs_, directory_);
    // Without a committed checkpoint nobody has yet made sure that the directory itself is durable.
    if (listing.steps.empty()) vfs_.fsync_dir(base::parent_path(directory_));
    std::vector<std::string> replaced;
    if (std::binary_search(listing.steps.rbegin(), listing.steps.rend(), manifest_.step)) {
      if (is_there_already()) return std::move(result_);
      std::string name = free_leftover_name(step_name(manifest_.step), listing.leftovers);
      vfs_.rename(result_.path, in_directory(name));
      vfs_.fsync_dir(directory_);
      replaced.push_back(std::move(name));
    }
    std::string temporary;
    if (const std::string* begun = find_begun(listing)) {
      temporary = in_directory(*begun);
      std::erase(listing.leftovers, std::string(*begun));
    }
    std::erase_if(listing.leftovers, [&](const std::string& name) {
      return std::find(replaced.begin(), replaced.end(), name) != replaced.end();
    });
    remove_leftovers(vfs_, directory_, listing.leftovers, result_.warnings);
    if (temporary.empty()) temporary = begin(list_checkpoints(vfs_, directory_).leftovers);
    try {
      fill(temporary, pour, watch);
      if (require_same_) require_same_();
    } catch (const base::Error& error) {
      // What a disk says, or a stop, is nothing against what was written.
      if (error.code() == ExitCode::BadInput) discard(vfs_, temporary);
      throw;
    }
    try {
      read_back(temporary, watch);
    } catch (const base::Error& error) {
      if (is_damage(error)) discard(vfs_, temporary);
      throw;
    }
    ShardFiller::remove_digests(vfs_, temporary, manifest_);
    vfs_.unlink(base::join_path(temporary, kPlanName));
    for (const ShardEntry& shard : manifest_.shards) result_.num_bytes += shard.file_length;
    result_.num_bytes += write_manifest(vfs_, temporary, manifest_, options_.max_file_attempts);
    result_.manifest_sha256 = base::to_hex(digest_of_manifest(print_manifest(manifest_)));
    commit(vfs_, directory_, temporary, result_.path);
    std::vector<std::string> taken = replaced;
    replace_hint(vfs_, directory_, kLatestName, step_name(manifest_.step) + "\n", taken, result_.warnings);
    remove_leftovers(vfs_, directory_, replaced, result_.warnings);
    return std::move(result_);
  }

 private:
  std::string in_directory(const std::string& name) const { return base::join_path(directory_, name); }

  // What was begun with the same plan.
  const std::string* find_begun(const Listing& listing) const {
    for (const std::string& name : listing.leftovers) {
      const std::string path = base::join_path(in_directory(name), kPlanName);
      try {
        const std::optional<base::FileStat> folder = vfs_.stat(in_directory(name));
        if (!folder || folder->kind != base::FileKind::Directory || !vfs_.stat(path)) continue;
        if (base::read_file(vfs_, path, static_cast<int64_t>(plan_text_.size())) == plan_text_) return &name;
      } catch (const base::Error&) {
        continue;  // another one's, or one that cannot be read: nothing to go on with
      }
    }
    return nullptr;
  }

  bool is_there_already() {
    const auto is_same = [&](const Loaded& loaded) {
      for (const ShardEntry& shard : loaded.manifest().shards) result_.num_bytes += shard.file_length;
      return loaded.manifest().version == manifest_.version && loaded.manifest().mark == manifest_.mark;
    };
    return checkpoint::is_there_already(
        vfs_, directory_, manifest_.step, [](const Loaded& loaded) { loaded.verify(); }, is_same, result_);
  }

  std::string begin(std::vector<std::string> taken) {
    std::string temporary = in_directory(free_leftover_name(step_name(manifest_.step), taken));
    vfs_.mkdir(temporary);
    write_durably(vfs_, base::join_path(temporary, kPlanName), options_.max_file_attempts,
                  [&](base::File& file) { file.write(std::as_bytes(std::span(plan_text_))); });
    vfs_.fsync_dir(temporary);
    vfs_.fsync_dir(directory_);
    return temporary;
  }

  void fill(const std::string& temporary, const Pour& pour, const StreamWatch& watch) {
    // Of a save that was cut short just before its commit; PLAN went from memory and not from the disk.
    if (const std::string path = base::join_path(temporary, kManifestName); vfs_.stat(path))
      vfs_.unlink(path);
    ShardFiller filler(vfs_, temporary, manifest_);
    StreamProgress progress{StreamProgress::Write, filler.position(), manifest_.stream_length(),
                            filler.position()};
    const Sink sink = [&](std::span<const std::byte> bytes) {
      for (size_t at = 0; at < bytes.size();) {
        const size_t count = std::min(bytes.size() - at, static_cast<size_t>(options_.block_bytes));
        filler.take(bytes.subspan(at, count));
        at += count;
        step(watch, progress, static_cast<int64_t>(count));
      }
    };
    step(watch, progress, 0);
    for (const TensorEntry& t : manifest_.tensors) {
      const int64_t end = t.offset + t.stored_length();
      if (end <= filler.position()) continue;
      pour(t.name, filler.position() - t.offset, sink);
      PLEAT_CHECK(filler.position() == end, "{} of {} bytes of '{}' came", filler.position() - t.offset,
                  t.length, t.name);
    }
    PLEAT_CHECK(filler.position() == manifest_.stream_length());
  }

  void read_back(const std::string& temporary, const StreamWatch& watch) {
    StreamProgress progress{StreamProgress::ReadBack, 0, manifest_.stream_length(), 0};
    const std::vector<base::Sha256Digest> digests =
        digest_tensors(vfs_, temporary, manifest_, SliceIndex(manifest_), {0, manifest_.tensors.size()},
                       [&](int64_t count) { step(watch, progress, count); });
    for (size_t i = 0; i < digests.size(); ++i) manifest_.tensors[i].sha256 = digests[i];
    manifest_.state_sha256 = digest_of_state(manifest_);
    check_contents(manifest_, kWhat);
    result_.state_sha256 = base::to_hex(manifest_.state_sha256);
  }

  static void step(const StreamWatch& watch, StreamProgress& progress, int64_t count) {
    progress.done += count;
    watch.tell(progress);
  }

  base::Vfs& vfs_;
  const std::string& directory_;
  const SaveOptions& options_;
  Manifest manifest_;
  std::function<void()> require_same_;
  std::string plan_text_;
  SaveResult result_;
};

}  // namespace

void StreamWatch::tell(const StreamProgress& now) const {
  if (progress) progress(now);
  if (stop && stop()) base::fail_with(ExitCode::Retry, "stopped: {}", stopped);
}

SaveResult save_streamed(base::Vfs& vfs, const std::string& directory, const StreamedState& state,
                         const Pour& pour, const SaveOptions& options, const StreamWatch& watch) {
  return StreamedSaver(vfs, directory, state, options).run(pour, watch);
}

int64_t bytes_to_stream(base::Vfs& vfs, const std::string& directory, const StreamedState& state,
                        const SaveOptions& options) {
  return StreamedSaver(vfs, directory, state, options).bytes_missing();
}

}  // namespace pleat::checkpoint
