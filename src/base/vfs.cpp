#include "base/vfs.h"

#include <cerrno>
#include <cstring>
#include <system_error>

namespace pleat::base {

const char* name_of(VfsOp op) {
  switch (op) {
    case VfsOp::OpenRead:
      return "open";
    case VfsOp::Create:
      return "create";
    case VfsOp::Write:
      return "write";
    case VfsOp::Pread:
      return "read";
    case VfsOp::Preallocate:
      return "reserve space for";
    case VfsOp::Fsync:
      return "fsync";
    case VfsOp::Close:
      return "close";
    case VfsOp::Rename:
      return "rename";
    case VfsOp::Unlink:
      return "unlink";
    case VfsOp::Mkdir:
      return "make directory";
    case VfsOp::Rmdir:
      return "remove directory";
    case VfsOp::FsyncDir:
      return "fsync directory";
    case VfsOp::List:
      return "list";
    case VfsOp::Stat:
      return "stat";
  }
  return "?";
}

VfsError::VfsError(VfsOp op, const std::string& path, int error_number)
    : Error(ExitCode::Storage, fmt::format("cannot {} '{}': {} (errno {})", name_of(op), path,
                                           std::generic_category().message(error_number), error_number)),
      op_(op),
      error_number_(error_number) {}

Lock Vfs::try_lock(const std::string&, LockKind) { return {}; }

void Vfs::remove_all(const std::string& path) {
  const std::optional<FileStat> found = stat(path);
  if (!found) return;
  if (found->kind != FileKind::Directory) return unlink(path);
  for (const std::string& name : list(path)) remove_all(join_path(path, name));
  rmdir(path);
}

File File::open_read(Vfs& vfs, std::string path) {
  const int id = vfs.open_read(path);
  return File(vfs, id, std::move(path));
}

File File::create(Vfs& vfs, std::string path) {
  const int id = vfs.create(path);
  return File(vfs, id, std::move(path));
}

File::File(File&& other) noexcept : vfs_(other.vfs_), id_(other.id_), path_(std::move(other.path_)) {
  other.vfs_ = nullptr;
}

File::~File() {
  if (!vfs_) return;
  try {
    vfs_->close(id_, path_);
  } catch (...) {
    // Only readers and writers that already failed end here; the first error is the one to report.
  }
}

void File::close() {
  Vfs* vfs = vfs_;
  vfs_ = nullptr;
  vfs->close(id_, path_);
}

std::string read_file(Vfs& vfs, const std::string& path, int64_t max_bytes) {
  const std::optional<FileStat> found = vfs.stat(path);
  if (!found) throw VfsError(VfsOp::OpenRead, path, ENOENT);
  if (found->kind != FileKind::Regular) fail_with(ExitCode::Storage, "'{}' is not a regular file", path);
  if (found->size > max_bytes)
    fail_with(ExitCode::Storage, "'{}' has {} bytes; at most {} are allowed", path, found->size, max_bytes);
  File file = File::open_read(vfs, path);
  // One byte more than the size shows a file that grew meanwhile.
  std::string text(static_cast<size_t>(found->size) + 1, '\0');
  const size_t got = file.pread(std::as_writable_bytes(std::span(text)), 0);
  if (got != static_cast<size_t>(found->size))
    fail_with(ExitCode::Storage, "'{}' changed its length while it was read", path);
  text.resize(got);
  return text;
}

std::string join_path(const std::string& directory, const std::string& name) {
  return directory.empty() || directory.back() == '/' ? directory + name : directory + "/" + name;
}

std::string parent_path(const std::string& path) {
  size_t end = path.size();
  while (end > 1 && path[end - 1] == '/') --end;
  size_t slash = end == 0 ? std::string::npos : path.rfind('/', end - 1);
  if (slash == std::string::npos) return ".";
  while (slash > 0 && path[slash - 1] == '/') --slash;
  return slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace pleat::base
