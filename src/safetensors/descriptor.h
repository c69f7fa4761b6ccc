// Open files of a folder nobody vouches for. Every file is opened by one plain name beneath an open folder:
// never through a link, never out of the folder, regular files only (opening a pipe or a device can hang or
// act). Links in the path of the folder itself are the operator's own and are followed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace pleat::safetensors {

class Descriptor {
 public:
  explicit Descriptor(int descriptor) : descriptor_(descriptor) {}
  Descriptor(Descriptor&& other) noexcept : descriptor_(other.release()) {}
  Descriptor& operator=(Descriptor&&) = delete;
  ~Descriptor();

  int get() const { return descriptor_; }
  int release();

 private:
  int descriptor_;
};

Descriptor open_folder(const std::string& path);

struct OpenedFile {
  Descriptor descriptor;
  int64_t size;
};

// `path` is how messages call the file.
OpenedFile open_regular(const Descriptor& folder, const std::string& name, const std::string& path);

// Fills `out` or throws: a file that ends early was cut while open.
void read_exactly(const Descriptor& file, std::span<std::byte> out, int64_t offset, const std::string& path);

// False when the name does not exist. Does not follow links.
bool exists(const Descriptor& folder, const std::string& name, const std::string& path);

struct SplitPath {
  std::string folder, name;  // "." for a name alone
};
SplitPath split_path(const std::string& path);

std::string join(const std::string& folder, const std::string& name);

// Throws with what the system says about `error_number`, as bad input where the path is at fault.
[[noreturn]] void fail_io(const std::string& path, const char* what, int error_number);

}  // namespace pleat::safetensors
