#include "train/choices_cache.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>

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
  std::string line;
  SavedChoices all = read_choices_cache(path, now.machine, line);
  const size_t before = all.choices.size();
  for (const kernels::MatmulChoice& c : now.choices)
    if (std::none_of(all.choices.begin(), all.choices.end(),
                     [&](const kernels::MatmulChoice& kept) { return kept.key == c.key; }))
      all.choices.push_back(c);
  if (all.choices.size() == before && line.empty()) return "";
  std::sort(all.choices.begin(), all.choices.end(),
            [](const kernels::MatmulChoice& a, const kernels::MatmulChoice& b) { return a.key < b.key; });
  std::error_code failed;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), failed);
  try {
    base::replace_file(path, to_json(all));
  } catch (const base::Error& e) {
    return fmt::format("algorithms of products are not kept for other runs: {}", e.what());
  }
  return "";
}

}  // namespace pleat::train
