// One side of attention's backward on the tensor cores of Hopper: dq of 128 query rows of a head, or dk and
// dv of 128 key rows, in one block of threads and without atomics.
//
// Both sides are one walk. The block holds two tiles of its own rows and streams two tiles of 64 rows of the
// other side past them:
//
//                 held x, held y   streamed x, streamed y     sums
//   queries       q, dout          k, v                       dq += ds k
//   keys          k, v             q, dout (of every head)    dk += ds^T q, dv += p^T dout
//
//   s = x x'^T, dp = y y'^T, p = exp(scale s - lse), ds = p (dp - dot)
//
// so scores are made with the block's own rows as rows, and what the next product needs of p and ds is just
// what each thread holds: neither goes through shared memory. Two warpgroups of 64 rows compute, one thread
// of the third drives the copy engine.
//
// Streamed rows come in ascending order, on the keys' side the heads of a row block one after the other: the
// order of every sum follows from the shapes and doc_start.
#pragma once

#include "kernels/attention/attention_own.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/types.cuh"
#include "kernels/cuda/wgmma_held.cuh"

namespace pleat::kernels::attention {

enum class Side { Queries, Keys };

constexpr int kHeldRows = 128, kGradientThreads = 384, kBoxBytes = 64 * 64 * 2;
constexpr int kNobody = 0x7fffffff;  // `low` of a row that is not there
constexpr float kLog2E = 1.4426950408889634f;

// What backward needs of queries beside their rows, in memory, padded to whole tiles of streamed rows.
struct QueryNumbers {
  int64_t rows = 0;        // with padding
  float2* sums = nullptr;  // [heads, rows]: log-sum-exp in base 2, row sum of dout * out
  int* low = nullptr;      // [rows]: the first row seen; kNobody behind the last query
};

// Of 64 streamed queries.
struct alignas(16) StreamedNumbers {
  float2 sums[kStreamRows];
  int low[kStreamRows];
};

template <int D, int DV>
struct GradientTiles {
  static constexpr int kBoxesX = D / 64, kBoxesY = DV / 64;  // of 64 rows by 64 columns
  static constexpr int kHeldBytes = 2 * (kBoxesX + kBoxesY) * kBoxBytes,
                       kStageBytes = (kBoxesX + kBoxesY) * kBoxBytes;
  static constexpr int kStages = D > 128 ? 3 : 4;
  static constexpr int kBytes =
      1024 + kHeldBytes + kStages * (kStageBytes + static_cast<int>(sizeof(StreamedNumbers))) + 256;
};

// Dimensions of each: columns of a head, rows, heads.
struct GradientMaps {
  CUtensorMap q, k, v, dout;
};

__device__ inline float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

constexpr int kNumbersThreads = 256;

// One warp for a row and a head.
static __global__ void __launch_bounds__(kNumbersThreads)
    make_query_numbers(const OwnArguments a, const QueryNumbers to) {
  const int64_t at = blockIdx.x * static_cast<int64_t>(kNumbersThreads / 32) + threadIdx.x / 32;
  if (at >= to.rows * a.heads || (a.listed && *a.listed)) return;
  const int lane = static_cast<int>(threadIdx.x) % 32, row = static_cast<int>(at % to.rows),
            head = static_cast<int>(at / to.rows);
  float sum = 0, lse = 0;
  int low = kNobody;
  if (row < a.num_queries) {
    const int64_t begin = row * a.out_row + static_cast<int64_t>(head) * a.dv;
    const auto *x = static_cast<const cuda::bf16*>(a.dout) + begin,
               *y = static_cast<const cuda::bf16*>(a.out) + begin;
    for (int c = lane; c < a.dv; c += 32) sum = fmaf(cuda::to_float(x[c]), cuda::to_float(y[c]), sum);
    sum = cuda::warp_sum(sum);
    lse = a.lse[static_cast<int64_t>(row) * a.heads + head] * kLog2E;
    low = a.doc_start[row];
    if (a.window > 0) low = max(low, row - a.window + 1);
  }
  if (lane != 0) return;
  to.sums[at] = make_float2(lse, sum);
  if (head == 0) to.low[row] = low;
}

// One past the last query that sees a key up to `last`: low never falls from row to row. All lanes of a warp
// probe at once.
__device__ inline int end_of_queries(const int* low, int num_queries, int first, int last) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int from = first, to = num_queries;  // the answer lies between
  while (from < to) {
    const int step = (to - from + 31) / 32, probe = min(from + (lane + 1) * step - 1, to - 1);
    const int seen = __popc(__ballot_sync(0xffffffffu, low[probe] <= last));
    if (seen == 32) return to;
    to = min(from + (seen + 1) * step - 1, to - 1);
    from += seen * step;
  }
  return from;
}

