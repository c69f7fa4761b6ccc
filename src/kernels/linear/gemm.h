// Matrix products on the CPU: CBLAS with the element type as a template argument, and a tiled parallel
// product.
//
// A small product of a few columns is computed here: BLAS would allocate, and a step must not.
//
// BLAS is bitwise stable only for the same call (rows, columns, leading dimensions and alignment of the call
// alike), so products are split into tiles that follow from the shape alone; a tile is one single-threaded
// BLAS call. All matrices are row-major.
#pragma once

#include <cstdint>
#include <type_traits>

#include "device/cpu/blas.h"
#include "device/cpu/pool.h"
#include "kernels/invocation.h"

namespace pleat::kernels {

using device::Transpose;

// OpenBLAS computes products of up to this many multiplications by kernels of their own, which take memory from
// the heap for columns that fill no vector, where neither matrix is transposed.
constexpr double kSmallProduct = 100.0 * 100.0 * 100.0;
template <class T>
constexpr int64_t kVectorColumns = 64 / sizeof(T);

// The product of fewer columns than a vector has.
template <class T>
inline void few_columns(int64_t m, int64_t n, int64_t k, T alpha, const T* a, int64_t lda, const T* b,
                        int64_t ldb, T beta, T* c, int64_t ldc) {
  for (int64_t i = 0; i < m; ++i) {
    T sums[kVectorColumns<T>] = {};
    for (int64_t p = 0; p < k; ++p)
      for (int64_t j = 0; j < n; ++j) sums[j] += a[i * lda + p] * b[p * ldb + j];
    T* const row = c + i * ldc;
    for (int64_t j = 0; j < n; ++j) row[j] = alpha * sums[j] + (beta == T(0) ? T(0) : beta * row[j]);
  }
}

// C = alpha op(A) op(B) + beta C with op(A) [m,k], op(B) [k,n], C [m,n]; ld* is the distance between stored
// rows. beta 0 overwrites (C may hold NaN). At most one BLAS call on the calling thread. k == 0 leaves beta C; m == 0 or
// n == 0 does nothing.
template <class T>
inline void gemm(Transpose trans_a, Transpose trans_b, int64_t m, int64_t n, int64_t k, T alpha, const T* a,
                 int64_t lda, const T* b, int64_t ldb, T beta, T* c, int64_t ldc) {
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, double>);
  if (m <= 0 || n <= 0) return;
  if (k <= 0) {
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) c[i * ldc + j] = beta == T(0) ? T(0) : beta * c[i * ldc + j];
    return;
  }
  if (trans_a == Transpose::No && trans_b == Transpose::No &&
      static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) <= kSmallProduct) {
    const int64_t last = n % kVectorColumns<T>, first = n - last;
    if (last > 0) few_columns(m, last, k, alpha, a, lda, b + first, ldb, beta, c + first, ldc);
    if (first == 0) return;
    n = first;
  }
  const auto i32 = [](int64_t x) { return static_cast<int>(x); };
  device::blas_gemm(trans_a, trans_b, i32(m), i32(n), i32(k), alpha, a, i32(lda), b, i32(ldb), beta, c,
                    i32(ldc));
}

// How one output [m,n] is cut into tiles: a function of the shape alone. Tiles are numbered row by row.
struct GemmTiling {
  int64_t m = 0, n = 0;
  int64_t tile_m = 0, tile_n = 0;
  int64_t tiles_m = 0, tiles_n = 0;

  int64_t num_tiles() const { return tiles_m * tiles_n; }
  struct Tile {
    int64_t row, num_rows, column, num_columns;
  };
  Tile tile(int64_t tile_idx) const;
};
GemmTiling gemm_tiling(int64_t m, int64_t n, int64_t k);

// The same product as gemm(), one BLAS call per tile of gemm_tiling(m, n, k), spread over the pool. The
// reduction over k is never split. Bits do not depend on the number of threads.
template <class T>
void parallel_gemm(device::Pool& pool, Transpose trans_a, Transpose trans_b, int64_t m, int64_t n, int64_t k,
                   T alpha, const T* a, int64_t lda, const T* b, int64_t ldb, T beta, T* c, int64_t ldc);

}  // namespace pleat::kernels
