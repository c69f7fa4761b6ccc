#include "device/cpu/gemm_rate.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "device/cpu/blas.h"

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
      for (int i = 0; i < kRepeats; ++i)
        blas_gemm(Transpose::No, Transpose::Yes, n, n, n, T(1), &a[at], n, &b[at], n, T(0), &c[at], n);
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
