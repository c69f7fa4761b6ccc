#include "checkpoint/retain.h"

#include <algorithm>

#include "checkpoint/best.h"
#include "checkpoint/choose.h"
#include "checkpoint/load.h"

namespace pleat::checkpoint {

std::string free_leftover_name(const std::string& stem, std::vector<std::string>& taken) {
  for (int64_t number = 0;; ++number) {
    std::string name = fmt::format("{}.tmp-{}", stem, number);
    if (std::find(taken.begin(), taken.end(), name) != taken.end()) continue;
    taken.push_back(name);
    return name;
  }
}

void remove_leftovers(base::Vfs& vfs, const std::string& directory, const std::vector<std::string>& names,
                      std::vector<std::string>& warnings) {
  if (names.empty()) return;
  try {
    vfs.fsync_dir(directory);
  } catch (const base::Error& error) {
    warnings.push_back(fmt::format("leftovers stay: {}", error.what()));
    return;
  }
  for (const std::string& name : names) {
    try {
      vfs.remove_all(base::join_path(directory, name));
    } catch (const base::Error& error) {
      warnings.push_back(fmt::format("leftover stays: {}", error.what()));
    }
  }
}

void replace_hint(base::Vfs& vfs, const std::string& directory, const std::string& name,
                  const std::string& text, std::vector<std::string>& taken,
                  std::vector<std::string>& warnings) {
  const std::string temporary = base::join_path(directory, free_leftover_name(name, taken));
  try {
    base::File file = base::File::create(vfs, temporary);
    file.write(std::as_bytes(std::span(text)));
    file.fsync();
    file.close();
    vfs.rename(temporary, base::join_path(directory, name));
  } catch (const base::Error& error) {
    warnings.push_back(fmt::format("{} not updated: {}", name, error.what()));
  }
}

namespace {

std::vector<int64_t> choose_victims(base::Vfs& vfs, const std::string& directory, std::vector<int64_t> older,
                                    int64_t keep, std::vector<std::string>& warnings, const Verify& verify) {
  int64_t num_verified = 1;  // the one just saved
  size_t idx = 0;
  for (; idx < older.size() && num_verified < keep; ++idx) {
    try {
      const Loaded loaded = open_step(vfs, directory, older[idx]);
      if (num_verified == 1) verify(loaded);
      ++num_verified;
    } catch (const base::Error& error) {
      warnings.push_back(fmt::format("not counted as a checkpoint to keep: {}", error.what()));
    }
  }
  if (num_verified < keep) return {};
  return {older.begin() + static_cast<std::ptrdiff_t>(idx), older.end()};
}

}  // namespace

std::vector<int64_t> remove_old(base::Vfs& vfs, const std::string& directory, int64_t step, int64_t keep,
                                std::vector<std::string>& warnings, const Verify& verify) {
  std::vector<int64_t> moved;
  std::vector<std::string> names;
  try {
    Listing listing = list_checkpoints(vfs, directory);
    std::erase_if(listing.steps, [&](int64_t other) { return other >= step; });
    if (static_cast<int64_t>(listing.steps.size()) < keep) return {};
    const std::optional<Best> best = read_best(vfs, directory);
    for (const int64_t victim : choose_victims(vfs, directory, listing.steps, keep, warnings, verify)) {
      if (best && best->step == victim) continue;
      // Held while it is renamed: a reader that comes now sees that it is gone.
      const std::string manifest =
          base::join_path(base::join_path(directory, step_name(victim)), std::string(kManifestName));
      const base::Lock lock = vfs.try_lock(manifest, base::LockKind::Exclusive);
      if (lock.outcome == base::Lock::Busy) continue;
      std::optional<Hold> hold;
      if (lock.outcome == base::Lock::Held) hold.emplace(vfs, lock.file, manifest);
      const std::string name = free_leftover_name(step_name(victim), listing.leftovers);
      vfs.rename(base::join_path(directory, step_name(victim)), base::join_path(directory, name));
      moved.push_back(victim);
      names.push_back(name);
    }
  } catch (const base::Error& error) {
    warnings.push_back(fmt::format("old checkpoints stay: {}", error.what()));
  }
  remove_leftovers(vfs, directory, names, warnings);
  return moved;
}

void tidy(base::Vfs& vfs, const std::string& directory, int64_t step, int64_t keep,
          std::vector<std::string>& warnings, const Verify& verify) {
  try {
    remove_leftovers(vfs, directory, list_checkpoints(vfs, directory).leftovers, warnings);
  } catch (const base::Error& error) {
    warnings.push_back(fmt::format("leftovers stay: {}", error.what()));
  }
  remove_old(vfs, directory, step, keep, warnings, verify);
}

}  // namespace pleat::checkpoint
