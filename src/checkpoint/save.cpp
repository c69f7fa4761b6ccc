#include "checkpoint/save.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/checked.h"
#include "base/hash.h"
#include "checkpoint/best.h"
#include "checkpoint/commit.h"
#include "checkpoint/damage.h"
#include "checkpoint/directory.h"
#include "checkpoint/load.h"
#include "checkpoint/manifest.h"
#include "checkpoint/retain.h"
#include "checkpoint/save_work.h"
#include "checkpoint/shard.h"
#include "checkpoint/shard_writer.h"

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

bool same_reals(const std::map<std::string, double>& a, const std::map<std::string, double>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return x.first == y.first && std::bit_cast<uint64_t>(x.second) == std::bit_cast<uint64_t>(y.second);
  });
}

// The leader's side of one save; holds what its steps share.
class Saver {
 public:
  Saver(base::Vfs& vfs, const std::string& directory, const Share& share, const SaveOptions& options,
        Team& team)
      : vfs_(vfs), directory_(directory), share_(share), options_(options), team_(team) {
    check_options(options);
    describe();
    result_.step = manifest_.step;
    result_.path = in_directory(step_name(manifest_.step));
  }

  SaveResult run() {
    make_directory(vfs_, directory_);
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
      write_shards(temporary);
      read_back();
      result_.manifest_sha256 = base::to_hex(digest_of_manifest(print_manifest(manifest_)));
      result_.num_bytes += write_manifest(vfs_, temporary, manifest_, options_.max_file_attempts);
    } catch (...) {
      discard(vfs_, temporary);
      throw;
    }
    commit(vfs_, directory_, temporary, result_.path);
    replace_hint(vfs_, directory_, kLatestName, step_name(manifest_.step) + "\n", listing.leftovers,
                 result_.warnings);
    point_best(listing.leftovers);
    remove_leftovers(vfs_, directory_, replaced, result_.warnings);
    result_.removed_steps = remove_old(vfs_, directory_, manifest_.step, options_.keep, result_.warnings,
                                       [this](const Loaded& loaded) { verify(loaded); });
    return std::move(result_);
  }

 private:
  std::string in_directory(const std::string& name) const { return base::join_path(directory_, name); }

  void verify(const Loaded& loaded) {
    if (team_.size() == 1) return loaded.verify();
    team_.all(order::verify(loaded));
  }

  // The whole table of contents but for the digests of tensors.
  void describe() {
    manifest_.step = share_.step;
    manifest_.integers = share_.integers;
    manifest_.reals = share_.reals;
    manifest_.texts = share_.texts;
    manifest_.block_bytes = options_.block_bytes;
    for (const ShareTensor& t : share_.tensors)
      manifest_.tensors.push_back(
          {t.name, t.dtype, t.shape, 0, num_bytes_of(t.dtype, t.shape, t.name), t.row_bytes, {}});
    std::sort(manifest_.tensors.begin(), manifest_.tensors.end(),
              [](const TensorEntry& a, const TensorEntry& b) { return a.name < b.name; });
    std::string table;
    for (const std::string& answer : team_.all(order::describe())) {
      Description d = order::description(answer);
      if (starts_.empty()) table = d.table_sha256;
      if (d.table_sha256 != table)
        base::fail(
            "rank {} saves another state than rank 0: step, names, types or shapes of its tensors differ",
            starts_.size());
      starts_.push_back(length_);
      const int64_t begin = length_;
      for (SliceEntry& s : d.slices) {
        length_ = base::checked_add(length_, s.where.length(), "bytes of all slices");
        manifest_.slices.push_back(s);
      }
      cut_into_shards(begin);
    }
    const std::string what = "state to be saved";
    complete(manifest_, what);
    for (size_t i = 0; i < manifest_.shards.size(); ++i)
      manifest_.shards[i].file_length = ShardLayout::of(manifest_, i).file_length();
    settle_digest(what);
    check_slices(manifest_, what);
    check_shards(manifest_, what);
    // Only the printer can tell a text that cannot be written; better now than with half the files on the disk.
    static_cast<void>(print_manifest(manifest_));
  }

  // What one rank writes, from `begin` to the end so far.
  void cut_into_shards(int64_t begin) {
    if (ceil_blocks(length_ - begin, options_.max_shard_bytes) >
        kMaxShards - static_cast<int64_t>(manifest_.shards.size()))
      base::fail("max_shard_bytes = {} gives more than {} shards", options_.max_shard_bytes, kMaxShards);
    for (int64_t start = begin; start < length_; start += options_.max_shard_bytes)
      manifest_.shards.push_back({shard_name(manifest_.shards.size()),
                                  start,
                                  std::min(options_.max_shard_bytes, length_ - start),
                                  0,
                                  {}});
  }

  void settle_digest(const std::string& what) {
    manifest_.state_sha256 = digest_of_state(manifest_);
    check_contents(manifest_, what);
  }

  bool is_there_already() {
    return checkpoint::is_there_already(
        vfs_, directory_, manifest_.step, [&](const Loaded& loaded) { verify(loaded); },
        [&](const Loaded& loaded) { return is_same(loaded); }, result_);
  }

  bool is_same(const Loaded& loaded) {
    const Manifest& there = loaded.manifest();
    const bool same_table =
        std::equal(there.tensors.begin(), there.tensors.end(), manifest_.tensors.begin(),
                   manifest_.tensors.end(), [](const TensorEntry& a, const TensorEntry& b) {
                     return a.name == b.name && a.dtype == b.dtype && a.shape == b.shape;
                   });
    if (!same_table || there.integers != manifest_.integers || there.texts != manifest_.texts ||
        !same_reals(there.reals, manifest_.reals))
      return false;
    const std::vector<std::string> answers = team_.all(order::compare(loaded));
    return std::all_of(answers.begin(), answers.end(), order::is_same);
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
        parent_tensors_ = loaded.manifest().tensors;
        return;
      } catch (const base::Error& error) {
        result_.warnings.push_back(fmt::format("not taken as parent: {}", error.what()));
      }
    }
  }

  // A trainer that hands over stale copies writes checkpoints that look perfect; this is where it shows.
  void warn_if_unchanged() {
    if (manifest_.tensors.empty() || !manifest_.parent) return;
    const bool same = std::equal(
        parent_tensors_.begin(), parent_tensors_.end(), manifest_.tensors.begin(), manifest_.tensors.end(),
        [](const TensorEntry& a, const TensorEntry& b) { return a.name == b.name && a.sha256 == b.sha256; });
    if (same)
      result_.warnings.push_back(fmt::format("no tensor changed between step {} and step {}",
                                             manifest_.parent->step, manifest_.step));
  }

  void write_shards(const std::string& temporary) {
    const std::string order = order::write(temporary, manifest_, starts_);
    vfs_.mkdir(temporary);
    team_.all(order);
    for (const ShardEntry& shard : manifest_.shards) result_.num_bytes += shard.file_length;
  }

  void read_back() {
    try {
      size_t tensor_idx = 0;
      for (const std::string& answer : team_.all(order::read_back()))
        for (const base::Sha256Digest& digest : order::digests(answer))
          manifest_.tensors.at(tensor_idx++).sha256 = digest;
      PLEAT_CHECK(tensor_idx == manifest_.tensors.size());
    } catch (const base::VfsError&) {
      throw;
    } catch (const base::Error& error) {
      if (error.code() != ExitCode::Storage) throw;
      base::fail_with(
          ExitCode::Storage,
          "the new checkpoint is not what was in memory when its save began (the disk or memory is "
          "faulty, or the state changed during the save): {}",
          error.what());
    }
    settle_digest("state to be saved");
    result_.state_sha256 = base::to_hex(manifest_.state_sha256);
    warn_if_unchanged();
  }

  void point_best(std::vector<std::string>& taken) {
    if (!options_.valid_loss || !std::isfinite(*options_.valid_loss)) return;
    const std::optional<Best> best = read_best(vfs_, directory_);
    if (best && best->step < manifest_.step && best->loss <= *options_.valid_loss) return;
    write_best(vfs_, directory_, {manifest_.step, *options_.valid_loss}, taken, result_.warnings);
  }

  base::Vfs& vfs_;
  const std::string& directory_;
  const Share& share_;
  const SaveOptions& options_;
  Team& team_;
  Manifest manifest_;
  int64_t length_ = 0;           // of the stream
  std::vector<int64_t> starts_;  // in the stream, of what each rank writes
  std::vector<TensorEntry> parent_tensors_;
  SaveResult result_;
};

