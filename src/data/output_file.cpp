#include "data/output_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "base/error.h"
#include "data/mapped_file.h"

namespace pleat::data {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 20;

[[noreturn]] void fail_io(const std::string& path, const char* what) {
  base::fail_with(base::ExitCode::Storage, "{}: cannot {}: {}", path, what, system_message(errno));
}

}  // namespace

OutputFile::OutputFile(const std::string& path) : path_(path) {
  static std::atomic<int64_t> counter{0};
  for (int attempt = 0; descriptor_ < 0 && attempt < 1000; ++attempt) {
    temporary_path_ = fmt::format("{}.tmp-{}-{}", path, ::getpid(), counter++);
    descriptor_ = ::open(temporary_path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (descriptor_ < 0 && errno != EEXIST)
      break;  // EEXIST: left over from an earlier process of this number
  }
  if (descriptor_ < 0) fail_io(temporary_path_, "create");
  buffer_.reserve(kBufferBytes);
}

OutputFile::~OutputFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  if (!temporary_path_.empty()) ::unlink(temporary_path_.c_str());
}

void OutputFile::write(std::span<const std::byte> bytes) {
  PLEAT_CHECK(!synced_);
  while (!bytes.empty()) {
    const size_t take = std::min(bytes.size(), kBufferBytes - buffer_.size());
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(take));
    bytes = bytes.subspan(take);
    size_ += static_cast<int64_t>(take);
    if (buffer_.size() == kBufferBytes) flush();
  }
}

void OutputFile::flush() {
  size_t done = 0;
  while (done < buffer_.size()) {
    const ssize_t wrote = ::write(descriptor_, buffer_.data() + done, buffer_.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) fail_io(path_, "write");
    done += static_cast<size_t>(wrote);
  }
  buffer_.clear();
}

void OutputFile::make_nameless() {
  if (::unlink(temporary_path_.c_str()) != 0) fail_io(temporary_path_, "remove");
  temporary_path_.clear();
}

void OutputFile::read_back(int64_t offset, std::span<std::byte> out) {
  PLEAT_CHECK(offset >= 0 && static_cast<int64_t>(out.size()) <= size_ - offset);
  flush();
  size_t done = 0;
  while (done < out.size()) {
    const ssize_t got =
        ::pread(descriptor_, out.data() + done, out.size() - done, offset + static_cast<int64_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_io(path_, "read back");
    if (got == 0)
      base::fail_with(base::ExitCode::Storage, "{}: {} bytes were written but fewer can be read",
                      temporary_path_, size_);
    done += static_cast<size_t>(got);
  }
}

void OutputFile::sync() {
  flush();
  if (::fsync(descriptor_) != 0) fail_io(path_, "sync");
  synced_ = true;
}

void OutputFile::commit() {
  PLEAT_CHECK(synced_ && !temporary_path_.empty());
  if (std::rename(temporary_path_.c_str(), path_.c_str()) != 0) fail_io(path_, "rename the finished file");
  temporary_path_.clear();
}

void sync_folder_of(const std::string& path) {
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  const std::string folder = parent.empty() ? std::string(".") : parent.string();
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) fail_io(folder, "open the folder");
  const int result = ::fsync(descriptor);
  const int why = errno;
  ::close(descriptor);
  errno = why;
  if (result != 0) fail_io(folder, "sync the folder");
}

}  // namespace pleat::data
