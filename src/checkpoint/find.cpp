#include <algorithm>
#include <cerrno>

#include "checkpoint/damage.h"
#include "checkpoint/directory.h"
#include "checkpoint/load.h"

namespace pleat::checkpoint {

namespace {

constexpr int64_t kMaxLatestBytes = 64;

// What is wrong with LATEST; empty when it names a checkpoint that is there, old or new.
std::string complaint_about_latest(base::Vfs& vfs, const std::string& path, const Listing& listing) {
  std::string text;
  try {
    text = base::read_file(vfs, path, kMaxLatestBytes);
  } catch (const base::Error& error) {
    return error.what();
  }
  if (text.empty() || text.back() != '\n') return "damaged: not one line";
  text.pop_back();
  const std::optional<int64_t> step = step_of(text);
  if (!step) return "damaged: does not name a checkpoint";
  if (!std::binary_search(listing.steps.rbegin(), listing.steps.rend(), *step))
    return fmt::format("names {}, which is not there", text);
  return "";
}

}  // namespace

Loaded open_step(base::Vfs& vfs, const std::string& directory, int64_t step) {
  Loaded loaded = open(vfs, base::join_path(directory, step_name(step)));
  if (loaded.step() != step)
    base::fail_with(base::ExitCode::Storage, "{}: holds step {}", loaded.path(), loaded.step());
  return loaded;
}

Found find_newest(base::Vfs& vfs, const std::string& directory) {
  Found found;
  if (!vfs.stat(directory)) return found;
  const Listing listing = list_checkpoints(vfs, directory);
  for (const int64_t step : listing.steps) {
    const std::string name = step_name(step);
    try {
      Loaded loaded = open_step(vfs, directory, step);
      loaded.verify();
      found.newest = std::move(loaded);
      break;
    } catch (const base::VfsError& error) {
      if (error.error_number() != EIO) throw;
      found.skipped.push_back({name, error.what()});
    } catch (const base::Error& error) {
      if (!is_damage(error)) throw;
      found.skipped.push_back({name, error.what()});
    }
  }
  for (const std::string& name : listing.leftovers)
    found.skipped.push_back({name, "left by an unfinished save"});
  if (listing.has_latest) {
    std::string complaint = complaint_about_latest(vfs, base::join_path(directory, kLatestName), listing);
    if (!complaint.empty()) found.skipped.push_back({kLatestName, std::move(complaint)});
  }
  return found;
}

}  // namespace pleat::checkpoint
