// What the router's GPU kernels keep between two launches, or for the last block of one.
#pragma once

#include <algorithm>

#include "kernels/cuda/scratch.h"
#include "kernels/router/aux_settings.h"

namespace pleat::kernels {

// ---- The gate's weight gradient: sums over runs of tokens, f32 [runs, E, h]; then, over them, those of the bias,
// f64 [kBiasRuns, E].

struct GateShape {
  int64_t tokens, width, experts;
  int64_t run_bytes() const { return 4 * experts * width; }
};
constexpr int kBiasRuns = 64;

// On tensor cores, at most: the sums of all runs are read again, and their room is that of a matrix product, or
// of one run.
constexpr int64_t kGateTokens = 64;  // a run is of as many, or a multiple
inline int64_t most_gate_runs(const GateShape& shape) {
  const int64_t fit = kMatmulWorkspace / std::max<int64_t>(1, shape.run_bytes());
  return std::max<int64_t>(1, std::min({int64_t{32}, base::ceil_div(shape.tokens, kGateTokens), fit}));
}
// By plain multiply-adds: about two blocks per multiprocessor, runs of at least 256 tokens.
constexpr int kGateTile = 64;
inline int64_t plain_gate_runs(const GateShape& shape) {
  const int64_t tiles = base::ceil_div(shape.width, kGateTile) * base::ceil_div(shape.experts, kGateTile);
  return std::max<int64_t>(1, std::min({int64_t{16}, base::ceil_div(264, std::max<int64_t>(1, tiles)),
                                        base::ceil_div(shape.tokens, 256)}));
}
inline int64_t gate_weight_bytes(const GateShape& shape, int64_t runs) {
  return std::max(runs * shape.run_bytes(), kBiasRuns * shape.experts * 8);
}

// ---- The choice: a partial result per block; before it the column factors of Sinkhorn [E], f32, behind the sums
// of every warp of its grid [E, warps], f64.

constexpr int64_t kMaxChoiceBlocks = 528;  // four per multiprocessor
constexpr int64_t kChoicePartialBytes = 16;
constexpr int64_t kSinkhornBlocks = 128, kSinkhornWarps = 8;  // all resident at once
inline int64_t sinkhorn_bytes(int64_t experts) {
  return experts * (kSinkhornBlocks * kSinkhornWarps * 8 + 4);
}

// ---- Losses: partial sums of every block, f64; behind them, with a loss per document, counts of its tokens [T]
// and experts [T, E], i32.

constexpr int64_t kMaxAuxBlocks = 264;                    // mostly all there at once
constexpr int64_t kNumAuxPartials = aux::kNumLosses + 1;  // and the tokens: a double holds their number
inline int64_t aux_document_bytes(int64_t tokens, int64_t experts) { return 4 * (tokens + tokens * experts); }

}  // namespace pleat::kernels
