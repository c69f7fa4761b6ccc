#include "checkpoint/choose.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <charconv>

#include "checkpoint/best.h"
#include "checkpoint/damage.h"
#include "checkpoint/directory.h"

namespace pleat::checkpoint {

namespace {

// A checkpoint can be pruned between the listing and the lock; a newer one is there then.
constexpr int kMostListings = 100;

std::string kept_steps(const Listing& listing) {
  if (listing.steps.empty()) return "there is none";
  std::vector<int64_t> steps(listing.steps.rbegin(), listing.steps.rend());
  return fmt::format("kept are {}", fmt::join(steps, ", "));
}

// The step asked for by number or as the best.
int64_t step_asked(base::Vfs& vfs, const std::string& directory, const Which& which, const Listing& listing) {
  int64_t step = which.step;
  if (which.kind == Which::Best) {
    const std::optional<Best> best = read_best(vfs, directory);
    if (!best)
      base::fail(
          "'{}' names no best checkpoint: none was saved after a step with an evaluation "
          "(train.eval_every, checkpoint.every, checkpoint.keep_best); {}",
          directory, kept_steps(listing));
    step = best->step;
  }
  if (std::find(listing.steps.begin(), listing.steps.end(), step) == listing.steps.end())
    base::fail("'{}' holds no checkpoint of step {}; {}", directory, step, kept_steps(listing));
  return step;
}

[[noreturn]] void fail_all_damaged(const std::string& directory, const std::vector<Skipped>& skipped) {
  std::string list;
  for (const Skipped& s : skipped) list += fmt::format("\n  {}: {}", s.name, s.reason);
  base::fail_with(base::ExitCode::Storage,
                  "'{}' holds checkpoints, but none that verifies; nothing was changed:{}\nBring one of them "
                  "back from a copy, or move them away to begin again",
                  directory, list);
}

struct Tried {
  std::optional<Chosen> chosen;
  bool moved = false;  // pruned under our hands: look again
};

Tried try_step(base::Vfs& vfs, const std::string& directory, int64_t step, const Verify& verify,
               std::vector<Skipped>& skipped) {
  const auto is_gone = [&] { return !vfs.stat(base::join_path(directory, step_name(step))); };
  const std::string manifest =
      base::join_path(base::join_path(directory, step_name(step)), std::string(kManifestName));
  const base::Lock lock = vfs.try_lock(manifest, base::LockKind::Shared);
  if (lock.outcome == base::Lock::Busy) return {std::nullopt, true};
  Hold hold = lock.outcome == base::Lock::Held ? Hold(vfs, lock.file, manifest) : Hold();
  try {
    Loaded loaded = open_step(vfs, directory, step);
    verify(loaded);
    return {Chosen{std::move(loaded), {}, std::move(hold)}, false};
  } catch (const base::VfsError& error) {
    if (error.error_number() == ENOENT && is_gone()) return {std::nullopt, true};
    if (error.error_number() != EIO && error.error_number() != ENOENT) throw;
    skipped.push_back({step_name(step), error.what()});
  } catch (const NotForUs&) {
    if (is_gone()) return {std::nullopt, true};
    throw;
  } catch (const base::Error& error) {
    if (!is_damage(error)) throw;
    skipped.push_back({step_name(step), error.what()});
  }
  return {};
}

}  // namespace

Which parse_which(const std::string& text) {
  if (text.empty() || text == "newest") return {};
  if (text == "best") return {Which::Best, 0};
  Which which{Which::Step, 0};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), which.step);
  if (error != std::errc{} || end != text.data() + text.size() || which.step < 0)
    base::fail("--step '{}': needed is the number of a step, best or newest", text);
  return which;
}

Hold::~Hold() {
  if (file_ < 0) return;
  try {
    vfs_->close(file_, path_);
  } catch (const base::Error&) {
    // The kernel lets go all the same.
  }
}

std::vector<std::string> Chosen::remarks() const {
  std::vector<std::string> out;
  for (const Skipped& s : skipped)
    out.push_back(fmt::format("checkpoint {} passed over: {}", s.name, s.reason));
  out.push_back(fmt::format("using step {} ({})", loaded.step(), loaded.path()));
  if (!hold.held())
    out.push_back(
        "this file system has no working locks: a running trainer may prune the checkpoint meanwhile");
  return out;
}

std::optional<Chosen> choose_if_any(base::Vfs& vfs, const std::string& directory, const Which& which,
                                    const Verify& verify) {
  for (int listings = 0; listings < kMostListings; ++listings) {
    Listing listing;
    if (vfs.stat(directory)) listing = list_checkpoints(vfs, directory);
    std::vector<int64_t> steps = listing.steps;
    if (which.kind != Which::Newest) steps = {step_asked(vfs, directory, which, listing)};
    if (steps.empty()) return std::nullopt;
    std::vector<Skipped> skipped;
    bool moved = false;
    for (const int64_t step : steps) {
      Tried tried = try_step(vfs, directory, step, verify, skipped);
      if (tried.chosen) {
        tried.chosen->skipped = std::move(skipped);
        return std::move(tried.chosen);
      }
      moved = moved || tried.moved;
    }
    if (moved) continue;
    if (which.kind == Which::Newest) fail_all_damaged(directory, skipped);
    base::fail_with(base::ExitCode::Storage, "{}; {}", skipped.front().reason, kept_steps(listing));
  }
  base::fail_with(base::ExitCode::Storage, "the checkpoints in '{}' change faster than they can be read",
                  directory);
}

Chosen choose(base::Vfs& vfs, const std::string& directory, const Which& which, const Verify& verify) {
  std::optional<Chosen> chosen = choose_if_any(vfs, directory, which, verify);
  if (!chosen) base::fail("'{}' holds no checkpoint", directory);
  return std::move(*chosen);
}

}  // namespace pleat::checkpoint
