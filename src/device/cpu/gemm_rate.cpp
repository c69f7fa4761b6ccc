#include "device/cpu/gemm_rate.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "device/cpu/blas.h"

namespace pleat::device {
namespace {

// Products of one thread in a run, and runs. Ranks may be many on few cores: they take fewer.
struct Amount {
  int products, runs;
};
constexpr Amount kAlone{4, 6}, kTogether{1, 3};

template <class T>
std::vector<double> measure(Pool& pool, const Amount& amount, const std::function<void()>& meet) {
  constexpr int n = 512;
  const size_t threads = static_cast<size_t>(pool.num_threads());
  std::vector<T> a(n * n * threads, T(1) / n), b(n * n * threads, T(1) / n), c(n * n * threads);
  std::vector<double> rates;
  for (int run = 0; run < amount.runs; ++run) {
    if (meet) meet();
    const auto start = std::chrono::steady_clock::now();
    pool.for_each_tile(static_cast<int64_t>(threads), [&](int64_t t) {
      const size_t at = static_cast<size_t>(t) * n * n;
      for (int i = 0; i < amount.products; ++i)
        blas_gemm(Transpose::No, Transpose::Yes, n, n, n, T(1), &a[at], n, &b[at], n, T(0), &c[at], n);
    });
    if (meet) meet();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    rates.push_back(2.0 * n * n * n * amount.products * static_cast<double>(threads) / seconds);
  }
  return rates;
}

std::vector<double> measure(Pool& pool, tensor::Dtype dtype, const Amount& amount,
                            const std::function<void()>& meet) {
  return dtype == tensor::Dtype::F64 ? measure<double>(pool, amount, meet)
                                     : measure<float>(pool, amount, meet);
}

}  // namespace

double measure_gemm_rate(Pool& pool, tensor::Dtype dtype) {
  const std::vector<double> rates = measure(pool, dtype, kAlone, {});
  return *std::max_element(rates.begin(), rates.end());
}

std::vector<double> measure_gemm_rates(Pool& pool, tensor::Dtype dtype, const std::function<void()>& meet) {
  return measure(pool, dtype, kTogether, meet);
}

}  // namespace pleat::device
