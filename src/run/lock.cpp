#include "run/lock.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <ctime>
#include <filesystem>

#include "base/error.h"
#include "base/make_folders.h"
#include "base/vfs.h"

namespace pleat::run {

namespace {

namespace fs = std::filesystem;

constexpr size_t kMostBytes = 512;

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "?";
}

std::string now_utc() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S UTC", &parts);
  return text;
}

std::string signature() { return fmt::format("{} pid {} since {}\n", host_name(), ::getpid(), now_utc()); }

// Who holds the lock, by what the file says. A holder that has just begun has not signed yet: what stands
// there then is of a process that is gone.
std::string holder(int file) {
  char text[kMostBytes] = {};
  const ssize_t got = ::pread(file, text, sizeof text - 1, 0);
  std::string line(text, got > 0 ? static_cast<size_t>(got) : 0);
  line = line.substr(0, line.find('\n'));
  for (char& c : line)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  constexpr char kStarting[] = "a process that is just starting";
  const size_t pid_at = line.find(" pid ");
  if (pid_at == std::string::npos) return kStarting;
  int pid = 0;
  std::from_chars(line.data() + pid_at + 5, line.data() + line.size(), pid);
  const bool here = line.substr(0, pid_at) == host_name();
  if (here && pid > 0 && ::kill(pid, 0) != 0 && errno == ESRCH) return kStarting;
  return "host " + line;
}

[[noreturn]] void no_locks(const std::string& folder, const std::string& key, const std::string& why) {
  base::fail(
      "'{}' lies on a file system without working locks ({}): two trainers could destroy each other's work "
      "there. Use a {} on another file system, or --no-lock, and see to it that only one runs",
      folder, why, key);
}

// "" where there may be a lock: nothing, or a plain file. What else has the name is not opened, as that may wait for
// ever, follow it elsewhere, or do something to a device.
std::string why_no_file(const std::string& path) {
  struct stat found {};
  if (::lstat(path.c_str(), &found) != 0 || S_ISREG(found.st_mode)) return "";
  const char* what = S_ISLNK(found.st_mode)    ? "a symbolic link"
                     : S_ISDIR(found.st_mode)  ? "a folder"
                     : S_ISFIFO(found.st_mode) ? "a pipe"
                     : S_ISSOCK(found.st_mode) ? "a socket"
                                               : "a device";
  return fmt::format("'{}' is {}; needed a plain file that a trainer makes itself, or nothing: remove it",
                     path, what);
}

int open_lock(const std::string& folder, const std::string& path, bool& made) {
  for (;;) {
    require_lock_is_file(folder);
    // Should it be replaced now, nothing is followed or waited for.
    int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    if (struct stat opened{}; file >= 0 && ::fstat(file, &opened) == 0 && !S_ISREG(opened.st_mode)) {
      ::close(file);
      continue;
    }
    if (file >= 0 || errno != ENOENT) return file;
    file = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
    made = file >= 0;
    if (file >= 0 || errno != EEXIST) return file;
  }
}

bool same_file(int file, const std::string& path) {
  struct stat mine, now;
  return ::fstat(file, &mine) == 0 && ::lstat(path.c_str(), &now) == 0 && mine.st_ino == now.st_ino &&
         mine.st_dev == now.st_dev;
}

}  // namespace

bool make_folder(const std::string& folder, const std::string& key) {
  std::error_code error;
  if (fs::exists(folder, error) && !fs::is_directory(folder, error))
    base::fail("{} = \"{}\" is a file; needed is a folder, one of a run or a new one", key, folder);
  try {
    return base::make_folders(folder);
  } catch (const base::VfsError& failed) {
    base::fail_with(base::ExitCode::Storage, "{} = \"{}\" cannot be made: {}{}", key, folder, failed.what(),
                    failed.error_number() == ENOTDIR ? "; a part of it is a file" : "");
  }
}

void require_lock_is_file(const std::string& folder) {
  if (const std::string why = why_no_file((fs::path(folder) / kLockName).string()); !why.empty())
    base::fail_with(base::ExitCode::Storage, "{}", why);
}

Lock Lock::take(const std::string& folder, const std::string& key) { return take(folder, key, &::flock); }

Lock Lock::take(const std::string& folder, const std::string& key, FlockCall flock) {
  const std::string path = (fs::path(folder) / kLockName).string();
  bool made_folder = false;
  for (;;) {
    made_folder = make_folder(folder, key) || made_folder;
    bool made_file = false;
    const int file = open_lock(folder, path, made_file);
    if (file < 0)
      base::fail_with(base::ExitCode::Storage, "cannot open '{}': {}", path, std::strerror(errno));
    Lock lock(folder, file, made_folder, made_file);
    if (flock(file, LOCK_EX | LOCK_NB) != 0) {
      const int error = errno;
      if (error == EINTR) continue;
      if (error != EWOULDBLOCK) no_locks(folder, key, std::strerror(error));
      lock.made_file_ = lock.made_folder_ = false;  // it is the holder's
      base::fail("another trainer is at work in '{}': {}. Wait for it, stop it, or choose another {}", folder,
                 holder(file), key);
    }
    if (!same_file(file, path)) {  // its last holder removed it meanwhile
      lock.made_file_ = false;
      continue;
    }
    // A lock that can be taken twice is none.
    const int again = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    const bool twice = again >= 0 && flock(again, LOCK_EX | LOCK_NB) == 0;
    if (again >= 0) ::close(again);
    if (twice) no_locks(folder, key, "the same lock was given twice");
    return lock;
  }
}

Lock::Lock(Lock&& other) noexcept
    : folder_(std::move(other.folder_)),
      file_(other.file_),
      made_folder_(other.made_folder_),
      made_file_(other.made_file_),
      signed_(other.signed_) {
  other.file_ = -1;
}

Lock::~Lock() {
  if (file_ < 0) return;
  if (!signed_) {
    const std::string path = (fs::path(folder_) / kLockName).string();
    if (made_file_ && same_file(file_, path)) ::unlink(path.c_str());
    if (made_folder_) ::rmdir(folder_.c_str());
  }
  ::close(file_);
}

bool Lock::is_held(const std::string& folder) {
  const std::string path = (fs::path(folder) / kLockName).string();
  if (!why_no_file(path).empty()) return false;
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
  if (file < 0) return false;
  const bool held = ::flock(file, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  ::close(file);
  return held;
}

void Lock::require_kept() const {
  if (same_file(file_, (fs::path(folder_) / kLockName).string())) return;
  base::fail_with(
      base::ExitCode::Storage,
      "'{}/{}' was removed or replaced while a trainer worked there: another trainer could have come in. The "
      "trainer stops; what it trained since its last checkpoint is not saved. Run the same command again to "
      "go on from there",
      folder_, kLockName);
}

void Lock::sign() {
  const std::string text = signature();
  signed_ = true;
  if (::ftruncate(file_, 0) != 0 ||
      ::pwrite(file_, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size()))
    base::fail_with(base::ExitCode::Storage, "cannot write '{}/{}': {}", folder_, kLockName,
                    std::strerror(errno));
}

}  // namespace pleat::run
