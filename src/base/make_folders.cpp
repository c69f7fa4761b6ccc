#include "base/make_folders.h"

#include <cerrno>
#include <filesystem>
#include <vector>

#include "base/posix_vfs.h"

namespace pleat::base {

namespace fs = std::filesystem;

bool make_folders(const std::string& path) {
  std::vector<fs::path> missing;
  std::error_code ignored;
  for (fs::path at = path; !at.empty() && !fs::exists(at, ignored); at = at.parent_path())
    if (at.has_filename()) missing.push_back(at);  // not of a slash at the end
  PosixVfs vfs;
  bool made = false;
  for (; !missing.empty(); missing.pop_back()) {
    const std::string name = missing.back().string();
    try {
      vfs.mkdir(name);
      made = true;
    } catch (const VfsError& error) {
      // Another process was faster, and may not have made the name last yet.
      if (error.error_number() != EEXIST || !fs::is_directory(name, ignored)) throw;
    }
    try {
      vfs.fsync_dir(parent_path(name));
    } catch (const VfsError& error) {
      if (error.error_number() != EACCES) throw;
    }
  }
  return made;
}

}  // namespace pleat::base