__device__ inline uint32_t bf16_pair(float low, float high) {
  const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&both);
}

// Sums of 64 rows: those below num_rows, columns below width, times `factor`.
template <int N>
__device__ inline void store_sums(const float (&sums)[N / 2], cuda::bf16* to, int64_t ld, int num_rows,
                                  int width, float factor) {
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4, lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = warp * 16 + lane / 4 + 8 * half;
    if (row >= num_rows) continue;
#pragma unroll
    for (int j = 0; j < N / 8; ++j) {
      const int column = 8 * j + 2 * (lane % 4), at = 4 * j + 2 * half;
      if (column < width)
        *reinterpret_cast<uint32_t*>(to + row * ld + column) =
            bf16_pair(sums[at] * factor, sums[at + 1] * factor);
    }
  }
}

// blockIdx.x: 128 rows; blockIdx.y: a head (of queries, or of keys). Widths below D and DV read as zero.
template <Side kSide, int D, int DV>
__global__ void __launch_bounds__(kGradientThreads, 1)
    gradient(const __grid_constant__ GradientMaps maps, const OwnArguments a, const QueryNumbers queries) {
  using namespace cuda;
  using Tiles = GradientTiles<D, DV>;
  constexpr bool kKeys = kSide == Side::Keys;
  // Too many sums for s and dp to lie beside them: one after the other, and p only as it is multiplied.
  constexpr bool kTight = kKeys && D > 128;
  if (a.listed && *a.listed) return;
  extern __shared__ std::byte raw[];
  std::byte* const shared =
      reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(raw) + 1023) / 1024 * 1024);
  std::byte* const held = shared;  // [x: columns / 64, 2] and [y: columns / 64, 2] boxes
  std::byte* const stream = held + Tiles::kHeldBytes;
  auto* const numbers = reinterpret_cast<StreamedNumbers*>(stream + Tiles::kStages * Tiles::kStageBytes);
  auto* const full = reinterpret_cast<uint64_t*>(numbers + Tiles::kStages);
  uint64_t* const empty = full + Tiles::kStages;
  uint64_t* const arrived = empty + Tiles::kStages;  // the held tiles

  const int warp = warp_of_block(), lane = static_cast<int>(threadIdx.x) % 32;
  const int group = a.heads / a.kv_heads, head = static_cast<int>(blockIdx.y);
  const int kv_head = kKeys ? head : head / group;
  // Queries late in a long document walk furthest, keys early in it: those blocks start first.
  const int block = static_cast<int>(kKeys ? blockIdx.x : gridDim.x - 1 - blockIdx.x);
  const int first_row = block * kHeldRows, last_row = min(first_row + kHeldRows, a.num_queries) - 1;
  const int begin = kKeys ? first_row : queries.low[first_row] / kStreamRows * kStreamRows;
  const int end = kKeys ? end_of_queries(queries.low, a.num_queries, first_row, last_row) : last_row + 1;
  const int heads = kKeys ? group : 1;  // whose rows are streamed
  if (threadIdx.x == 0) {
    for (int s = 0; s < Tiles::kStages; ++s) {
      barrier_init(&full[s], 1);
      barrier_init(&empty[s], kKeys ? 256 : 8);  // every computing thread, or every computing warp
    }
    barrier_init(arrived, 1);
    barrier_init_fence();
  }
  __syncthreads();
  int stage = 0;
  uint32_t parity = 0;
  const auto advance = [&] {
    if (++stage == Tiles::kStages) stage = 0, parity ^= 1;
  };

  if (warp >= 8) {
    give_registers<kTight ? 24 : 40>();
    if (warp > 8 || lane > 0) return;
    const CUtensorMap &x = kKeys ? maps.k : maps.q, &y = kKeys ? maps.v : maps.dout;
    const CUtensorMap &stream_x = kKeys ? maps.q : maps.k, &stream_y = kKeys ? maps.dout : maps.v;
    barrier_arrive_expect(arrived, Tiles::kHeldBytes);
#pragma unroll
    for (int i = 0; i < 2 * Tiles::kBoxesX; ++i)
      load_3d(held + i * kBoxBytes, &x, arrived, i / 2 * 64, first_row + i % 2 * 64, head);
#pragma unroll
    for (int i = 0; i < 2 * Tiles::kBoxesY; ++i)
      load_3d(held + (2 * Tiles::kBoxesX + i) * kBoxBytes, &y, arrived, i / 2 * 64, first_row + i % 2 * 64,
              head);
    for (int row = begin; row < end; row += kStreamRows)
      for (int h = 0; h < heads; ++h, advance()) {
        const int stream_head = kKeys ? kv_head * group + h : kv_head;
        uint64_t* const barrier = &full[stage];
        std::byte* const to = stream + stage * Tiles::kStageBytes;
        barrier_wait(&empty[stage], parity ^ 1);
        barrier_arrive_expect(barrier, Tiles::kStageBytes + (kKeys ? sizeof(StreamedNumbers) : 0));
#pragma unroll
        for (int i = 0; i < Tiles::kBoxesX; ++i)
          load_3d(to + i * kBoxBytes, &stream_x, barrier, i * 64, row, stream_head);
#pragma unroll
        for (int i = 0; i < Tiles::kBoxesY; ++i)
          load_3d(to + (Tiles::kBoxesX + i) * kBoxBytes, &stream_y, barrier, i * 64, row, stream_head);
        if constexpr (kKeys) {
          StreamedNumbers& of = numbers[stage];
          load_bulk(of.sums, queries.sums + stream_head * queries.rows + row, sizeof of.sums, barrier);
          load_bulk(of.low, queries.low + row, sizeof of.low, barrier);
        }
      }
    return;
  }

  take_registers<kTight ? 240 : 232>();
  const int half = warp / 4, own_first = first_row + half * 64;
  const float scale = a.scale * kLog2E;
  // Of this thread's two rows, where they are queries.
  int own_low[2] = {}, last_low = 0;
  float own_lse[2] = {}, own_dot[2] = {};
  const auto own_row = [&](int i) { return own_first + warp % 4 * 16 + lane / 4 + 8 * i; };
  if constexpr (!kKeys) {
    const auto low_at = [&](int row) { return row < a.num_queries ? queries.low[row] : kNobody; };
    last_low = low_at(own_first + 63);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      own_low[i] = low_at(own_row(i));
      if (own_low[i] == kNobody) continue;
      const float2 sums = queries.sums[head * queries.rows + own_row(i)];
      own_lse[i] = sums.x, own_dot[i] = sums.y;
    }
  }
  float dx[D / 2], dy[kKeys ? DV / 2 : 1];  // dq, or dk and dv
