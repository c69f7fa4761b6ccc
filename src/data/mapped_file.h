// A regular file mapped read-only. Datasets are far larger than memory, so the page cache holds them and
// this process owns no copy: mapped pages are file pages, never anonymous memory.
//
// A mapped file that shrinks would end the process with SIGBUS. The descriptor therefore stays open, and
// readers call check_not_shrunk() before they touch the bytes, which turns that case into an error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace pleat::data {

class MappedFile {
 public:
  // Throws when the path cannot be opened or is no regular file (a FIFO never blocks the open).
  explicit MappedFile(const std::string& path);
  // Device, inode, size and times of the last change, as text: differs when the file does.
  std::string stamp() const;
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }

  void check_not_shrunk() const;

  // Tells the kernel that bytes [begin, end) were read for now; reading them again is still allowed.
  void release(size_t begin, size_t end) const;

 private:
  std::string path_;
  int descriptor_ = -1;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// Opens a regular file for reading and returns descriptor and size; the caller closes the descriptor.
struct OpenedFile {
  int descriptor;
  int64_t size;
};
OpenedFile open_regular_file(const std::string& path);

// The system's words for an errno value.
std::string system_message(int error_number);

}  // namespace pleat::data
