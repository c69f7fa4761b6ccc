// Products of E4M3 codes whose blocks have scales, on the tensor cores of Hopper: what grouped_linear/grouped_gemm.cuh
// is for numbers, on the same tiles in the same order (grouped_linear/grouped_tiles.cuh).
//
//   Rows   y[r, n] = sum over blocks k of (a[r, k] . b[e, n, k]) of_a[r, k] of_b[e, n / 128, k]     for rows r of group e
//   Depth  y[e, m, n] (+)= sum over blocks r of group e of (a[m, r] . b[n, r]) of_a[r, m] of_b[r, n]
//
// A step of depth is a block: its products are summed by the tensor cores, from nothing, and then scaled and added to
// float sums by ordinary instructions. Sums of a block and sums so far are registers both, so a warpgroup has 128 by 128
// of the tile's outputs, which it computes as two halves of 64 rows: 128 registers of sums, 64 of a block. While one
// warpgroup scales, the tensor cores work for the other; and one is kSkew steps ahead of the other, so that one's
// finished tile leaves while the other still computes.
//
// Scales come straight from memory in Rows, a step ahead of their use: of columns it is one number for a warpgroup. In
// Depth they come through shared memory, beside the tiles.
#pragma once

#include "kernels/cuda/wgmma_codes.cuh"
#include "kernels/grouped_linear/grouped_tiles.cuh"
#include "program/limits.h"

