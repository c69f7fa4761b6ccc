#include "run/place.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/error.h"

namespace pleat::run {

Place::Place(std::string folder, std::string key) : folder_(std::move(folder)), key_(std::move(key)) {
  descriptor_ = ::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor_ < 0)
    base::fail_with(base::ExitCode::Storage, "{} = \"{}\" cannot be opened: {}", key_, folder_,
                    std::strerror(errno));
}

Place::Place(Place&& other) noexcept
    : folder_(std::move(other.folder_)), key_(std::move(other.key_)), descriptor_(other.descriptor_) {
  other.descriptor_ = -1;
}

Place::~Place() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void Place::require_unmoved() const {
  struct stat mine {
  }, now{};
  const bool there = ::stat(folder_.c_str(), &now) == 0;
  if (there && ::fstat(descriptor_, &mine) == 0 && mine.st_ino == now.st_ino && mine.st_dev == now.st_dev)
    return;
  base::fail_with(
      base::ExitCode::Storage,
      "the folder {} = \"{}\" was moved, removed or replaced while a trainer worked in it: {}. The trainer "
      "stops and makes no new one; what it trained since its last checkpoint is not saved. To go on from "
      "that "
      "checkpoint, name the folder where it is now, or move it back, and run the command again",
      key_, folder_, there ? "another folder has that name now" : "nothing has that name now");
}

void require_run_folder(const std::string& folder) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (fs::is_directory(folder, ignored)) return;
  if (fs::exists(folder, ignored)) base::fail("'{}' is a file; needed is a run folder", folder);
  base::fail("'{}' does not exist (looked for '{}'); needed is a run folder", folder,
             fs::absolute(folder).lexically_normal().string());
}

}  // namespace pleat::run
