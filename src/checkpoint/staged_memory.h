// Memory that the host reaches through two buffers of staging: what goes on in one of them runs beside the copy of the
// other.
#pragma once

#include "checkpoint/bytes.h"

namespace pleat::checkpoint {

// Carries bytes between the memory and the buffers. What is begun in a buffer may run on until it is waited for.
class Carrier {
 public:
  virtual ~Carrier() = default;
  static constexpr int kBuffers = 2;
  // All have one size, a multiple of Memory::kUnit.
  virtual std::span<std::byte> buffer(int index) = 0;
  // Between bytes [begin, begin + count) of the memory and the first ones of the buffer.
  virtual void fetch(int buffer, int64_t begin, int64_t count) = 0;
  virtual void send(int buffer, int64_t begin, int64_t count) = 0;
  virtual void wait(int buffer) = 0;
  virtual void zero(int64_t begin, int64_t count) = 0;  // at once
};

class StagedMemory final : public Memory {
 public:
  explicit StagedMemory(Carrier& carrier);  // which outlives this
  std::unique_ptr<Cursor> cursor(int64_t begin, int64_t end) override;
  void write(int64_t begin, int64_t end, const Fill& fill) override;
  void zero(int64_t begin, int64_t end) override;

 private:
  class Window;
  // The buffers are another one's from here on.
  uint64_t take();

  Carrier& carrier_;
  uint64_t turn_ = 1;  // whose they are; at first nobody's
  bool filling_ = false;
};

}  // namespace pleat::checkpoint
