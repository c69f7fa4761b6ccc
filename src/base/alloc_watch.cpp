#include "base/alloc_watch.h"

#include <atomic>
#include <cerrno>
#include <cstddef>

#ifdef PLEAT_SANITIZED  // the sanitizer brings its own
#define PLEAT_OWN_MALLOC 0
#else
#define PLEAT_OWN_MALLOC 1
#endif

namespace pleat::base {
namespace {

constexpr size_t kLarge = 4096;
std::atomic<bool> watching{false};
std::atomic<int64_t> num_large{0}, largest{0};

[[maybe_unused]] void note(size_t bytes) {
  if (bytes < kLarge || !watching.load(std::memory_order_relaxed)) return;
  num_large.fetch_add(1, std::memory_order_relaxed);
  int64_t seen = largest.load(std::memory_order_relaxed);
  while (seen < static_cast<int64_t>(bytes) &&
         !largest.compare_exchange_weak(seen, static_cast<int64_t>(bytes))) {
  }
}

}  // namespace

void start_allocation_watch() {
  num_large = 0;
  largest = 0;
  watching = true;
}

AllocationCount stop_allocation_watch() {
  watching = false;
  return {PLEAT_OWN_MALLOC == 1, num_large, largest};
}

}  // namespace pleat::base

#if PLEAT_OWN_MALLOC
// glibc keeps its own entry points under these names so that programs may replace the public ones.
extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);

void* malloc(size_t bytes) {
  pleat::base::note(bytes);
  return __libc_malloc(bytes);
}
void* calloc(size_t count, size_t bytes) {
  size_t total;
  if (!__builtin_mul_overflow(count, bytes, &total)) pleat::base::note(total);
  return __libc_calloc(count, bytes);
}
void* realloc(void* old, size_t bytes) {
  pleat::base::note(bytes);
  return __libc_realloc(old, bytes);
}
void* memalign(size_t alignment, size_t bytes) {
  pleat::base::note(bytes);
  return __libc_memalign(alignment, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) {
  pleat::base::note(bytes);
  return __libc_memalign(alignment, bytes);
}
int posix_memalign(void** out, size_t alignment, size_t bytes) {
  if (alignment < sizeof(void*) || (alignment & (alignment - 1))) return EINVAL;
  pleat::base::note(bytes);
  void* p = __libc_memalign(alignment, bytes);
  if (!p) return ENOMEM;
  *out = p;
  return 0;
}
}
#endif