std::string text_of(const SaveResult& r) {
  return nlohmann::json{{"path", r.path},
                        {"step", r.step},
                        {"state", r.state_sha256},
                        {"manifest", r.manifest_sha256},
                        {"bytes", r.num_bytes},
                        {"there", r.already_there},
                        {"removed", r.removed_steps},
                        {"warnings", r.warnings}}
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

SaveResult result_from(const std::string& text) {
  const nlohmann::json json = nlohmann::json::parse(text);
  return {json.at("path"),  json.at("step"),  json.at("state"),   json.at("manifest"),
          json.at("bytes"), json.at("there"), json.at("removed"), json.at("warnings")};
}

}  // namespace

SaveResult save(base::Vfs& vfs, const std::string& directory, const Share& share, const SaveOptions& options,
                Peers& peers) {
  SaveWork mine(vfs, share, peers.rank(), peers.size(), options.max_file_attempts);
  const Team::Work work = [&](const std::string& order) { return mine.carry_out(order); };
  Team team(peers, work);
  return result_from(team.run([&] { return text_of(Saver(vfs, directory, share, options, team).run()); }));
}

SaveResult save(base::Vfs& vfs, const std::string& directory, const StateView& state,
                const SaveOptions& options) {
  Alone alone;
  return save(vfs, directory, whole_share(state), options, alone);
}

}  // namespace pleat::checkpoint
