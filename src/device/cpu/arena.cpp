#include "device/cpu/arena.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace pleat::device {
namespace {

// No byte a float or an integer of a training step is likely to repeat at the same place.
std::byte pattern_at(int64_t i) {
  return static_cast<std::byte>((static_cast<uint64_t>(i) * 0x9E3779B97F4A7C15ull) >> 56);
}

}  // namespace

Arena::Arena(int64_t bytes) : size_(bytes) {
  if (bytes <= 0) return;
  void* p =
      mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED)
    base::fail_with(base::ExitCode::BadInput, "the run needs an arena of {} bytes, the system refused: {}",
                    bytes, std::strerror(errno));
  madvise(p, static_cast<size_t>(bytes), MADV_HUGEPAGE);  // a hint; its refusal changes nothing but speed
  data_ = static_cast<std::byte*>(p);
}

Arena::~Arena() {
  if (data_) munmap(data_, static_cast<size_t>(size_));
}

void Arena::fill_pattern(int64_t from) {
  for (int64_t i = from; i < size_; ++i) data_[i] = pattern_at(i);
}

int64_t Arena::end_of_changes(int64_t from) const {
  int64_t end = size_;
  while (end > from && data_[end - 1] == pattern_at(end - 1)) --end;
  return end;
}

}  // namespace pleat::device
