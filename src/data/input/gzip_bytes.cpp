#include <zlib.h>

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "data/input/byte_source.h"

namespace pleat::data {
namespace {

constexpr size_t kGzipBlockBytes = size_t{1} << 18;

class GzipBytes final : public ByteSource {
 public:
  GzipBytes(std::unique_ptr<ByteSource> packed, std::string name)
      : packed_(std::move(packed)), name_(std::move(name)), block_(kGzipBlockBytes) {
    // 15: the largest window; 16: a gzip header and trailer, whose checksum is compared.
    if (inflateInit2(&stream_, 15 + 16) != Z_OK) base::fail("{}: no memory to unpack it", name_);
  }
  ~GzipBytes() override { inflateEnd(&stream_); }
  GzipBytes(const GzipBytes&) = delete;
  GzipBytes& operator=(const GzipBytes&) = delete;

  size_t read(std::span<char> out) override {
    if (out.empty()) return 0;
    // zlib counts in 32 bits.
    const size_t wanted = std::min(out.size(), size_t{1} << 30);
    stream_.next_out = reinterpret_cast<Bytef*>(out.data());
    stream_.avail_out = static_cast<uInt>(wanted);
    while (stream_.avail_out == wanted) {
      if (stream_.avail_in == 0) refill();
      if (between_members_ && !begin_member()) return 0;
      if (stream_.avail_in == 0)
        base::fail("{}: the gzip data ends in the middle: the file is truncated", name_);
      const int code = inflate(&stream_, Z_NO_FLUSH);
      if (code == Z_STREAM_END)
        between_members_ = true;
      else if (code != Z_OK)
        base::fail("{}: the gzip data is damaged near byte {}: {}", name_, packed_->bytes_read(),
                   stream_.msg ? stream_.msg : "it cannot be unpacked");
    }
    return wanted - stream_.avail_out;
  }

  int64_t bytes_read() const override {
    return packed_->bytes_read() - static_cast<int64_t>(stream_.avail_in);
  }

 private:
  void refill() {
    stream_.next_in = reinterpret_cast<Bytef*>(block_.data());
    stream_.avail_in = static_cast<uInt>(packed_->read(block_));
  }

  // After a member: the next one, or the end, before which some writers leave zeros. False: the end.
  bool begin_member() {
    while (true) {
      while (stream_.avail_in > 0 && any_member_ && *stream_.next_in == 0) {
        ++stream_.next_in;
        --stream_.avail_in;
        zeros_ = true;
      }
      if (stream_.avail_in > 0) break;
      refill();
      if (stream_.avail_in == 0) return false;
    }
    if (zeros_) base::fail("{}: the gzip data is followed by something else; it is damaged", name_);
    if (any_member_ && inflateReset(&stream_) != Z_OK) base::fail("{}: cannot be unpacked further", name_);
    between_members_ = false;
    any_member_ = true;
    return true;
  }

  std::unique_ptr<ByteSource> packed_;
  std::string name_;
  std::vector<char> block_;
  z_stream stream_ = {};
  bool between_members_ = true, any_member_ = false, zeros_ = false;
};

}  // namespace

std::unique_ptr<ByteSource> unpack_gzip(std::unique_ptr<ByteSource> packed, std::string name) {
  return std::make_unique<GzipBytes>(std::move(packed), std::move(name));
}

}  // namespace pleat::data
