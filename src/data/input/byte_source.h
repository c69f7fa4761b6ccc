// Bytes of a file, one block after the other, in constant memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace pleat::data {

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  // Fills a part of `out` and returns its length; 0 only at the end.
  virtual size_t read(std::span<char> out) = 0;
  // Bytes of the file consumed so far: of a compressed one, compressed bytes.
  virtual int64_t bytes_read() const = 0;
};

// A regular file as it stands on disk.
std::unique_ptr<ByteSource> open_file_bytes(const std::string& path);

// What a .gz or .zst file holds. `name` is for errors, which damaged and truncated files give: nothing is
// taken for the end of a file that is not one. Several members or frames in a row are one text.
std::unique_ptr<ByteSource> unpack_gzip(std::unique_ptr<ByteSource> packed, std::string name);
std::unique_ptr<ByteSource> unpack_zstd(std::unique_ptr<ByteSource> packed, std::string name);

// The text of a file: unpacked where its name ends in .gz or .zst. Throws when it is no text (file_kind.h),
// or not packed as its name says.
std::unique_ptr<ByteSource> open_text_bytes(const std::string& path);
// The same of bytes from anywhere; `path` tells the name.
std::unique_ptr<ByteSource> text_bytes(std::unique_ptr<ByteSource> file, const std::string& path);

}  // namespace pleat::data
