#include "train/checkpoint_owner.h"

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/make_folders.h"
#include "base/regular_file.h"
#include "base/replace_file.h"
#include "config/run_files.h"
#include "run/lock.h"

namespace pleat::train {
namespace {

namespace fs = std::filesystem;

constexpr char kOwnerName[] = "RUN";

// With links followed, as far as the folder is there.
fs::path real_place(const std::string& folder) {
  const fs::path place = fs::weakly_canonical(fs::absolute(folder));
  return place.has_filename() ? place : place.parent_path();
}

bool has_entry(const fs::path& folder, const char* name) {
  std::error_code ignored;
  return fs::exists(folder / name, ignored);
}

// A folder of 0.1.0 has no asked.toml; a config.toml alone may be anybody's.
bool is_run_folder(const fs::path& folder) {
  return has_entry(folder, config::kAskedName) ||
         (has_entry(folder, config::kRecordName) && has_entry(folder, "metrics.jsonl"));
}

// A run that has not written anything yet but its lock. Such a lock is also in folders of checkpoints.
bool is_starting_run(const fs::path& folder) {
  return !has_entry(folder, kOwnerName) && run::Lock::is_held(folder.string());
}

}  // namespace

bool checkpoints_lie_outside(const config::Config& used) {
  const fs::path checkpoints = real_place(used.checkpoint.dir), own = real_place(used.log.run_dir);
  for (fs::path place = checkpoints;; place = place.parent_path()) {
    if (place == own) return false;
    if (is_run_folder(place) || (place != checkpoints && is_starting_run(place)))
      base::fail(
          "checkpoint.dir = \"{}\" lies in the folder of another run, '{}': two runs cannot share "
          "checkpoints. "
          "Leave checkpoint.dir out, or name a folder of its own; --init {} starts a run from the weights of "
          "that one",
          used.checkpoint.dir, place.string(), place.string());
    if (place == place.parent_path()) return true;
  }
}

void require_own_checkpoints(const config::Config& used) {
  const fs::path path = fs::path(used.checkpoint.dir) / kOwnerName;
  base::require_regular(path.string());
  std::ifstream in(path);
  std::string owner;
  std::error_code ignored;
  if (!std::getline(in, owner) || fs::equivalent(owner, used.log.run_dir, ignored) ||
      (!has_entry(owner, config::kAskedName) && !has_entry(owner, config::kImportName)))
    return;
  base::fail(
      "the checkpoints in '{}' belong to the run in '{}'; --set checkpoint.dir=... gives this run its own "
      "(copy the checkpoints there to go on from them; --init {} starts a run from their weights)",
      used.checkpoint.dir, owner, owner);
}

void own_checkpoints(const config::Config& used) {
  if (!checkpoints_lie_outside(used)) return;
  base::make_folders(used.checkpoint.dir);
  base::replace_file((fs::path(used.checkpoint.dir) / kOwnerName).string(),
                     real_place(used.log.run_dir).string() + "\n");
}

}  // namespace pleat::train
