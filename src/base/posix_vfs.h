// The real disk. Interrupted calls and short reads and writes are finished here, so callers see all or an
// error.
#pragma once

#include <sys/types.h>

#include "base/vfs.h"

namespace pleat::base {

class PosixVfs : public Vfs {
 public:
  int open_read(const std::string& path) override;
  int create(const std::string& path) override;
  void write(int file, const std::string& path, std::span<const std::byte> bytes) override;
  size_t pread(int file, const std::string& path, std::span<std::byte> out, int64_t offset) override;
  void preallocate(int file, const std::string& path, int64_t length) override;
  void fsync(int file, const std::string& path) override;
  void close(int file, const std::string& path) override;
  void rename(const std::string& from, const std::string& to) override;
  void unlink(const std::string& path) override;
  void mkdir(const std::string& path) override;
  void rmdir(const std::string& path) override;
  void fsync_dir(const std::string& path) override;
  std::vector<std::string> list(const std::string& path) override;
  std::optional<FileStat> stat(const std::string& path) override;
  void drop_cached(int file) override;
  Lock try_lock(const std::string& path, LockKind kind) override;

 protected:
  // Seams for tests: the boundary before each operation, and the two calls that may do less than asked.
  virtual void before(VfsOp op) { static_cast<void>(op); }
  virtual ssize_t sys_write(int file, const void* bytes, size_t count);
  virtual ssize_t sys_pread(int file, void* out, size_t count, off_t offset);
};

}  // namespace pleat::base
