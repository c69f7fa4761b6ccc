// A carrier of memory that the host could reach (checkpoint/staged_memory.h): every copy comes as late as it may, so bytes
// that are looked at, or a buffer that is filled again, before the copy was waited for show.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <vector>

#include "checkpoint/staged_memory.h"

namespace pleat::testing {

class LateCarrier final : public checkpoint::Carrier {
 public:
  LateCarrier(std::span<std::byte> memory, int64_t buffer_bytes) : memory_(memory) {
    for (auto& buffer : buffers_) buffer.assign(static_cast<size_t>(buffer_bytes), kPoison);
  }
  std::span<std::byte> buffer(int index) override { return buffers_[static_cast<size_t>(index)]; }
  void fetch(int buffer, int64_t begin, int64_t count) override {
    fetched += count;
    begin_copy(buffer, count, [this, buffer, begin, count] {
      std::memcpy(this->buffer(buffer).data(), part(begin, count).data(), static_cast<size_t>(count));
    });
    std::fill_n(this->buffer(buffer).begin(), count, kPoison);
  }
  void send(int buffer, int64_t begin, int64_t count) override {
    sent += count;
    begin_copy(buffer, count, [this, buffer, begin, count] {
      std::memcpy(part(begin, count).data(), this->buffer(buffer).data(), static_cast<size_t>(count));
    });
  }
  void wait(int buffer) override {
    std::function<void()>& copy = copies_[static_cast<size_t>(buffer)];
    if (copy) copy();
    copy = {};
  }
  void zero(int64_t begin, int64_t count) override {
    const std::span<std::byte> there = part(begin, count);
    std::fill(there.begin(), there.end(), std::byte{0});
  }
  bool is_copying(int buffer) const { return static_cast<bool>(copies_[static_cast<size_t>(buffer)]); }

  static constexpr std::byte kPoison{0xEE};
  int64_t fetched = 0, sent = 0;  // bytes

 private:
  std::span<std::byte> part(int64_t begin, int64_t count) const {
    if (begin < 0 || count < 1 || count > static_cast<int64_t>(memory_.size()) - begin)
      throw std::logic_error("a copy of bytes that are not there");
    return memory_.subspan(static_cast<size_t>(begin), static_cast<size_t>(count));
  }
  void begin_copy(int buffer, int64_t count, std::function<void()> copy) {
    if (is_copying(buffer)) throw std::logic_error("two copies in one buffer");
    if (count > static_cast<int64_t>(this->buffer(buffer).size()))
      throw std::logic_error("larger than the buffer");
    copies_[static_cast<size_t>(buffer)] = std::move(copy);
  }

  std::span<std::byte> memory_;
  std::array<std::vector<std::byte>, kBuffers> buffers_;
  std::array<std::function<void()>, kBuffers> copies_;
};

}  // namespace pleat::testing
