#include "base/alloc_watch.h"

#include <dlfcn.h>
#include <execinfo.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>

#ifdef PLEAT_SANITIZED  // the sanitizer brings its own
#define PLEAT_OWN_MALLOC 0
#else
#define PLEAT_OWN_MALLOC 1
#endif

namespace pleat::base {
namespace {

constexpr size_t kLarge = 4096;
std::atomic<bool> watching{false};
std::atomic<int64_t> num_large{0}, largest{0}, num_driver{0};

// Names of libraries, without memory of their own.
constexpr size_t kMostNames = 8, kNameBytes = 48;
char names[kMostNames][kNameBytes];
std::atomic<size_t> num_names{0};
std::atomic_flag naming = ATOMIC_FLAG_INIT;

void count(size_t bytes) {
  num_large.fetch_add(1, std::memory_order_relaxed);
  int64_t seen = largest.load(std::memory_order_relaxed);
  while (seen < static_cast<int64_t>(bytes) &&
         !largest.compare_exchange_weak(seen, static_cast<int64_t>(bytes))) {
  }
}

[[maybe_unused]] void count_driver(const char* library) {
  num_driver.fetch_add(1, std::memory_order_relaxed);
  while (naming.test_and_set(std::memory_order_acquire)) {
  }
  const size_t known = num_names.load(std::memory_order_relaxed);
  bool fresh = known < kMostNames;
  for (size_t n = 0; n < known; ++n) fresh = fresh && std::strncmp(names[n], library, kNameBytes - 1) != 0;
  if (fresh) {
    std::strncpy(names[known], library, kNameBytes - 1);
    num_names.store(known + 1, std::memory_order_relaxed);
  }
  naming.clear(std::memory_order_release);
}

// The file a function's code is in, without its folder.
[[maybe_unused]] const char* file_of(const void* code) {
  Dl_info info{};
  if (dladdr(code, &info) == 0 || !info.dli_fname) return "";
  const char* slash = std::strrchr(info.dli_fname, '/');
  return slash ? slash + 1 : info.dli_fname;
}

[[maybe_unused]] bool is_driver(const char* file) {
  for (const char* prefix : {"libcuda", "libcublas", "libcudnn", "libnv", "libnccl"})
    if (std::strncmp(file, prefix, std::strlen(prefix)) == 0) return true;
  return false;
}

// Whoever asked the C and C++ libraries for memory: the first caller outside of them.
[[maybe_unused, gnu::noinline]] void note(size_t bytes) {
  if (bytes < kLarge || !watching.load(std::memory_order_relaxed)) return;
  thread_local bool inside = false;  // looking at the stack might allocate
  if (inside) return;
  inside = true;
  constexpr int kFrames = 16;
  void* frames[kFrames];
  const int depth = backtrace(frames, kFrames);
  const char* library = nullptr;
  for (int f = 2; f < depth && !library; ++f) {  // behind this function and malloc
    const char* file = file_of(frames[f]);
    if (std::strncmp(file, "libc.", 5) != 0 && std::strncmp(file, "libstdc++", 9) != 0) library = file;
  }
  if (library && is_driver(library))
    count_driver(library);
  else
    count(bytes);
  inside = false;
}

}  // namespace

AllocationCount& AllocationCount::operator+=(const AllocationCount& more) {
  available = more.available;
  large += more.large;
  largest = std::max(largest, more.largest);
  driver += more.driver;
  for (size_t at = 0; at < more.drivers.size();) {
    const size_t end = std::min(more.drivers.find(", ", at), more.drivers.size());
    const std::string name = more.drivers.substr(at, end - at);
    if ((", " + drivers + ", ").find(", " + name + ", ") == std::string::npos)
      drivers += (drivers.empty() ? "" : ", ") + name;
    at = end + 2;
  }
  return *this;
}

void start_allocation_watch() {
  void* frame;
  backtrace(&frame, 1);  // loads what it needs the first time
  num_large = 0;
  largest = 0;
  num_driver = 0;
  num_names = 0;
  watching = true;
}

AllocationCount stop_allocation_watch() {
  watching = false;
  AllocationCount out{PLEAT_OWN_MALLOC == 1, num_large, largest, num_driver, ""};
  for (size_t n = 0; n < num_names; ++n) out.drivers += (n ? ", " : "") + std::string(names[n]);
  return out;
}

void note_allocation(int64_t bytes) {
  if (bytes >= static_cast<int64_t>(kLarge) && watching.load(std::memory_order_relaxed))
    count(static_cast<size_t>(bytes));
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
