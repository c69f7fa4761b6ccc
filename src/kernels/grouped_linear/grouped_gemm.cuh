// Products of groups of rows with the matrix of their group, on the tensor cores of Hopper: one persistent
// kernel, group sizes read on the device, empty groups fine, nothing padded in memory.
//
//   Rows        y[r, n] = sum over k of a[r, k] b[e, n, k]   for rows r of group e    (b: depth inside)
//   RowsAcross  y[r, n] = sum over k of a[r, k] b[e, k, n]                             (b: depth outside)
//   Depth       y[e, m, n] (+)= sum over rows r of group e of a[r, m] b[r, n]
//
// Tiles, their order and the loads are in grouped_tiles.cuh. Each of the two warpgroups computes 64 rows of a tile of 128
// by kN. Finished tiles leave through shared memory by bulk stores, pieces of 128 bytes' width in turn, while the
// next tile is already being computed.
//
// A tile of Rows that reaches past its group also computes rows of the next; those are not stored. In Depth
// whatever lies behind the end of a group (it may be NaN) must not count: the last products are left out, and
// in the one that is cut the rows behind the end are zero. A warp beside the loading one sets them to zero in
// shared memory as soon as they have come, stages ahead of the products.
#pragma once

#include "kernels/cuda/wgmma.cuh"
#include "kernels/grouped_linear/grouped_tiles.cuh"
#include "program/limits.h"

