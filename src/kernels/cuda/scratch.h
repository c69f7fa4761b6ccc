// Sizes of scratch (kernels/contract.h) that several folders share, known without a GPU.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/checked.h"
#include "kernels/contract.h"

namespace pleat::kernels {

// What cuBLASLt may use, whatever the product: algorithms that ask for more are not taken.
constexpr int64_t kMatmulWorkspace = 64 << 20;

// Parts of scratch begin at multiples of this.
constexpr int64_t kScratchAlignment = 256;
inline int64_t scratch_part(int64_t bytes) { return base::round_up(bytes, kScratchAlignment); }

// Sums over rows, one per column (kernels/cuda/column_sum.cuh): partial sums of blocks of rows, f32. How rows
// are cut follows from their number alone.
constexpr int kSumLanes = 8;         // rows a block looks at side by side
constexpr int64_t kSumBlocks = 128;  // row blocks at most
struct SumPlan {
  int64_t rows_per_block, row_blocks;
};
inline SumPlan sum_plan(int64_t rows) {
  const int64_t per_block =
      std::max<int64_t>(4 * kSumLanes, base::round_up(base::ceil_div(rows, kSumBlocks), kSumLanes));
  return {per_block, base::ceil_div(rows, per_block)};
}
inline int64_t column_sum_bytes(int64_t rows, int64_t width) { return sum_plan(rows).row_blocks * width * 4; }

// The same by teams of threads that hold a row each (kernels/cuda/team.cuh, with_team<2>): a sum per team, of as
// many teams as are on the device at once. A team has at least one warp, and a thread at most two vectors of
// 16 bytes of a row, four of the widest.
inline int64_t team_sum_bytes(int64_t rows, int64_t width, tensor::Dtype dtype, const Gpu& gpu) {
  const int64_t wide = 16 / tensor::size_of(dtype), vectors = base::ceil_div(width, wide),
                threads = gpu.num_sms * gpu.threads_per_sm;
  if (rows == 0 || vectors > 2048) return 0;                    // no team holds it
  const int64_t most_teams = std::min(rows + 3, threads / 32);  // whole blocks of up to four teams
  return 4 * std::min(most_teams * width, threads * (vectors > 1024 ? 4 : 2) * wide);
}

}  // namespace pleat::kernels
