#include "data/input/byte_source.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/text_name.h"
#include "data/input/file_kind.h"
#include "data/mapped_file.h"

namespace pleat::data {
namespace {

class FileBytes final : public ByteSource {
 public:
  explicit FileBytes(const std::string& path)
      : path_(path), descriptor_(open_regular_file(path).descriptor) {}
  ~FileBytes() override { ::close(descriptor_); }
  FileBytes(const FileBytes&) = delete;
  FileBytes& operator=(const FileBytes&) = delete;

  size_t read(std::span<char> out) override {
    ssize_t got;
    do {
      got = ::read(descriptor_, out.data(), out.size());
    } while (got < 0 && errno == EINTR);
    if (got < 0)
      base::fail_with(base::ExitCode::Storage, "{}: cannot read: {}", path_, system_message(errno));
    bytes_read_ += got;
    return static_cast<size_t>(got);
  }
  int64_t bytes_read() const override { return bytes_read_; }

 private:
  std::string path_;
  int descriptor_;
  int64_t bytes_read_ = 0;
};

// A source of which the first bytes were looked at.
class HeadedBytes final : public ByteSource {
 public:
  explicit HeadedBytes(std::unique_ptr<ByteSource> rest) : rest_(std::move(rest)) {
    head_.resize(kKindBytes);
    size_t filled = 0;
    while (filled < head_.size()) {
      const size_t got = rest_->read(std::span(head_).subspan(filled));
      if (got == 0) break;
      filled += got;
    }
    head_.resize(filled);
  }
  std::string_view head() const { return head_; }

  size_t read(std::span<char> out) override {
    if (begin_ == head_.size()) return rest_->read(out);
    const size_t count = std::min(out.size(), head_.size() - begin_);
    std::memcpy(out.data(), head_.data() + begin_, count);
    begin_ += count;
    return count;
  }
  int64_t bytes_read() const override { return rest_->bytes_read(); }

 private:
  std::unique_ptr<ByteSource> rest_;
  std::string head_;
  size_t begin_ = 0;
};

}  // namespace

std::unique_ptr<ByteSource> open_file_bytes(const std::string& path) {
  return std::make_unique<FileBytes>(path);
}

std::unique_ptr<ByteSource> text_bytes(std::unique_ptr<ByteSource> file, const std::string& path) {
  const base::Compression packed = base::text_name(path).compression;
  const bool gzip = packed == base::Compression::Gzip;
  auto outer = std::make_unique<HeadedBytes>(std::move(file));
  if (packed == base::Compression::None) {
    refuse_unless_text(outer->head(), path);
    return outer;
  }
  const std::string_view magic = gzip ? "\x1f\x8b" : "\x28\xb5\x2f\xfd";
  // Zstandard files may begin with a frame to skip: 50 to 5f 2a 4d 18.
  const std::string_view head = outer->head();
  const bool skippable = !gzip && head.size() >= 4 && (head[0] & 0xf0) == 0x50 &&
                         head.substr(1, 3) == std::string_view("\x2a\x4d\x18");
  if (head.empty())
    base::fail("{}: the file is empty; a {} file is needed", path, gzip ? "gzip" : "Zstandard");
  if (!head.starts_with(magic) && !skippable) {
    const std::string plain = path.substr(0, path.rfind('.'));
    base::fail("{}: does not begin as a {} file; if it holds text already: mv {} {}", path,
               gzip ? "gzip" : "Zstandard", shell_word(path), shell_word(plain));
  }
  auto inner = std::make_unique<HeadedBytes>(gzip ? unpack_gzip(std::move(outer), path)
                                                  : unpack_zstd(std::move(outer), path));
  refuse_unless_text(inner->head(), path, gzip ? Wrapped::Gzip : Wrapped::Zstd);
  return inner;
}

std::unique_ptr<ByteSource> open_text_bytes(const std::string& path) {
  return text_bytes(open_file_bytes(path), path);
}

}  // namespace pleat::data
