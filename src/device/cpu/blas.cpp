#include "device/cpu/blas.h"

#include <cblas.h>
#include <dlfcn.h>
#include <sys/mman.h>

#include <cstdlib>
#include <mutex>
#include <set>
#include <vector>

#include "base/error.h"

namespace pleat::device {
namespace {

const char* core_type() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
    return "SkylakeX";
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    return __builtin_cpu_is("amd") ? "Zen" : "Haswell";
#endif
  return nullptr;  // the library's own choice
}

struct Library {
  decltype(&cblas_sgemm) sgemm = nullptr;
  decltype(&cblas_dgemm) dgemm = nullptr;
  // Its own functions for the buffer of a product; the oldest and the newest releases have them.
  void* (*take_buffer)(int) = nullptr;
  void (*give_buffer)(void*) = nullptr;
  std::string description;

  Library() {
    if (const char* core = core_type()) setenv("OPENBLAS_CORETYPE", core, 0);
    setenv("OPENBLAS_NUM_THREADS", "1", 1);  // else it starts threads of its own while it is loaded
    void* handle = nullptr;
    for (const char* name : {"libopenblas.so.0", "libopenblas.so", PLEAT_OPENBLAS_PATH})
      if ((handle = dlopen(name, RTLD_NOW | RTLD_LOCAL))) break;
    if (!handle) {
      const std::string why = dlerror();
      // The loader has no code for this, only words.
      if (why.find("failed to map") != std::string::npos || why.find("annot allocate") != std::string::npos)
        base::fail_with(base::ExitCode::Internal, "out of memory: OpenBLAS cannot be loaded: {}", why);
      base::fail(
          "OpenBLAS is needed for matrix products and was not found ({}); on Debian: apt-get install "
          "libopenblas-dev",
          why);
    }
    const auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, name));
      if (!function) base::fail("the OpenBLAS that was found lacks {}", name);
    };
    find(sgemm, "cblas_sgemm");
    find(dgemm, "cblas_dgemm");
    decltype(&openblas_set_num_threads) set_num_threads;
    decltype(&openblas_get_config) config;
    decltype(&openblas_get_corename) core;
    find(set_num_threads, "openblas_set_num_threads");
    find(config, "openblas_get_config");
    find(core, "openblas_get_corename");
    find(take_buffer, "blas_memory_alloc");
    find(give_buffer, "blas_memory_free");
    // Inside a tile a product runs on one thread: the library's own split would make bits depend on thread
    // counts.
    set_num_threads(1);
    description = fmt::format("{}, kernels for {}", config(), core());
  }
};

const Library& library() {
  static const Library loaded;
  return loaded;
}

// What one buffer takes, and a little more.
constexpr size_t kBufferBytes = (size_t{128} << 20) + (size_t{1} << 16);

// Whether the system would give a buffer right now.
bool has_room() {
  void* p = ::mmap(nullptr, kBufferBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return false;
  ::munmap(p, kBufferBytes);
  return true;
}

struct Buffers {
  std::mutex mutex;
  int num_threads = 0;    // that have room
  std::set<void*> known;  // buffers the library has; it keeps them for good
};

Buffers& buffers() {
  static Buffers all;
  return all;
}

CBLAS_TRANSPOSE cblas(Transpose t) { return t == Transpose::Yes ? CblasTrans : CblasNoTrans; }

}  // namespace

void blas_gemm(Transpose ta, Transpose tb, int m, int n, int k, float alpha, const float* a, int lda,
               const float* b, int ldb, float beta, float* c, int ldc) {
  library().sgemm(CblasRowMajor, cblas(ta), cblas(tb), m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

void blas_gemm(Transpose ta, Transpose tb, int m, int n, int k, double alpha, const double* a, int lda,
               const double* b, int ldb, double beta, double* c, int ldc) {
  library().dgemm(CblasRowMajor, cblas(ta), cblas(tb), m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

std::string blas_description() { return library().description; }

BlasRoom::BlasRoom(int num_threads) : num_threads_(num_threads) {
  const Library& blas = library();
  Buffers& all = buffers();
  const std::lock_guard lock(all.mutex);
  const size_t needed = static_cast<size_t>(all.num_threads) + static_cast<size_t>(num_threads);
  std::vector<void*> taken;  // all at the same time: the same one would come again otherwise
  while (all.known.size() < needed && has_room()) {
    taken.push_back(blas.take_buffer(0));
    all.known.insert(taken.back());
  }
  for (void* buffer : taken) blas.give_buffer(buffer);
  if (all.known.size() < needed)
    base::fail_with(base::ExitCode::Internal,
                    "out of memory: matrix products on {} threads need {} MiB of address space each, and the "
                    "system gives {} of them; raise the limit (ulimit -v) or lower device.threads",
                    needed, kBufferBytes >> 20, all.known.size());
  all.num_threads += num_threads;
}

BlasRoom::~BlasRoom() {
  const std::lock_guard lock(buffers().mutex);
  buffers().num_threads -= num_threads_;
}

}  // namespace pleat::device
