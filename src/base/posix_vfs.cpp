#include "base/posix_vfs.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <memory>

namespace pleat::base {

namespace {

// Repeats a call that a signal interrupted. Not for close and fsync, see there.
template <class Call>
auto uninterrupted(Call call) {
  decltype(call()) result;
  do {
    result = call();
  } while (result < 0 && errno == EINTR);
  return result;
}

FileStat to_file_stat(const struct stat& s) {
  const FileKind kind = S_ISREG(s.st_mode)   ? FileKind::Regular
                        : S_ISDIR(s.st_mode) ? FileKind::Directory
                                             : FileKind::Other;
  return {kind, static_cast<int64_t>(s.st_size)};
}

}  // namespace

ssize_t PosixVfs::sys_write(int file, const void* bytes, size_t count) { return ::write(file, bytes, count); }

ssize_t PosixVfs::sys_pread(int file, void* out, size_t count, off_t offset) {
  return ::pread(file, out, count, offset);
}

int PosixVfs::open_read(const std::string& path) {
  before(VfsOp::OpenRead);
  // O_NONBLOCK: opening a pipe planted under this name must not wait for a writer.
  const int file =
      uninterrupted([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK); });
  if (file < 0) throw VfsError(VfsOp::OpenRead, path, errno);
  struct stat s;
  if (::fstat(file, &s) != 0 || !S_ISREG(s.st_mode)) {
    ::close(file);
    fail_with(ExitCode::Storage, "cannot open '{}': not a regular file", path);
  }
  return file;
}

int PosixVfs::create(const std::string& path) {
  before(VfsOp::Create);
  const int file = uninterrupted(
      [&] { return ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666); });
  if (file < 0) throw VfsError(VfsOp::Create, path, errno);
  return file;
}

void PosixVfs::write(int file, const std::string& path, std::span<const std::byte> bytes) {
  before(VfsOp::Write);
  while (!bytes.empty()) {
    const ssize_t put = uninterrupted([&] { return sys_write(file, bytes.data(), bytes.size()); });
    if (put < 0) throw VfsError(VfsOp::Write, path, errno);
    // Zero bytes accepted without an error would loop for ever.
    if (put == 0) throw VfsError(VfsOp::Write, path, EIO);
    bytes = bytes.subspan(static_cast<size_t>(put));
  }
}

size_t PosixVfs::pread(int file, const std::string& path, std::span<std::byte> out, int64_t offset) {
  before(VfsOp::Pread);
  size_t total = 0;
  while (total < out.size()) {
    const ssize_t got = uninterrupted([&] {
      return sys_pread(file, out.data() + total, out.size() - total,
                       static_cast<off_t>(offset) + static_cast<off_t>(total));
    });
    if (got < 0) throw VfsError(VfsOp::Pread, path, errno);
    if (got == 0) break;
    total += static_cast<size_t>(got);
  }
  return total;
}

void PosixVfs::preallocate(int file, const std::string& path, int64_t length) {
  before(VfsOp::Preallocate);
  if (length == 0) return;
  const int result = uninterrupted([&] { return ::fallocate(file, FALLOC_FL_KEEP_SIZE, 0, length); });
  // A file system that cannot reserve loses nothing but the early warning: the writes still report ENOSPC.
  if (result != 0 && errno != EOPNOTSUPP && errno != ENOSYS) throw VfsError(VfsOp::Preallocate, path, errno);
}

void PosixVfs::fsync(int file, const std::string& path) {
  before(VfsOp::Fsync);
  // EINTR is a failure here: what it left unwritten is not known.
  if (::fsync(file) != 0) throw VfsError(VfsOp::Fsync, path, errno);
}

void PosixVfs::close(int file, const std::string& path) {
  before(VfsOp::Close);
  // Linux has released the descriptor also on EINTR; a second close could hit somebody else's.
  if (::close(file) != 0 && errno != EINTR) throw VfsError(VfsOp::Close, path, errno);
}

void PosixVfs::rename(const std::string& from, const std::string& to) {
  before(VfsOp::Rename);
  if (::rename(from.c_str(), to.c_str()) != 0) throw VfsError(VfsOp::Rename, from + "' to '" + to, errno);
}

void PosixVfs::unlink(const std::string& path) {
  before(VfsOp::Unlink);
  if (::unlink(path.c_str()) != 0) throw VfsError(VfsOp::Unlink, path, errno);
}

void PosixVfs::mkdir(const std::string& path) {
  before(VfsOp::Mkdir);
  if (::mkdir(path.c_str(), 0777) != 0) throw VfsError(VfsOp::Mkdir, path, errno);
}

void PosixVfs::rmdir(const std::string& path) {
  before(VfsOp::Rmdir);
  if (::rmdir(path.c_str()) != 0) throw VfsError(VfsOp::Rmdir, path, errno);
}

void PosixVfs::fsync_dir(const std::string& path) {
  before(VfsOp::FsyncDir);
  const int dir = uninterrupted([&] { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
  if (dir < 0) throw VfsError(VfsOp::FsyncDir, path, errno);
  const int result = ::fsync(dir);
  const int error_number = errno;
  ::close(dir);
  if (result != 0) throw VfsError(VfsOp::FsyncDir, path, error_number);
}

std::vector<std::string> PosixVfs::list(const std::string& path) {
  before(VfsOp::List);
  std::unique_ptr<DIR, int (*)(DIR*)> dir(::opendir(path.c_str()), ::closedir);
  if (!dir) throw VfsError(VfsOp::List, path, errno);
  std::vector<std::string> names;
  for (;;) {
    errno = 0;
    const struct dirent* entry = ::readdir(dir.get());
    if (!entry) {
      if (errno != 0) throw VfsError(VfsOp::List, path, errno);
      break;
    }
    std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(std::move(name));
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::optional<FileStat> PosixVfs::stat(const std::string& path) {
  before(VfsOp::Stat);
  struct stat s;
  if (::lstat(path.c_str(), &s) == 0) return to_file_stat(s);
  if (errno == ENOENT) return std::nullopt;
  throw VfsError(VfsOp::Stat, path, errno);
}

void PosixVfs::drop_cached(int file) { static_cast<void>(::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED)); }

Lock PosixVfs::try_lock(const std::string& path, LockKind kind) {
  // Over NFS the kernel turns flock into a lock that needs a file open for writing when exclusive.
  const int mode = kind == LockKind::Exclusive ? O_RDWR : O_RDONLY;
  const int file =
      uninterrupted([&] { return ::open(path.c_str(), mode | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK); });
  if (file < 0) return {errno == ENOENT || errno == ENOTDIR ? Lock::Missing : Lock::Unsupported, -1};
  const int operation = (kind == LockKind::Exclusive ? LOCK_EX : LOCK_SH) | LOCK_NB;
  if (uninterrupted([&] { return ::flock(file, operation); }) != 0) {
    const bool busy = errno == EWOULDBLOCK;
    ::close(file);
    return {busy ? Lock::Busy : Lock::Unsupported, -1};
  }
  // Whoever removes a file holds its lock while it does so: this one may be gone from here by now.
  struct stat mine, now;
  if (::fstat(file, &mine) != 0 || ::lstat(path.c_str(), &now) != 0 || mine.st_ino != now.st_ino ||
      mine.st_dev != now.st_dev) {
    ::close(file);
    return {Lock::Missing, -1};
  }
  return {Lock::Held, file};
}

}  // namespace pleat::base