namespace pleat::kernels::cuda {

constexpr int kCodeBlock = 128;
constexpr int kPieceBytes = 16 * 128;  // of a finished tile: a warp's 16 rows, 128 bytes wide

template <Grouped kWhat>
struct ScaledTuning {
  static constexpr int kStages = 4, kBuffers = kWhat == Grouped::Depth ? 1 : 2, kSkew = 2;
};

template <Grouped kWhat, class Tuning = ScaledTuning<kWhat>>
using ScaledForm = GroupedForm<kWhat, 256, true, Tuning::kStages, 8 * Tuning::kBuffers * kPieceBytes>;

static_assert(ScaledForm<Grouped::Rows>::shared_bytes(program::kMaxGpuExperts) <= kBlockShared &&
              ScaledForm<Grouped::Depth>::shared_bytes(program::kMaxGpuExperts) <= kBlockShared);

struct ScaledSides {  // of Rows
  const float *of_a, *of_b;
  int across;                   // blocks of the depth
  int a_rows;                   // of `a` there are so many
  const bf16 *bias, *residual;  // added to the sum; may be null
};

template <Grouped kWhat, class T, class Tuning = ScaledTuning<kWhat>>
__global__ void __launch_bounds__(384, 1)
    scaled_gemm(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b,
                const __grid_constant__ CUtensorMap scales_a, const __grid_constant__ CUtensorMap scales_b,
                const __grid_constant__ CUtensorMap map_out, const GroupedShape shape,
                const ScaledSides sides) {
  using Form = ScaledForm<kWhat, Tuning>;
  constexpr bool kDepth = Form::kDepth;
  constexpr int kStages = Form::kStages, kBytesA = Form::kBytesA, kBytesB = Form::kBytesB, kHalves = 2;
  extern __shared__ std::byte raw[];
  const GroupedShared<Form> shared(raw);
  const int warp = warp_of_block(), lane = static_cast<int>(threadIdx.x) % 32;
  const int rank = static_cast<int>(cluster_rank());
  if (threadIdx.x == 0) {
    prefetch_map(&map_a);
    prefetch_map(&map_b);
    prefetch_map(&map_out);
    if (kDepth) prefetch_map(&scales_a), prefetch_map(&scales_b);
  }
  const uint16_t* const order = open_tiles(shared, shape);

  if (warp >= 8) {
    give_registers<56>();
    if (warp == 8 && lane == 0)
      load_tiles(shared, GroupedItems<kWhat, Form::kN>::of(shared.offsets, order, shape), map_a, map_b,
                 &scales_a, &scales_b, shape, rank);
    __syncwarp();
  } else {
    take_registers<224>();
    TileReader<Form> tiles{shared};
    int stage = 0;
    uint32_t parity = 0;
    const auto advance = [&] {
      if (++stage == kStages) stage = 0, parity ^= 1;
    };
    const int side = warp / 4;  // of the tile's columns
    std::byte* const pieces = shared.staging + warp * Tuning::kBuffers * kPieceBytes;
    const auto release = [&](int used) {
      if (kDepth) __syncwarp();  // all have read the scales
      if (lane < 2) barrier_arrive_at(&shared.empty[used], lane);
    };
    const uint64_t first_a = wgmma_tile(shared.tiles_a, false),
                   first_b = wgmma_tile(shared.tiles_b + side * kCodeBlock * 128, false);
    // Of a half: rows row and row + 8, columns 8 j + column and the next.
    const int row = warp % 4 * 16 + lane / 4, column = lane % 4 * 2;

    // Scales of a step of Rows: of this thread's rows, and of its warpgroup's columns.
    int at[2 * kHalves], at_columns = 0;
    struct Scales {
      float rows[2 * kHalves], columns;
    };
    const auto turn_to = [&](const GroupedTile& tile) {
      if constexpr (!kDepth) {
#pragma unroll
        for (int i = 0; i < 2 * kHalves; ++i)
          at[i] = min(tile.row + i / 2 * 64 + row + i % 2 * 8, sides.a_rows - 1) * sides.across;
        const int down = (shape.n + kCodeBlock - 1) / kCodeBlock;
        at_columns = (tile.group * down + min(tile.column / kCodeBlock + side, down - 1)) * sides.across;
      }
    };
    const auto scales_of = [&](int k) {
      Scales s{};
      if constexpr (!kDepth) {
#pragma unroll
        for (int i = 0; i < 2 * kHalves; ++i) s.rows[i] = __ldg(sides.of_a + at[i] + k);
        s.columns = __ldg(sides.of_b + at_columns + k);
      }
      return s;
    };

    float sum[kHalves][64];
    const auto claim = [&](int piece) {  // what was in its buffer has left
      if (lane == 0) {
        if (piece == 0)
          store_wait_read<0>();
        else
          store_wait_read<Tuning::kBuffers - 1>();
      }
      __syncwarp();
      return pieces + piece % Tuning::kBuffers * kPieceBytes;
    };
    const auto pass_over = [&] {  // claim counts groups of bulk stores: a piece without one has an empty one
      if (lane == 0) store_commit();
    };
    const auto send = [&](const std::byte* piece, int x, int y, int group, bool stores) {
      fence_async_proxy();
      __syncwarp();
      if (lane != 0) return;
      if (stores) {
        if (!kDepth)
          store_2d(&map_out, piece, x, y);
        else if (shape.accumulate)
          add_3d(&map_out, piece, x, y, group);
        else
          store_3d(&map_out, piece, x, y, group);
      }
      store_commit();
    };

    if (Tuning::kSkew > 0 && side == 1) named_barrier(1, 256);
    int steps_left = Tuning::kSkew;  // until the other side may begin
    const auto go_ahead = [&] {
      if (Tuning::kSkew > 0 && side == 0 && steps_left > 0 && --steps_left == 0)
        asm volatile("bar.arrive 1, 256;" ::: "memory");
    };

    GroupedTile next = tiles.next(lane);
    Scales scales{};
    if (next.steps > 0) turn_to(next), scales = scales_of(0);
    while (next.steps >= 0) {
      const GroupedTile tile = next;
      const int n0 = tile.column + side * kCodeBlock;
      const bool idle = n0 >= shape.n || tile.rows <= 0;  // nothing of this side will be stored
      const bool two = tile.rows > 64;
      if (idle) {
        for (int k = 0; k < tile.steps; ++k, advance()) {
          barrier_wait(&shared.full[stage], parity);
          __syncwarp();
          release(stage);
          go_ahead();
        }
      } else {
#pragma unroll
        for (int h = 0; h < kHalves; ++h)
#pragma unroll
          for (int i = 0; i < 64; ++i) sum[h][i] = 0;
        for (int k = 0; k < tile.steps; ++k, advance()) {
          barrier_wait(&shared.full[stage], parity);
          const uint64_t a = wgmma_further(first_a, stage * kBytesA),
                         b = wgmma_further(first_b, stage * kBytesB);
          const float* const of_step =
              reinterpret_cast<const float*>(shared.scales + stage * Form::kBytesScale);
          const float* const of_rows = of_step + Form::kN + row;
          const float2* const of_columns =
              reinterpret_cast<const float2*>(of_step) + (side * kCodeBlock + column) / 2;
          Scales ahead{};
          float part[64];
#pragma unroll
          for (int h = 0; h < kHalves; ++h) {
            if (h == 1 && !two) break;
            wgmma_forget(part);
            wgmma_begin();
#pragma unroll
            for (int i = 0; i < 4; ++i)
              wgmma_codes(part, wgmma_further(a, h * kHalfBytes + i * 32), wgmma_further(b, i * 32), i > 0);
            wgmma_commit();
            if (h == 0 && k + 1 < tile.steps) ahead = scales_of(k + 1);
            wgmma_wait<0>();
            wgmma_pin(part);
            if (!kDepth && h == (two ? 1 : 0)) release(stage);
            const float upper = kDepth ? of_rows[h * 64] : scales.rows[2 * h] * scales.columns,
                        lower = kDepth ? of_rows[h * 64 + 8] : scales.rows[2 * h + 1] * scales.columns;
#pragma unroll
            for (int j = 0; j < 16; ++j) {
              const float2 c = kDepth ? of_columns[j * 4] : make_float2(1, 1);
              sum[h][4 * j] += part[4 * j] * (kDepth ? upper * c.x : upper);
              sum[h][4 * j + 1] += part[4 * j + 1] * (kDepth ? upper * c.y : upper);
              sum[h][4 * j + 2] += part[4 * j + 2] * (kDepth ? lower * c.x : lower);
              sum[h][4 * j + 3] += part[4 * j + 3] * (kDepth ? lower * c.y : lower);
            }
          }
          if (kDepth) release(stage);
          scales = ahead;
          go_ahead();
        }
      }
      if (tile.steps == 0) go_ahead();  // or the queue of tiles would be full before the other side begins
      next = tiles.next(lane);
      if (next.steps > 0) turn_to(next), scales = scales_of(0);  // while this tile leaves
      if (idle || (kDepth && shape.accumulate && tile.steps == 0)) continue;

#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        if (h == 1 && !two) break;
        const int m0 = tile.row + h * 64 + warp % 4 * 16;  // of this warp's rows the first
        const int valid = kDepth ? 16 : min(16, tile.rows - h * 64 - warp % 4 * 16);
        if (valid <= 0) break;
        if constexpr (sizeof(T) == 2) {
#pragma unroll
          for (int piece = 0; piece < 2; ++piece) {  // 64 columns
            const int first = n0 + piece * 64;
            if (first >= shape.n) {
              pass_over();
              continue;
            }
            if (!kDepth && (sides.bias || sides.residual)) {
#pragma unroll
              for (int j = 0; j < 8; ++j) {
                const int x = first + j * 8 + column, i = (piece * 8 + j) * 4;
                if (x >= shape.n) continue;
                const auto add = [&](int of, const bf16* from) {
                  const float2 two_of = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(from));
                  sum[h][of] += two_of.x, sum[h][of + 1] += two_of.y;
                };
                if (sides.bias) add(i, sides.bias + x), add(i + 2, sides.bias + x);
                if (!sides.residual) continue;
                const bf16* const from = sides.residual + static_cast<int64_t>(m0 + lane / 4) * shape.n + x;
                if (lane / 4 < valid) add(i, from);
                if (lane / 4 + 8 < valid) add(i + 2, from + 8 * static_cast<int64_t>(shape.n));
              }
            }
            std::byte* const out = claim(h * 2 + piece);
            const int lane_row = lane % 8 + lane / 8 % 2 * 8;
            const uint32_t lane_chunk =
                shared_address(out) + static_cast<uint32_t>(lane_row * 128 + (lane / 16 ^ lane_row % 8) * 16);
            const auto two_of = [&](int i) {
              const __nv_bfloat162 pair = __floats2bfloat162_rn(sum[h][i], sum[h][i + 1]);
              return *reinterpret_cast<const uint32_t*>(&pair);
            };
#pragma unroll
            for (int j = 0; j < 8; j += 2) {
              const int i = (piece * 8 + j) * 4;
              store_tiles(lane_chunk ^ (j * 16), two_of(i), two_of(i + 2), two_of(i + 4), two_of(i + 6));
            }
            send(out, first, m0, tile.group, valid == 16);
            if constexpr (!kDepth) {
              if (valid == 16) continue;
              for (int i = lane; i < valid * 8; i += 32) {  // the group ends inside these rows
                const int r = i / 8, chunk = i % 8;
                if (first + chunk * 8 < shape.n)
                  *reinterpret_cast<uint4*>(static_cast<bf16*>(shape.out) +
                                            static_cast<int64_t>(m0 + r) * shape.n + first + chunk * 8) =
                      *reinterpret_cast<const uint4*>(out + r * 128 + (chunk ^ (r % 8)) * 16);
              }
            }
          }
        } else {
#pragma unroll
          for (int piece = 0; piece < 4; ++piece) {  // 32 columns
            const int first = n0 + piece * 32;
            if (first >= shape.n) {
              pass_over();
              continue;
            }
            std::byte* const out = claim(h * 4 + piece);
#pragma unroll
            for (int j = 0; j < 4; ++j)
#pragma unroll
              for (int lower = 0; lower < 2; ++lower) {
                const int r = lane / 4 + lower * 8, i = (piece * 4 + j) * 4 + lower * 2;
                const int chunk = j * 2 + lane % 4 / 2;  // of 4 columns
                *reinterpret_cast<float2*>(out + r * 128 + (chunk ^ (r % 8)) * 16 + lane % 2 * 8) = {
                    sum[h][i], sum[h][i + 1]};
              }
            send(out, first, m0, tile.group, true);
          }
        }
      }
    }
    if (Tuning::kSkew > 0 && side == 0 && steps_left > 0) asm volatile("bar.arrive 1, 256;" ::: "memory");
    if (lane == 0) store_wait_read<0>();
  }
  // No block leaves while its neighbour may still write to its shared memory or arrive at its barriers.
  __syncthreads();
  cluster_sync();
}

}  // namespace pleat::kernels::cuda
