#include "base/replace_file.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cctype>

#include "base/posix_vfs.h"

namespace pleat::base {
namespace {

constexpr std::string_view kMark = ".tmp-";

// Whether the name is `stem`.tmp-PID-N.
bool is_temporary(std::string_view name, std::string_view stem) {
  if (!name.starts_with(stem)) return false;
  name.remove_prefix(stem.size());
  if (!name.starts_with(kMark)) return false;
  name.remove_prefix(kMark.size());
  const size_t dash = name.find('-');
  const auto number = [](std::string_view text) {
    return !text.empty() &&
           std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c); });
  };
  return dash != std::string_view::npos && number(name.substr(0, dash)) && number(name.substr(dash + 1));
}

// Whoever writes one holds its lock: one that can be locked is of a process that is gone, here or on another host.
void remove_leftovers(PosixVfs& vfs, const std::string& path) {
  const std::string folder = parent_path(path);
  const std::string stem = path.substr(path.rfind('/') + 1);  // npos + 1 is 0
  std::vector<std::string> names;
  try {
    names = vfs.list(folder);
  } catch (const VfsError&) {  // the write says better what is wrong
  }
  for (const std::string& name : names) {
    if (!is_temporary(name, stem)) continue;
    const std::string left = join_path(folder, name);
    const Lock lock = vfs.try_lock(left, LockKind::Exclusive);
    if (lock.outcome != Lock::Held) continue;
    ::unlink(left.c_str());  // a wish: what stays harms nobody
    ::close(lock.file);
  }
}

// A new file of this process and the lock that keeps others from removing it, where there are locks.
class Temporary {
 public:
  Temporary(PosixVfs& vfs, const std::string& path) : vfs_(vfs) {
    static std::atomic<int64_t> counter{0};
    for (;;) {
      name_ = fmt::format("{}{}{}-{}", path, kMark, ::getpid(), counter++);
      if (vfs.stat(name_)) continue;  // of an earlier process of this number
      try {
        file_ = vfs.create(name_);
      } catch (const VfsError& e) {
        if (e.error_number() == EEXIST) continue;
        throw;
      }
      lock_ = vfs.try_lock(name_, LockKind::Exclusive);
      if (lock_.outcome == Lock::Held || lock_.outcome == Lock::Unsupported) return;
      ::close(file_);  // somebody took it for a leftover before it was locked, and removes it
    }
  }
  ~Temporary() {
    if (file_ >= 0) ::close(file_);
    if (!renamed_) ::unlink(name_.c_str());
    if (lock_.file >= 0) ::close(lock_.file);
  }
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;

  void write(std::string_view text) {
    vfs_.write(file_, name_, std::as_bytes(std::span(text)));
    vfs_.fsync(file_, name_);
    const int file = file_;
    file_ = -1;
    vfs_.close(file, name_);
  }
  void rename_to(const std::string& path) {
    vfs_.rename(name_, path);
    renamed_ = true;
  }

 private:
  PosixVfs& vfs_;
  std::string name_;
  int file_ = -1;
  Lock lock_;
  bool renamed_ = false;
};

}  // namespace

void replace_file(const std::string& path, std::string_view text) {
  PosixVfs vfs;
  remove_leftovers(vfs, path);
  Temporary temporary(vfs, path);
  temporary.write(text);
  temporary.rename_to(path);
  vfs.fsync_dir(parent_path(path));
}

}  // namespace pleat::base
