#include <zstd.h>
#include <zstd_errors.h>

#include <vector>

#include "base/error.h"
#include "data/input/byte_source.h"

namespace pleat::data {
namespace {

// Windows past this need as much memory: 128 MiB, what the zstd program takes without being asked.
constexpr int kWindowLog = 27;

class ZstdBytes final : public ByteSource {
 public:
  ZstdBytes(std::unique_ptr<ByteSource> packed, std::string name)
      : packed_(std::move(packed)), name_(std::move(name)), block_(ZSTD_DStreamInSize()) {
    if (context_ == nullptr ||
        ZSTD_isError(ZSTD_DCtx_setParameter(context_, ZSTD_d_windowLogMax, kWindowLog))) {
      ZSTD_freeDCtx(context_);
      base::fail("{}: no memory to unpack it", name_);
    }
  }
  ~ZstdBytes() override { ZSTD_freeDCtx(context_); }
  ZstdBytes(const ZstdBytes&) = delete;
  ZstdBytes& operator=(const ZstdBytes&) = delete;

  size_t read(std::span<char> out) override {
    if (out.empty()) return 0;
    ZSTD_outBuffer to{out.data(), out.size(), 0};
    while (to.pos == 0) {
      // What the context still holds may come out without further input.
      if (from_.pos == from_.size) {
        from_ = {block_.data(), packed_->read(block_), 0};
        if (from_.size == 0) {
          if (at_frame_end_) return 0;
          if (drained_) base::fail("{}: the Zstandard data ends in the middle: the file is truncated", name_);
        }
      }
      const size_t left = ZSTD_decompressStream(context_, &to, &from_);
      if (ZSTD_isError(left)) fail_damaged(left);
      at_frame_end_ = left == 0;
      drained_ = to.pos < to.size;
    }
    return to.pos;
  }

  int64_t bytes_read() const override {
    return packed_->bytes_read() - static_cast<int64_t>(from_.size - from_.pos);
  }

 private:
  [[noreturn]] void fail_damaged(size_t code) const {
    if (ZSTD_getErrorCode(code) == ZSTD_error_frameParameter_windowTooLarge)
      base::fail("{}: was packed with a window of more than {} MiB; unpack it first: zstd -d --long=31 {}",
                 name_, (1 << kWindowLog) >> 20, name_);
    base::fail("{}: the Zstandard data is damaged near byte {}: {}", name_, packed_->bytes_read(),
               ZSTD_getErrorName(code));
  }

  std::unique_ptr<ByteSource> packed_;
  std::string name_;
  std::vector<char> block_;
  ZSTD_DCtx* context_ = ZSTD_createDCtx();
  ZSTD_inBuffer from_ = {nullptr, 0, 0};
  bool at_frame_end_ = true, drained_ = true;
};

}  // namespace

std::unique_ptr<ByteSource> unpack_zstd(std::unique_ptr<ByteSource> packed, std::string name) {
  return std::make_unique<ZstdBytes>(std::move(packed), std::move(name));
}

}  // namespace pleat::data
