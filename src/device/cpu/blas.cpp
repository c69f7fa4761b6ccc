#include "device/cpu/blas.h"

#include <cblas.h>
#include <dlfcn.h>

#include <cstdlib>

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
  std::string description;

  Library() {
    if (const char* core = core_type()) setenv("OPENBLAS_CORETYPE", core, 0);
    void* handle = nullptr;
    for (const char* name : {"libopenblas.so.0", "libopenblas.so", PLEAT_OPENBLAS_PATH})
      if ((handle = dlopen(name, RTLD_NOW | RTLD_LOCAL))) break;
    if (!handle)
      base::fail(
          "OpenBLAS is needed for matrix products and was not found ({}); on Debian: apt-get install "
          "libopenblas-dev",
          dlerror());
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

}  // namespace pleat::device