namespace pleat::kernels::cuda {

template <Grouped kWhat, int kN>
using WideForm =
    GroupedForm<kWhat, kN, false, kN == 256 ? 4 : 6, 2 * 2 * 8192>;  // two pieces for each warpgroup
constexpr int kSlices = 64 / 16;                                     // products of a step

static_assert(WideForm<Grouped::Rows, 128>::shared_bytes(program::kMaxGpuExperts) <= kBlockShared &&
              WideForm<Grouped::Rows, 256>::shared_bytes(program::kMaxGpuExperts) <= kBlockShared &&
              WideForm<Grouped::Rows, 256>::shared_bytes(program::kMaxGpuExperts + 1) > kBlockShared);

// T: of the output, bf16, or float for Depth.
template <Grouped kWhat, int kN, class T>
__global__ void __launch_bounds__(384, 1)
    grouped_gemm(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b,
                 const __grid_constant__ CUtensorMap map_out, const GroupedShape shape) {
  using Form = WideForm<kWhat, kN>;
  constexpr int kStages = Form::kStages, kBytesA = Form::kBytesA, kBytesB = Form::kBytesB;
  constexpr bool kAcrossA = Form::kAcrossA, kAcrossB = Form::kAcrossB;
  extern __shared__ std::byte raw[];
  const GroupedShared<Form> shared(raw);
  std::byte* const tiles_a = shared.tiles_a;
  std::byte* const tiles_b = shared.tiles_b;
  uint64_t *const full = shared.full, *const empty = shared.empty, *const landed = shared.landed;
  const int warp = warp_of_block(), lane = static_cast<int>(threadIdx.x) % 32;
  const int rank = static_cast<int>(cluster_rank());
  if (threadIdx.x == 0) {
    prefetch_map(&map_a);
    prefetch_map(&map_b);
    prefetch_map(&map_out);
  }
  const uint16_t* const order = open_tiles(shared, shape);

  int stage = 0;  // in the ring of stages
  uint32_t parity = 0;
  const auto advance = [&] {
    if (++stage == kStages) stage = 0, parity ^= 1;
  };
  TileReader<Form> tiles{shared};
  const auto next_tile = [&] { return tiles.next(lane); };

  if (warp >= 8) {  // the loading warpgroup: one thread loads, in Depth a warp cuts
    give_registers<56>();
    if (warp == 8 && lane == 0)
      load_tiles(shared, GroupedItems<kWhat, kN>::of(shared.offsets, order, shape), map_a, map_b, nullptr,
                 nullptr, shape, rank);
    if (kWhat == Grouped::Depth && warp == 9) {
      uint32_t phases = 0;  // of `landed`
      for (GroupedTile tile = next_tile(); tile.steps >= 0; tile = next_tile()) {
        const int last = (stage + tile.steps - 1) % kStages;
        stage = (stage + tile.steps) % kStages;
        if (tile.rest == 0) continue;
        barrier_wait(&landed[last], phases >> last & 1);
        phases ^= 1u << last;
        for (int box = 0; box < 2 + kN / 64; ++box) {
          std::byte* const rows = box < 2 ? tiles_a + last * kBytesA + box * kHalfBytes
                                          : tiles_b + last * kBytesB + (box - 2) * kHalfBytes;
          for (int i = tile.rest * 8 + lane; i < (tile.rest + 15) / 16 * 128; i += 32)
            reinterpret_cast<uint4*>(rows)[i] = make_uint4(0, 0, 0, 0);
        }
        fence_async_proxy();
        barrier_arrive(&full[last]);
      }
    }
    __syncwarp();
  } else {
    take_registers<224>();
    const int half = warp / 4, thread = static_cast<int>(threadIdx.x) % 128;
    std::byte* const pieces = shared.staging + half * 2 * 8192;
    const auto release = [&](int used) {  // the stage may be loaded again, in both blocks
      if (lane < 2) barrier_arrive_at(&empty[used], lane);
    };
    const uint64_t first_a = wgmma_tile(tiles_a + half * kHalfBytes, kAcrossA),
                   first_b = wgmma_tile(tiles_b, kAcrossB);  // of stage 0
    float sum[kN / 2];
    // Pieces of 64 rows by 128 bytes leave through two buffers by turns.
    constexpr int kPiece = 128 / static_cast<int>(sizeof(T)), kPieces = kN / kPiece;
    const auto claim = [&](int piece) {  // what was in this buffer has left
      if (thread == 0) store_wait_read<1>();
      named_barrier(1 + half, 128);
      return pieces + piece % 2 * 8192;
    };
    const auto send = [&](const std::byte* out, int column, int row, int group) {
      if (thread == 0) {
        if (kWhat != Grouped::Depth)
          store_2d(&map_out, out, column, row);
        else if (shape.accumulate)
          add_3d(&map_out, out, column, row, group);
        else
          store_3d(&map_out, out, column, row, group);
        store_commit();
      }
    };
    // A whole tile of bf16 waits in registers, rounded, and leaves during the first steps of the next.
    constexpr bool kWaits = sizeof(T) == 2;
    uint32_t waiting[kWaits ? kN / 4 : 1];
    bool any_waits = false;
    int to_column = 0, to_row = 0, to_group = 0;
    // Where a lane's row of four tiles goes: chunks of 8 columns, swizzled, the first of them lane / 16.
    const int lane_row = warp % 4 * 16 + lane % 8 + lane / 8 % 2 * 8;
    const uint32_t lane_chunk =
        shared_address(pieces) + static_cast<uint32_t>(lane_row * 128 + (lane / 16 ^ lane_row % 8) * 16);
    const auto stage_waiting = [&](int piece) {
      std::byte* const out = claim(piece);
#pragma unroll
      for (int j = 0; j < 8; j += 2) {
        const int at = (piece * 8 + j) * 2;
        store_tiles((lane_chunk + piece % 2 * 8192) ^ (j * 16), waiting[at], waiting[at + 1], waiting[at + 2],
                    waiting[at + 3]);
      }
      fence_async_proxy();
      named_barrier(1 + half, 128);
      return out;
    };
    const auto send_waiting = [&](int piece) {
      send(stage_waiting(piece), to_column + piece * kPiece, to_row, to_group);
    };
    const auto send_all_waiting = [&] {
      if constexpr (kWaits) {
        if (any_waits) {
#pragma unroll
          for (int piece = 0; piece < kPieces; ++piece) send_waiting(piece);
        }
        any_waits = false;
      }
    };
    GroupedTile next = next_tile();
    while (next.steps >= 0) {
      const GroupedTile tile = next;
      const int steps = tile.steps, whole = steps - (kWhat == Grouped::Depth && tile.rest > 0 ? 1 : 0);
      const bool idle = tile.rows <= half * 64;  // nothing of this half will be stored
      if (idle) {
        for (int k = 0; k < steps; ++k, advance()) {
          barrier_wait(&full[stage], parity);
          __syncwarp();
          release(stage);
        }
        next = next_tile();
        continue;
      }
      const auto multiply_slice = [&](int i, bool add) {
        const uint64_t a = wgmma_further(first_a, stage * kBytesA),
                       b = wgmma_further(first_b, stage * kBytesB);
        Wgmma<kN, kAcrossA, kAcrossB>::run(sum, wgmma_further(a, i * (kAcrossA ? 2048 : 32)),
                                           wgmma_further(b, i * (kAcrossB ? 2048 : 32)), add);
      };
      const auto multiply = [&](bool add) {  // or set the sums
        wgmma_begin();
#pragma unroll
        for (int i = 0; i < kSlices; ++i) multiply_slice(i, i > 0 || add);
        wgmma_commit();
      };
      // The compiler makes products wait for each other where one lies behind a branch without a wgmma_begin
      // of its own; so the steps that send the former tile are a loop of their own, unrolled.
      int former = 0;
      const auto multiply_from = [&](int first) {
        for (int k = first; k < whole; ++k, advance()) {
          barrier_wait(&full[stage], parity);
          multiply(true);
          wgmma_wait<1>();
          if (k > 0) release(former);  // its products are done
          former = stage;
        }
        const int last = stage;
        if (kWhat == Grouped::Depth && whole < steps) {  // of a step that is cut only the products that count
          barrier_wait(&full[last], parity);
#pragma unroll 1
          for (int i = 0; i * 16 < tile.rest; ++i) {
            wgmma_begin();
            multiply_slice(i, true);
            wgmma_commit();
          }
          advance();
        }
        next = next_tile();  // while the last products are on their way
        wgmma_wait<0>();
        if (whole > 0) release(former);
        if (kWhat == Grouped::Depth && whole < steps) release(last);
      };
      if (kWaits && any_waits && whole >= kPieces) {
        wgmma_forget(sum);
#pragma unroll
        for (int piece = 0; piece < kPieces; ++piece, advance()) {
          barrier_wait(&full[stage], parity);
          multiply(piece > 0);
          if constexpr (kWaits) send_waiting(piece);
          wgmma_wait<1>();
          if (piece > 0) release(former);
          former = stage;
        }
        multiply_from(kPieces);
        any_waits = false;
      } else {
        send_all_waiting();
#pragma unroll
        for (int i = 0; i < kN / 2; ++i) sum[i] = 0;
        wgmma_pin(sum);
        multiply_from(0);
      }
      wgmma_pin(sum);

      const int n0 = tile.column, m0 = tile.row + half * 64;
      if (n0 >= shape.n) continue;
      if (kWhat == Grouped::Depth && shape.accumulate && steps == 0) continue;
      const int valid = kWhat == Grouped::Depth ? 64 : min(64, tile.rows - half * 64);
      if constexpr (kWaits) {
#pragma unroll
        for (int i = 0; i < kN / 4; ++i) {
          const __nv_bfloat162 two = __floats2bfloat162_rn(sum[2 * i], sum[2 * i + 1]);
          waiting[i] = *reinterpret_cast<const uint32_t*>(&two);
        }
        to_column = n0, to_row = m0, to_group = tile.group;
        any_waits = valid == 64;
        if (any_waits) continue;
        // The group ends inside this half: row by row. Nothing is committed here, so no buffer may still be
        // read.
        if (thread == 0) store_wait_read<0>();
#pragma unroll
        for (int piece = 0; piece < kPieces; ++piece) {
          const std::byte* const out = stage_waiting(piece);
          const int column = n0 + piece * kPiece;
#pragma unroll 1
          for (int i = thread; i < valid * 8; i += 128) {
            const int row = i / 8, chunk = i % 8;
            if (column + chunk * 8 < shape.n)
              *reinterpret_cast<uint4*>(static_cast<bf16*>(shape.out) +
                                        static_cast<int64_t>(to_row + row) * shape.n + column + chunk * 8) =
                  *reinterpret_cast<const uint4*>(out + row * 128 + (chunk ^ (row % 8)) * 16);
          }
        }
      } else {
#pragma unroll
        for (int piece = 0; piece < kPieces; ++piece) {
          std::byte* const out = claim(piece);
#pragma unroll
          for (int j = 0; j < 4; ++j)
#pragma unroll
            for (int lower = 0; lower < 2; ++lower) {
              const int row = warp % 4 * 16 + lane / 4 + lower * 8, at = (piece * 4 + j) * 4 + lower * 2;
              const int chunk = j * 2 + lane % 4 / 2;  // chunks of 4 columns
              *reinterpret_cast<float2*>(out + row * 128 + (chunk ^ (row % 8)) * 16 + lane % 2 * 8) = {
                  sum[at], sum[at + 1]};
            }
          fence_async_proxy();
          named_barrier(1 + half, 128);
          send(out, n0 + piece * kPiece, m0, tile.group);
        }
      }
    }
    send_all_waiting();
    if (thread == 0) store_wait_read<0>();
  }
  // No block leaves while its neighbour may still write to its shared memory or arrive at its barriers.
  __syncthreads();
  cluster_sync();
}

}  // namespace pleat::kernels::cuda
