#include "kernels/linear/gemm.h"

#include <algorithm>

#include "base/checked.h"

namespace pleat::kernels {
namespace {

// BLAS packs both operands in every call, so tiles must be large: below ~256 rows packing shows. Four tiles
// keep 1, 2 and 4 threads busy; rows past 4 * kMaxTileRows bring more tiles, for more threads.
constexpr int64_t kMaxTileRows = 512, kMaxTileColumns = 4096, kLeastTiles = 4, kMinTileSide = 64;
// Some microseconds of work: less is not worth waking a thread.
constexpr int64_t kMinTileProducts = 1 << 19;

// ceil(count / parts) rounded up to whole registers of the BLAS kernels, at least kMinTileSide.
int64_t side(int64_t count, int64_t parts) {
  return std::min(count, std::max(kMinTileSide, base::round_up(base::ceil_div(count, parts), 16)));
}

}  // namespace

GemmTiling::Tile GemmTiling::tile(int64_t tile_idx) const {
  const int64_t row = tile_idx / tiles_n * tile_m, column = tile_idx % tiles_n * tile_n;
  return {row, std::min(tile_m, m - row), column, std::min(tile_n, n - column)};
}

GemmTiling gemm_tiling(int64_t m, int64_t n, int64_t k) {
  if (m <= 0 || n <= 0) return {m, n, 1, 1, 0, 0};
  const int64_t worth =
      std::max<int64_t>(1, m * n / kMinTileProducts * std::max<int64_t>(k, 1) +
                               m * n % kMinTileProducts * std::max<int64_t>(k, 1) / kMinTileProducts);
  const int64_t least = std::min(kLeastTiles, worth);
  const int64_t least_m = base::ceil_div(m, kMaxTileRows), least_n = base::ceil_div(n, kMaxTileColumns);
  // Packing per product grows with 1/tile_m + 1/tile_n: of the ways to make enough tiles, the squarest is the
  // fastest.
  GemmTiling best;
  double best_cost = 0;
  for (int64_t parts_m = least; parts_m >= 1; parts_m /= 2) {
    GemmTiling candidate{m, n, side(m, std::max(parts_m, least_m)), 0, 0, 0};
    candidate.tiles_m = base::ceil_div(m, candidate.tile_m);
    candidate.tile_n = side(n, std::max(least_n, base::ceil_div(least, candidate.tiles_m)));
    candidate.tiles_n = base::ceil_div(n, candidate.tile_n);
    const double cost =
        1.0 / static_cast<double>(candidate.tile_m) + 1.0 / static_cast<double>(candidate.tile_n);
    if (best.tile_m == 0 || cost < best_cost) {
      best = candidate;
      best_cost = cost;
    }
  }
  return best;
}

template <class T>
void parallel_gemm(device::Pool& pool, Transpose trans_a, Transpose trans_b, int64_t m, int64_t n, int64_t k,
                   T alpha, const T* a, int64_t lda, const T* b, int64_t ldb, T beta, T* c, int64_t ldc) {
  const GemmTiling tiling = gemm_tiling(m, n, k);
  pool.for_each_tile(tiling.num_tiles(), [&](int64_t tile_idx) {
    const GemmTiling::Tile t = tiling.tile(tile_idx);
    const T* tile_a = trans_a == Transpose::Yes ? a + t.row : a + t.row * lda;
    const T* tile_b = trans_b == Transpose::Yes ? b + t.column * ldb : b + t.column;
    gemm(trans_a, trans_b, t.num_rows, t.num_columns, k, alpha, tile_a, lda, tile_b, ldb, beta,
         c + t.row * ldc + t.column, ldc);
  });
}

template void parallel_gemm<float>(device::Pool&, Transpose, Transpose, int64_t, int64_t, int64_t, float,
                                   const float*, int64_t, const float*, int64_t, float, float*, int64_t);
template void parallel_gemm<double>(device::Pool&, Transpose, Transpose, int64_t, int64_t, int64_t, double,
                                    const double*, int64_t, const double*, int64_t, double, double*, int64_t);

}  // namespace pleat::kernels
