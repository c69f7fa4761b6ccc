#include "device/cpu/arena.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace pleat::device {
namespace {

// No byte a float or an integer of a training step is likely to repeat at the same place.
std::byte pattern_at(int64_t i) {
  return static_cast<std::byte>((static_cast<uint64_t>(i) * 0x9E3779B97F4A7C15ull) >> 56);
}

[[noreturn]] void refuse(int64_t bytes, int error) {
  const auto gib = [](double n) { return n / double(int64_t{1} << 30); };
  const double ram = double(sysconf(_SC_PHYS_PAGES)) * double(sysconf(_SC_PAGESIZE));
  std::string limit;
  rlimit space{};
  if (getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur != RLIM_INFINITY)
    limit = fmt::format(", and this process may have {:.2f} GiB of address space (ulimit -v)",
                        gib(double(space.rlim_cur)));
  base::fail_with(base::ExitCode::Internal,
                  "out of memory: one arena of {:.2f} GiB ({} bytes) is needed for weights, optimizer and "
                  "activations, and the system refused it: {}. This machine has {:.2f} GiB of memory{}; "
                  "'pleat plan' shows what takes how much",
                  gib(double(bytes)), bytes, std::strerror(error), gib(ram), limit);
}

}  // namespace

Arena::Arena(int64_t bytes) : size_(bytes) {
  if (bytes <= 0) return;
  void* p =
      mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) refuse(bytes, errno);
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
