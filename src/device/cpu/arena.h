// The one block of memory a run's values live in. Mapped once, zero-filled, released at the end.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pleat::device {

class Arena {
 public:
  explicit Arena(int64_t bytes);  // throws base::Error when the machine refuses
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  std::byte* data() const { return data_; }
  int64_t size() const { return size_; }

  // Finding out what a run really touches, knowing nothing of its plan: fill [from, size) with a pattern that
  // depends on the address, run, then ask for the end of the last changed byte (from when nothing changed).
  void fill_pattern(int64_t from = 0);
  int64_t end_of_changes(int64_t from = 0) const;

 private:
  std::byte* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace pleat::device
