#include "safetensors/descriptor.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/foreign_text.h"

namespace pleat::safetensors {

namespace {

int open_beneath(int folder, const char* name) {
  // O_NONBLOCK: a pipe under this name must not wait for a writer.
  constexpr int kFlags = O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  open_how how{};
  how.flags = kFlags;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS;
  int result;
  do {
    result = static_cast<int>(::syscall(SYS_openat2, folder, name, &how, sizeof how));
  } while (result < 0 && (errno == EINTR || errno == EAGAIN));
  // Kernels and containers without the call (some answer EPERM): for one plain component openat promises the
  // same.
  if (result >= 0 || (errno != ENOSYS && errno != EPERM)) return result;
  do {
    result = ::openat(folder, name, kFlags);
  } while (result < 0 && errno == EINTR);
  return result;
}

}  // namespace

Descriptor::~Descriptor() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

int Descriptor::release() { return std::exchange(descriptor_, -1); }

void fail_io(const std::string& path, const char* what, int error_number) {
  const bool is_bad_path = error_number == ENOENT || error_number == ENOTDIR || error_number == ELOOP ||
                           error_number == ENAMETOOLONG || error_number == EISDIR;
  base::fail_with(is_bad_path ? base::ExitCode::BadInput : base::ExitCode::Storage, "{}: cannot {}: {}", path,
                  what, std::generic_category().message(error_number));
}

Descriptor open_folder(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) fail_io(path, "open the folder", errno);
  return Descriptor(descriptor);
}

OpenedFile open_regular(const Descriptor& folder, const std::string& name, const std::string& path) {
  if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos)
    base::fail("{}: not the name of a file", path);
  Descriptor file(open_beneath(folder.get(), name.c_str()));
  if (file.get() < 0 && errno == ELOOP)
    base::fail(
        "{}: is a symbolic link, and links to weights are not followed; put the file itself there (for "
        "Hugging "
        "Face's cache: download with a local folder)",
        path);
  if (file.get() < 0) fail_io(path, "open", errno);
  struct stat status;
  if (::fstat(file.get(), &status) != 0) fail_io(path, "look at", errno);
  if (!S_ISREG(status.st_mode)) base::fail("{}: not a regular file", path);
  base::refuse_lfs_pointer(file.get(), status.st_size, path);
  return {std::move(file), static_cast<int64_t>(status.st_size)};
}

void read_exactly(const Descriptor& file, std::span<std::byte> out, int64_t offset, const std::string& path) {
  size_t done = 0;
  while (done < out.size()) {
    const ssize_t got = ::pread(file.get(), out.data() + done, out.size() - done,
                                static_cast<off_t>(offset) + static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_io(path, "read", errno);
    if (got == 0)
      base::fail_with(base::ExitCode::Storage, "{}: ends at byte {}; it was cut after it was opened", path,
                      offset + static_cast<int64_t>(done));
    done += static_cast<size_t>(got);
  }
}

bool exists(const Descriptor& folder, const std::string& name, const std::string& path) {
  struct stat status;
  if (::fstatat(folder.get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0) return true;
  if (errno != ENOENT) fail_io(path, "look at", errno);
  return false;
}

SplitPath split_path(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return {".", path};
  return {slash == 0 ? "/" : path.substr(0, slash), path.substr(slash + 1)};
}

std::string join(const std::string& folder, const std::string& name) {
  return folder.ends_with('/') ? folder + name : folder + "/" + name;
}

}  // namespace pleat::safetensors
