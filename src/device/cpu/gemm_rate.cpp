#include "device/cpu/gemm_rate.h"

#include <cblas.h>

#include <algorithm>
#include <chrono>
#include <vector>

namespace pleat::device {
namespace {

template <class T>
double measure(Pool& pool) {
  constexpr int n = 512;
  const size_t threads = static_cast<size_t>(pool.num_threads());
  std::vector<T> a(n * n * threads, T(1) / n), b(n * n * threads, T(1) / n), c(n * n * threads);
  double best = 0;
  for (int run = 0; run < 6; ++run) {
    constexpr int kRepeats = 4;
    const auto start = std::chrono::steady_clock::now();
    pool.for_each_tile(static_cast<int64_t>(threads), [&](int64_t t) {
      const size_t at = static_cast<size_t>(t) * n * n;
      for (int i = 0; i < kRepeats; ++i) {
        if constexpr (sizeof(T) == 4)
          cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, n, n, n, 1, &a[at], n, &b[at], n, 0, &c[at], n);
        else
          cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, n, n, n, 1, &a[at], n, &b[at], n, 0, &c[at], n);
      }
    });
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    best = std::max(best, 2.0 * n * n * n * kRepeats * static_cast<double>(threads) / seconds);
  }
  return best;
}

}  // namespace

double measure_gemm_rate(Pool& pool, tensor::Dtype dtype) {
  return dtype == tensor::Dtype::F64 ? measure<double>(pool) : measure<float>(pool);
}

}  // namespace pleat::device
