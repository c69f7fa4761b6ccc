// Files behind a small interface, so that the code that must survive crashes can be run on a disk that
// crashes on purpose (SimVfs) as well as on the real one (PosixVfs).
//
// Every call either does the whole thing or throws VfsError, which keeps errno and names operation and path.
// Nothing is durable before the matching fsync: bytes need fsync of the file, names need fsync_dir of the
// directory that holds them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"

namespace pleat::base {

enum class VfsOp {
  OpenRead,
  Create,
  Write,
  Pread,
  Preallocate,
  Fsync,
  Close,
  Rename,
  Unlink,
  Mkdir,
  Rmdir,
  FsyncDir,
  List,
  Stat,
};

const char* name_of(VfsOp op);

class VfsError : public Error {
 public:
  VfsError(VfsOp op, const std::string& path, int error_number);
  // The error of another rank, which has said it in its words.
  struct Said {
    std::string message;
  };
  VfsError(VfsOp op, int error_number, Said said)
      : Error(ExitCode::Storage, std::move(said.message)), op_(op), error_number_(error_number) {}
  VfsOp op() const { return op_; }
  int error_number() const { return error_number_; }

 private:
  VfsOp op_;
  int error_number_;
};

enum class FileKind { Regular, Directory, Other };

struct FileStat {
  FileKind kind;
  int64_t size;
};

// A lock of the kernel on a file. It goes when its holder does, however that ends.
enum class LockKind { Shared, Exclusive };
struct Lock {
  enum Outcome { Held, Busy, Missing, Unsupported } outcome = Unsupported;
  int file = -1;  // where held: close() lets go
};

class Vfs {
 public:
  virtual ~Vfs() = default;

  // Regular files only; the last path component is never followed when it is a link.
  virtual int open_read(const std::string& path) = 0;
  // A new empty file for appending; EEXIST when the name is taken.
  virtual int create(const std::string& path) = 0;
  // Appends all bytes.
  virtual void write(int file, const std::string& path, std::span<const std::byte> bytes) = 0;
  // Fills `out` from `offset`; returns fewer bytes only when the file ends there.
  virtual size_t pread(int file, const std::string& path, std::span<std::byte> out, int64_t offset) = 0;
  // Reserves space without changing the length, so that a full disk shows before the first byte.
  virtual void preallocate(int file, const std::string& path, int64_t length) = 0;
  // After a failure the state of the unsynced bytes is unknown for ever: never call it on that file again.
  virtual void fsync(int file, const std::string& path) = 0;
  // Releases the handle even when it throws.
  virtual void close(int file, const std::string& path) = 0;
  // Atomic; replaces a file or an empty directory at `to`.
  virtual void rename(const std::string& from, const std::string& to) = 0;
  virtual void unlink(const std::string& path) = 0;
  virtual void mkdir(const std::string& path) = 0;
  virtual void rmdir(const std::string& path) = 0;
  virtual void fsync_dir(const std::string& path) = 0;
  // Names in ascending order, without "." and "..".
  virtual std::vector<std::string> list(const std::string& path) = 0;
  // Does not follow links; nothing when the name does not exist.
  virtual std::optional<FileStat> stat(const std::string& path) = 0;
  // Asks that the next read of the file come from the disk and not from memory. A wish, not a promise.
  virtual void drop_cached(int file) { static_cast<void>(file); }

  // Takes a lock on a regular file without waiting for whoever holds another. Unsupported: here there are no
  // locks.
  virtual Lock try_lock(const std::string& path, LockKind kind);

  // Removes a file or a directory with all it holds, never following links.
  void remove_all(const std::string& path);
};

// An open file that is closed when it goes out of scope. Close it by hand after writing: only close()
// reports.
class File {
 public:
  static File open_read(Vfs& vfs, std::string path);
  static File create(Vfs& vfs, std::string path);
  File(File&& other) noexcept;
  File& operator=(File&&) = delete;
  ~File();

  void write(std::span<const std::byte> bytes) { vfs_->write(id_, path_, bytes); }
  size_t pread(std::span<std::byte> out, int64_t offset) { return vfs_->pread(id_, path_, out, offset); }
  void preallocate(int64_t length) { vfs_->preallocate(id_, path_, length); }
  void fsync() { vfs_->fsync(id_, path_); }
  void drop_cached() { vfs_->drop_cached(id_); }
  void close();
  const std::string& path() const { return path_; }

 private:
  File(Vfs& vfs, int id, std::string path) : vfs_(&vfs), id_(id), path_(std::move(path)) {}
  Vfs* vfs_;
  int id_;
  std::string path_;
};

// The whole file as bytes; an error when it is longer than `max_bytes`.
std::string read_file(Vfs& vfs, const std::string& path, int64_t max_bytes);

std::string join_path(const std::string& directory, const std::string& name);
// "." for a name without a slash.
std::string parent_path(const std::string& path);

}  // namespace pleat::base
