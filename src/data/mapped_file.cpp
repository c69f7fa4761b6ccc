#include "data/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "base/error.h"
#include "base/foreign_text.h"

namespace pleat::data {

std::string system_message(int error_number) { return std::generic_category().message(error_number); }

OpenedFile open_regular_file(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (descriptor < 0) {
    const int why = errno;
    // A wrong path is the user's to mend; everything else is the storage's.
    if (why == ENOENT || why == ENOTDIR || why == EACCES)
      base::fail("{}: cannot open for reading: {}", path, system_message(why));
    base::fail_with(base::ExitCode::Storage, "{}: cannot open for reading: {}", path, system_message(why));
  }
  struct stat info {};
  if (::fstat(descriptor, &info) != 0) {
    const int why = errno;
    ::close(descriptor);
    base::fail_with(base::ExitCode::Storage, "{}: cannot read its size: {}", path, system_message(why));
  }
  if (!S_ISREG(info.st_mode)) {
    ::close(descriptor);
    base::fail("{}: not a regular file (a directory, pipe, socket or device); a regular file is needed",
               path);
  }
  try {
    base::refuse_lfs_pointer(descriptor, info.st_size, path);
  } catch (...) {
    ::close(descriptor);
    throw;
  }
  return {descriptor, static_cast<int64_t>(info.st_size)};
}

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const OpenedFile opened = open_regular_file(path);
  descriptor_ = opened.descriptor;
  size_ = static_cast<size_t>(opened.size);
  if (size_ == 0) return;  // an empty mapping is not allowed
  void* at = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, descriptor_, 0);
  if (at == MAP_FAILED) {
    const int why = errno;
    ::close(descriptor_);
    base::fail_with(base::ExitCode::Storage, "{}: cannot map {} bytes: {}", path, size_, system_message(why));
  }
  data_ = static_cast<const std::byte*>(at);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
  ::close(descriptor_);
}

std::string MappedFile::stamp() const {
  struct stat s {};
  if (::fstat(descriptor_, &s) != 0)
    base::fail_with(base::ExitCode::Storage, "{}: cannot read its size: {}", path_, system_message(errno));
  return fmt::format("{}:{}:{}:{}.{:09}:{}.{:09}", s.st_dev, s.st_ino, s.st_size, s.st_mtim.tv_sec,
                     s.st_mtim.tv_nsec, s.st_ctim.tv_sec, s.st_ctim.tv_nsec);
}

void MappedFile::check_not_shrunk() const {
  struct stat info {};
  if (::fstat(descriptor_, &info) != 0)
    base::fail_with(base::ExitCode::Storage, "{}: cannot read its size: {}", path_, system_message(errno));
  if (static_cast<uint64_t>(info.st_size) < size_)
    base::fail_with(base::ExitCode::Storage, "{}: shrank from {} to {} bytes while it was in use", path_,
                    size_, static_cast<int64_t>(info.st_size));
}

void MappedFile::release(size_t begin, size_t end) const {
  const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  begin = begin / page * page;
  end = end / page * page;
  // Only a hint: a refusal costs resident file pages, nothing else.
  if (begin < end && end <= size_)
    (void)::madvise(const_cast<std::byte*>(data_) + begin, end - begin, MADV_DONTNEED);
}

}  // namespace pleat::data
