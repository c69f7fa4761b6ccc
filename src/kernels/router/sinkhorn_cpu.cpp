#include "kernels/router/sinkhorn.h"

#include <algorithm>
#include <cmath>

#include "kernels/math/exp.h"
#include "kernels/router/router.h"
#include "kernels/router/token_tiles.h"

namespace pleat::kernels {
namespace {

constexpr double kFloor = 1e-8, kTolerance = 1e-4;
constexpr int64_t kPartialSums = 32768;  // doubles on the stack: tiles x experts

template <class R>
R row_factor(const R* row, const R* d1, int64_t num_experts, int64_t num_valid) {
  double sum = 0;
  for (int64_t e = 0; e < num_experts; ++e) sum += static_cast<double>(d1[e] * row[e]);
  return static_cast<R>(1.0 / (static_cast<double>(num_valid) * (sum + kFloor)));
}

}  // namespace

template <class R>
int sinkhorn_keys(device::Pool& pool, const R* logits, const uint8_t* valid, int64_t num_tokens,
                  int64_t num_experts, R* keys) {
  const int64_t E = num_experts;
  const TokenTiles tiles(num_tokens, std::min(kMaxTiles, kPartialSums / E));
  const int64_t num_valid =
      std::max<int64_t>(1, num_tokens - std::count(valid, valid + num_tokens, uint8_t{0}));
  double partial[kPartialSums];
  R d1[kMaxExperts], previous[kMaxExperts];
  std::fill_n(d1, E, R(1));

  pool.for_each_tile(tiles.num_tiles, [&](int64_t tile) {
    for (int64_t i = tiles.begin(tile) * E; i < tiles.end(tile) * E; ++i) keys[i] = fast_exp(logits[i]);
  });
  int round = 0;
  double change = 1e9;
  // A NaN change ends the loop: the choice then treats the NaN keys as the smallest.
  for (; round < kMaxSinkhornRounds && change > kTolerance; ++round) {
    std::copy_n(d1, E, previous);
    pool.for_each_tile(tiles.num_tiles, [&](int64_t tile) {
      double* sums = partial + tile * E;
      std::fill_n(sums, E, 0.0);
      for (int64_t t = tiles.begin(tile); t < tiles.end(tile); ++t) {
        if (!valid[t]) continue;
        const R* row = keys + t * E;
        const R d0 = row_factor(row, previous, E, num_valid);
        for (int64_t e = 0; e < E; ++e) sums[e] += static_cast<double>(d0 * row[e]);
      }
    });
    change = 0;
    for (int64_t e = 0; e < E; ++e) {
      double sum = 0;
      for (int64_t tile = 0; tile < tiles.num_tiles; ++tile) sum += partial[tile * E + e];
      d1[e] = static_cast<R>(1.0 / (static_cast<double>(E) * (sum + kFloor)));
      change += std::abs(static_cast<double>(d1[e] - previous[e]));
    }
    change /= static_cast<double>(E);
  }
  // The row factors of the last round belong to the column factors before it.
  pool.for_each_tile(tiles.num_tiles, [&](int64_t tile) {
    for (int64_t t = tiles.begin(tile); t < tiles.end(tile); ++t) {
      R* row = keys + t * E;
      const R d0 = row_factor(row, previous, E, num_valid);
      for (int64_t e = 0; e < E; ++e) row[e] = d1[e] * row[e] * d0;
    }
  });
  return round;
}

template int sinkhorn_keys<float>(device::Pool&, const float*, const uint8_t*, int64_t, int64_t, float*);
template int sinkhorn_keys<double>(device::Pool&, const double*, const uint8_t*, int64_t, int64_t, double*);

}  // namespace pleat::kernels