#pragma unroll
  for (float& sum : dx) sum = 0;
#pragma unroll
  for (float& sum : dy) sum = 0;
  const auto tile = [](const std::byte* at, bool transposed, int byte) {
    return wgmma_further(wgmma_tile(at, transposed), byte);
  };
  barrier_wait(arrived, 0);
  for (int row = begin; row < end; row += kStreamRows)
    for (int h = 0; h < heads; ++h, advance()) {
      barrier_wait(&full[stage], parity);
      const std::byte* const at_x = stream + stage * Tiles::kStageBytes;
      const std::byte* const at_y = at_x + Tiles::kBoxesX * kBoxBytes;
      float s[32], dp[32];
      const auto score = [&] {
#pragma unroll
        for (int k = 0; k < D / 16; ++k)
          Wgmma<64, 0, 0>::run(s, tile(held + (k / 4 * 2 + half) * kBoxBytes, false, k % 4 * 32),
                               tile(at_x + k / 4 * kBoxBytes, false, k % 4 * 32), k > 0);
      };
      const auto project = [&] {
#pragma unroll
        for (int k = 0; k < DV / 16; ++k)
          Wgmma<64, 0, 0>::run(
              dp, tile(held + (2 * Tiles::kBoxesX + k / 4 * 2 + half) * kBoxBytes, false, k % 4 * 32),
              tile(at_y + k / 4 * kBoxBytes, false, k % 4 * 32), k > 0);
      };
      const StreamedNumbers& of = numbers[stage];
      uint32_t p[kKeys ? 16 : 1], ds[16];  // pairs of bf16, as the next products want them
      const bool all_seen = kKeys ? row >= own_first + 63 && of.low[kStreamRows - 1] <= own_first
                                  : row + kStreamRows - 1 <= own_first && last_low <= row;
      // Row i of this thread's two, column 8 j + 2 (lane % 4) + e.
      const auto seen = [&](int i, int column) {
        const int query = kKeys ? row + column : own_row(i), key = kKeys ? own_row(i) : row + column;
        return key >= (kKeys ? of.low[column] : own_low[i]) && key <= query;
      };
      const auto each = [&](auto f) {
#pragma unroll
        for (int j = 0; j < 8; ++j)
#pragma unroll
          for (int i = 0; i < 2; ++i) f(4 * j + 2 * i, i, 8 * j + 2 * (lane % 4));
      };
      const auto weight_of = [&](auto masked, int at, int i, int column) {
        const float weight = power_of_two(fmaf(s[at], scale, -(kKeys ? of.sums[column].x : own_lse[i])));
        return masked() && !seen(i, column) ? 0.0f : weight;
      };
      const auto slope_of = [&](auto masked, float weight, int at, int i, int column) {
        const float slope = weight * (dp[at] - (kKeys ? of.sums[column].y : own_dot[i]));
        return masked() && !seen(i, column) ? 0.0f : slope;
      };
      const auto differentiate = [&](auto masked) {
        each([&](int at, int i, int column) {
          const float low = weight_of(masked, at, i, column), high = weight_of(masked, at + 1, i, column + 1);
          if constexpr (kKeys) p[at / 2] = bf16_pair(low, high);
          ds[at / 2] =
              bf16_pair(slope_of(masked, low, at, i, column), slope_of(masked, high, at + 1, i, column + 1));
        });
      };
      const auto weigh = [&](auto masked) {
        each([&](int at, int i, int column) {
          p[at / 2] = bf16_pair(weight_of(masked, at, i, column), weight_of(masked, at + 1, i, column + 1));
        });
      };
      const auto differentiate_weighed = [&](auto masked) {
        each([&](int at, int i, int column) {  // the upper half of a float is a bf16
          const float low = __uint_as_float(p[at / 2] << 16), high = __uint_as_float(p[at / 2] & 0xffff0000u);
          ds[at / 2] =
              bf16_pair(slope_of(masked, low, at, i, column), slope_of(masked, high, at + 1, i, column + 1));
        });
      };
      const auto masked_or_not = [&](auto f) {
        if (all_seen)
          f(std::false_type{});
        else
          f(std::true_type{});
      };
      wgmma_pin(dx);
      if constexpr (kKeys) wgmma_pin(dy);
      wgmma_begin();
      score();
      if constexpr (!kTight) project();
      wgmma_commit();
      wgmma_wait<0>();
      wgmma_pin(s);
      if constexpr (kTight) {
        masked_or_not(weigh);
        wgmma_begin();
        project();
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_pin(dp);
        masked_or_not(differentiate_weighed);
      } else {
        wgmma_pin(dp);
        masked_or_not(differentiate);
      }

      wgmma_begin();
#pragma unroll
      for (int k = 0; k < kStreamRows / 16; ++k) {
        if constexpr (kKeys) WgmmaHeld<DV, 1>::run(dy, p + 4 * k, tile(at_y, true, k * 2048));
        WgmmaHeld<D, 1>::run(dx, ds + 4 * k, tile(at_x, true, k * 2048));
      }
      wgmma_commit();
      wgmma_wait<0>();
      // Threads that have read numbers of the stage say so themselves: racecheck does not follow a warp that
      // meets and lets one lane speak for it.
      if (kKeys || lane == 0) barrier_arrive(&empty[stage]);
    }
  wgmma_pin(dx);
  const int rows = a.num_queries - own_first;
  if constexpr (kKeys) {
    wgmma_pin(dy);
    store_sums<D>(dx, static_cast<bf16*>(a.dk) + own_first * a.dkv_row + static_cast<int64_t>(head) * a.d,
                  a.dkv_row, rows, a.d, a.scale);
    store_sums<DV>(dy,
                   static_cast<bf16*>(a.dv_to) + own_first * a.dkv_row + static_cast<int64_t>(head) * a.dv,
                   a.dkv_row, rows, a.dv, 1.0f);
  } else {
    store_sums<D>(dx, static_cast<bf16*>(a.dq) + own_first * a.dq_row + static_cast<int64_t>(head) * a.d,
                  a.dq_row, rows, a.d, a.scale);
  }
}

}  // namespace pleat::kernels::attention
