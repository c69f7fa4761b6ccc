#include "safetensors/new_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <system_error>

#include "base/error.h"

namespace pleat::safetensors {

namespace {

// Asking umask() means setting it, for all threads; the kernel also prints it. Where it does not, the file
// stays the owner's.
mode_t usual_permissions() {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line)) {
    unsigned mask = 0;
    if (std::sscanf(line.c_str(), "Umask: %o", &mask) == 1) return static_cast<mode_t>(0666 & ~mask);
  }
  return 0600;
}

}  // namespace

std::shared_ptr<const OutputFolder> OutputFolder::open(const std::string& path) {
  return std::make_shared<const OutputFolder>(OutputFolder{path, open_folder(path)});
}

void OutputFolder::sync() const {
  if (::fsync(descriptor.get()) != 0) fail_io(path, "sync the folder", errno);
}

NewFile::NewFile(std::shared_ptr<const OutputFolder> folder, const std::string& name, int64_t num_bytes)
    : folder_(std::move(folder)), name_(name), path_(join(folder_->path, name)) {
  if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos)
    base::fail("{}: not the name of a file", path_);
  static std::atomic<int64_t> counter{0};
  for (int attempt = 0; descriptor_ < 0 && attempt < 1000; ++attempt) {
    temporary_ = fmt::format(".pleat-{}-{}.tmp", ::getpid(), counter++);
    descriptor_ = ::openat(folder_->descriptor.get(), temporary_.c_str(),
                           O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (descriptor_ < 0 && errno != EEXIST) break;  // EEXIST: left by a process that had this number before
  }
  if (descriptor_ < 0) fail_io(path_, "create a temporary file beside", errno);
  // A file system that cannot reserve loses only the early warning.
  if (num_bytes > 0 && ::fallocate(descriptor_, FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(num_bytes)) != 0 &&
      errno != EOPNOTSUPP && errno != ENOSYS && errno != EINTR) {
    const int why = errno;
    ::close(descriptor_);
    ::unlinkat(folder_->descriptor.get(), temporary_.c_str(), 0);
    base::fail_with(base::ExitCode::Storage, "{}: cannot reserve {} bytes: {}", path_, num_bytes,
                    std::generic_category().message(why));
  }
}

NewFile::~NewFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!temporary_.empty()) ::unlinkat(folder_->descriptor.get(), temporary_.c_str(), 0);
}

void NewFile::write(std::span<const std::byte> bytes, int64_t offset) {
  PLEAT_CHECK(descriptor_ >= 0, "{} is closed", path_);
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t put = ::pwrite(descriptor_, bytes.data() + done, bytes.size() - done,
                                 static_cast<off_t>(offset) + static_cast<off_t>(done));
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) fail_io(path_, "write", put < 0 ? errno : EIO);
    done += static_cast<size_t>(put);
  }
}

void NewFile::sync() {
  PLEAT_CHECK(descriptor_ >= 0, "{} is closed", path_);
  if (::fchmod(descriptor_, usual_permissions()) != 0) fail_io(path_, "set the permissions of", errno);
  if (::fsync(descriptor_) != 0) fail_io(path_, "sync", errno);
  const int descriptor = descriptor_;
  descriptor_ = -1;  // released even when close reports an error
  if (::close(descriptor) != 0 && errno != EINTR) fail_io(path_, "close", errno);
}

void NewFile::commit() {
  PLEAT_CHECK(descriptor_ < 0 && !temporary_.empty(), "{} is not synced", path_);
  const int folder = folder_->descriptor.get();
  if (::renameat(folder, temporary_.c_str(), folder, name_.c_str()) != 0)
    fail_io(path_, "rename the finished file to", errno);
  temporary_.clear();
}

}  // namespace pleat::safetensors
