#include "checkpoint/staged_memory.h"

#include <algorithm>
#include <array>

#include "base/error.h"

namespace pleat::checkpoint {
namespace {

// A copy takes about as long for so many bytes as for one.
constexpr int64_t kLeastFetched = int64_t{1} << 20;

int64_t size_of(Carrier& carrier) { return static_cast<int64_t>(carrier.buffer(0).size()); }

}  // namespace

// What lies in the buffers of the bytes [begin, end).
class StagedMemory::Window final : public Memory::Cursor {
 public:
  Window(StagedMemory& memory, int64_t end) : memory_(memory), carrier_(memory.carrier_), end_(end) {}

  std::span<const std::byte> at(int64_t begin, int64_t end) override {
    PLEAT_CHECK(begin < end && end <= end_, "bytes {} to {} of those before {}", begin, end, end_);
    if (turn_ != memory_.turn_) turn_ = memory_.take(), held_ = {};
    const auto has = [&](int buffer) {
      const Held& h = held_[static_cast<size_t>(buffer)];
      return begin >= h.begin && begin < h.end;
    };
    int now = has(0) ? 0 : 1;
    if (!has(now)) fetch(now = 0, begin, std::min(std::max(end, begin + kLeastFetched), end_));
    carrier_.wait(now);
    const Held& here = held_[static_cast<size_t>(now)];
    const int next = 1 - now;
    if (here.end < end && held_[static_cast<size_t>(next)].begin != here.end) fetch(next, here.end, end);
    const int64_t count = std::min(end, here.end) - begin;
    return carrier_.buffer(now).subspan(static_cast<size_t>(begin - here.begin), static_cast<size_t>(count));
  }

 private:
  struct Held {
    int64_t begin = 0, end = 0;
  };
  void fetch(int buffer, int64_t begin, int64_t end) {
    end = std::min(end, begin + size_of(carrier_));
    carrier_.wait(buffer);
    carrier_.fetch(buffer, begin, end - begin);
    held_[static_cast<size_t>(buffer)] = {begin, end};
  }

  StagedMemory& memory_;
  Carrier& carrier_;
  const int64_t end_;
  uint64_t turn_ = 0;
  std::array<Held, Carrier::kBuffers> held_;
};

StagedMemory::StagedMemory(Carrier& carrier) : carrier_(carrier) {
  PLEAT_CHECK(size_of(carrier) > 0 && size_of(carrier) % kUnit == 0, "staging of {} bytes", size_of(carrier));
}

uint64_t StagedMemory::take() {
  PLEAT_CHECK(!filling_, "memory that is being written is asked for something else");
  return ++turn_;
}

std::unique_ptr<Memory::Cursor> StagedMemory::cursor(int64_t, int64_t end) {
  return std::make_unique<Window>(*this, end);
}

void StagedMemory::write(int64_t begin, int64_t end, const Fill& fill) {
  take();
  const auto filled = [&](int64_t at, std::span<std::byte> room) {
    filling_ = true;
    try {
      fill(at, room);
    } catch (...) {
      filling_ = false;
      throw;
    }
    filling_ = false;
  };
  int buffer = 0;
  for (int64_t at = begin; at < end; buffer = 1 - buffer) {
    const int64_t count = std::min(end - at, size_of(carrier_));
    carrier_.wait(buffer);
    filled(at, carrier_.buffer(buffer).first(static_cast<size_t>(count)));
    carrier_.send(buffer, at, count);
    at += count;
  }
  for (int b = 0; b < Carrier::kBuffers; ++b) carrier_.wait(b);
}

void StagedMemory::zero(int64_t begin, int64_t end) {
  take();
  for (int b = 0; b < Carrier::kBuffers; ++b) carrier_.wait(b);
  carrier_.zero(begin, end - begin);
}

}  // namespace pleat::checkpoint
