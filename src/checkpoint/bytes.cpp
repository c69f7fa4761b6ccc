#include "checkpoint/bytes.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace pleat::checkpoint {
namespace {

void require_inside(int64_t begin, int64_t end, int64_t size) {
  PLEAT_CHECK(begin >= 0 && begin <= end && end <= size, "bytes {} to {} of {}", begin, end, size);
}

template <class Byte>
std::span<Byte> part(std::span<Byte> all, int64_t begin, int64_t end) {
  return all.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
}

}  // namespace

std::span<const std::byte> ConstBytes::host() const {
  PLEAT_CHECK(!memory_, "{} bytes that the host does not reach", size_);
  return host_;
}

std::span<const std::byte> ConstBytes::Reader::at(int64_t begin, int64_t end) {
  if (!cursor_) return part(host_, begin, end);
  return cursor_->at(begin_ + begin, begin_ + end);
}

ConstBytes::Reader ConstBytes::reader(int64_t begin, int64_t end) const {
  require_inside(begin, end, size_);
  Reader out;
  out.host_ = host_, out.begin_ = begin_;
  if (memory_) out.cursor_ = memory_->cursor(begin_ + begin, begin_ + end);
  return out;
}

void ConstBytes::read(int64_t begin, std::span<std::byte> out) const {
  const int64_t end = begin + static_cast<int64_t>(out.size());
  for (Reader from = reader(begin, end); begin < end;) {
    const std::span<const std::byte> there = from.at(begin, end);
    std::memcpy(out.data(), there.data(), there.size());
    out = out.subspan(there.size()), begin += static_cast<int64_t>(there.size());
  }
}

std::vector<std::byte> ConstBytes::copy() const {
  std::vector<std::byte> out(static_cast<size_t>(size_));
  read(0, out);
  return out;
}

std::span<std::byte> Bytes::host() const {
  PLEAT_CHECK(!memory_, "{} bytes that the host does not reach", size_);
  return room_;
}

void Bytes::write(int64_t begin, int64_t end, const Memory::Fill& fill) const {
  require_inside(begin, end, size_);
  if (begin == end) return;
  if (!memory_) return fill(begin, part(room_, begin, end));
  memory_->write(begin_ + begin, begin_ + end,
                 [&](int64_t at, std::span<std::byte> room) { fill(at - begin_, room); });
}

void Bytes::write(int64_t begin, std::span<const std::byte> from) const {
  write(begin, begin + static_cast<int64_t>(from.size()), [&](int64_t at, std::span<std::byte> room) {
    std::memcpy(room.data(), from.data() + (at - begin), room.size());
  });
}

void Bytes::zero() const {
  if (size_ == 0) return;
  if (memory_) return memory_->zero(begin_, begin_ + size_);
  std::memset(room_.data(), 0, room_.size());
}

}  // namespace pleat::checkpoint
