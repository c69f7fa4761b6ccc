// Bytes of a tensor wherever they lie: in memory the host reaches, on a device, on other ranks. They are read and
// written a stretch at a time, so that nobody needs room for all of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace pleat::checkpoint {

// What the host reaches in stretches only. One call at a time.
class Memory {
 public:
  virtual ~Memory() = default;

  // Goes over bytes that do not change meanwhile: whoever looks at them later takes another one.
  class Cursor {
   public:
    virtual ~Cursor() = default;
    // [begin, end) from `begin` on: at least one byte, as many as are at hand, there until the memory is asked for
    // anything else. Who asks goes on behind them, as a rule, up to `end`: these bytes are fetched meanwhile.
    virtual std::span<const std::byte> at(int64_t begin, int64_t end) = 0;
  };
  // For places in [begin, end). The memory outlives it.
  virtual std::unique_ptr<Cursor> cursor(int64_t begin, int64_t end) = 0;

  // Has `fill` write [begin, end), one stretch after the other; each begins at a multiple of kUnit behind `begin`, so that
  // no number is cut, nor a block of codes. All are in place when this returns. `fill` does not use this memory.
  using Fill = std::function<void(int64_t begin, std::span<std::byte> room)>;
  static constexpr int64_t kUnit = 256;
  virtual void write(int64_t begin, int64_t end, const Fill& fill) = 0;
  virtual void zero(int64_t begin, int64_t end) = 0;
};

// To be read. The memory outlives it.
class ConstBytes {
 public:
  ConstBytes() = default;
  ConstBytes(std::span<const std::byte> host) : host_(host), size_(static_cast<int64_t>(host.size())) {}
  ConstBytes(std::span<std::byte> host) : ConstBytes(std::span<const std::byte>(host)) {}
  ConstBytes(const std::vector<std::byte>& host) : ConstBytes(std::span<const std::byte>(host)) {}
  ConstBytes(Memory& memory, int64_t begin, int64_t size) : memory_(&memory), begin_(begin), size_(size) {}

  int64_t size() const { return size_; }
  bool on_host() const { return !memory_; }  // so that the host reaches all of them
  // All of them at once, of those that the host reaches.
  std::span<const std::byte> host() const;

  class Reader {
   public:
    // As Memory::Cursor::at; places count from the first of these bytes.
    std::span<const std::byte> at(int64_t begin, int64_t end);

   private:
    friend class ConstBytes;
    std::span<const std::byte> host_;
    int64_t begin_ = 0;
    std::unique_ptr<Memory::Cursor> cursor_;
  };
  Reader reader() const { return reader(0, size_); }
  Reader reader(int64_t begin, int64_t end) const;
  // Copies what is there from `begin` on.
  void read(int64_t begin, std::span<std::byte> out) const;
  std::vector<std::byte> copy() const;  // all

 protected:
  std::span<const std::byte> host_;
  Memory* memory_ = nullptr;  // where there is none: host_
  int64_t begin_ = 0, size_ = 0;
};

// To be written too.
class Bytes : public ConstBytes {
 public:
  Bytes() = default;
  Bytes(std::span<std::byte> host) : ConstBytes(host), room_(host) {}
  Bytes(std::vector<std::byte>& host) : Bytes(std::span<std::byte>(host)) {}
  Bytes(Memory& memory, int64_t begin, int64_t size) : ConstBytes(memory, begin, size) {}

  std::span<std::byte> host() const;
  // As Memory::write; what the host reaches is one stretch.
  void write(int64_t begin, int64_t end, const Memory::Fill& fill) const;
  void write(int64_t begin, std::span<const std::byte> from) const;
  void zero() const;

 private:
  std::span<std::byte> room_;
};

}  // namespace pleat::checkpoint
