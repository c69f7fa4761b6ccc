#include "train/choices_cache.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "base/error.h"
#include "base/hash.h"
#include "base/posix_vfs.h"
#include "base/replace_file.h"

namespace pleat::train {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

// Held from reading the file to replacing it: what another start adds meanwhile is not lost. Where a file system has no
// locks there is none.
class CacheLock {
 public:
  explicit CacheLock(const std::string& path) {
    base::PosixVfs disk;
    if (!disk.stat(path)) try {
        disk.close(disk.create(path), path);
      } catch (const base::VfsError& e) {
        if (e.error_number() != EEXIST) throw;
      }
    for (const auto end = std::chrono::steady_clock::now() + kLongest;;) {
      const base::Lock lock = disk.try_lock(path, base::LockKind::Exclusive);
      file_ = lock.file;
      if (lock.outcome != base::Lock::Busy) return;
      if (std::chrono::steady_clock::now() > end)
        base::fail_with(base::ExitCode::Storage, "'{}' is held by another process for {} s", path,
                        kLongest.count());
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  ~CacheLock() {
    if (file_ >= 0) ::close(file_);
  }
  CacheLock(const CacheLock&) = delete;
  CacheLock& operator=(const CacheLock&) = delete;

 private:
  static constexpr std::chrono::seconds kLongest{20};  // many times what all ranks of a node need
  int file_ = -1;
};

// `all` with the choices it does not have; whether there were any.
bool merge(SavedChoices& all, const SavedChoices& now) {
  const size_t before = all.choices.size();
  for (const kernels::MatmulChoice& c : now.choices)
    if (std::none_of(all.choices.begin(), all.choices.end(),
                     [&](const kernels::MatmulChoice& kept) { return kept.key == c.key; }))
      all.choices.push_back(c);
  std::sort(all.choices.begin(), all.choices.end(),
            [](const kernels::MatmulChoice& a, const kernels::MatmulChoice& b) { return a.key < b.key; });
  return all.choices.size() > before;
}

}  // namespace

std::string cache_folder() {
  if (std::string own = variable("PLEAT_CACHE_DIR"); !own.empty()) return own;
  if (const std::string cache = variable("XDG_CACHE_HOME"); !cache.empty()) return cache + "/pleat";
  if (const std::string home = variable("HOME"); !home.empty()) return home + "/.cache/pleat";
  return "";
}

std::string choices_cache_path(const std::string& folder, const kernels::MatmulMachine& m) {
  const std::string what = fmt::format("{}\n{}\n{}", m.device, m.cublas, m.cudnn);
  return fmt::format("{}/matmul_choices.{}.json", folder, base::to_hex(base::sha256(what)).substr(0, 16));
}

SavedChoices read_choices_cache(const std::string& path, const kernels::MatmulMachine& machine,
                                std::string& line) {
  SavedChoices out{machine, {}};
  base::PosixVfs disk;
  try {
    if (!disk.stat(path)) return out;
    SavedChoices kept = choices_from_json(base::read_file(disk, path, kMaxMatmulChoicesBytes), path);
    if (kept.machine == machine) return kept;
    line = fmt::format("{} is of another machine or library; passed over", path);
  } catch (const base::Error& e) {
    line = fmt::format("algorithms kept from earlier starts are passed over: {}", e.what());
  }
  return out;
}

std::string add_to_choices_cache(const std::string& path, const SavedChoices& now) {
  std::error_code failed;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), failed);
  try {
    std::string line;
    SavedChoices all = read_choices_cache(path, now.machine, line);
    if (!merge(all, now) && line.empty()) return "";  // nothing new: nobody waits
    const CacheLock lock(path + ".lock");
    line.clear();
    all = read_choices_cache(path, now.machine, line);
    if (merge(all, now) || !line.empty()) base::replace_file(path, to_json(all));
  } catch (const base::Error& e) {
    return fmt::format("algorithms of products are not kept for other runs: {}", e.what());
  }
  return "";
}

}  // namespace pleat::train
