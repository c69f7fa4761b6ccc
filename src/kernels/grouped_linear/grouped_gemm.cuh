// Products of groups of rows with the matrix of their group, on the tensor cores of Hopper: one persistent
// kernel, group sizes read on the device, empty groups fine, nothing padded in memory.
//
//   Rows        y[r, n] = sum over k of a[r, k] b[e, n, k]   for rows r of group e    (b: depth inside)
//   RowsAcross  y[r, n] = sum over k of a[r, k] b[e, k, n]                             (b: depth outside)
//   Depth       y[e, m, n] (+)= sum over rows r of group e of a[r, m] b[r, n]
//
// A block computes tiles of 128 by kN with two warpgroups of 64 rows each; a third only drives the copy
// engine, kStages deep. What limits such a kernel is what L2 can deliver, so two blocks form a cluster, take
// neighbouring tiles, and each loads half of what they share for both: two tiles of one column share `b`, the
// larger part; where a group has an odd number of tiles, its last row of tiles goes in pairs that share `a`.
// Finished tiles leave through shared memory by bulk stores, pieces of 128 bytes' width in turn, while the
// next tile is already being computed.
//
// A tile of Rows that reaches past its group also computes rows of the next; those are not stored. In Depth
// the rows behind the end of a group are set to zero in shared memory, so whatever lies there (it may be NaN)
// does not count.
//
// Items are dealt to clusters round robin, rows fastest inside a group: blocks that run at the same time
// share what they read in L2. The order of every sum follows from the shapes and the group sizes alone.
#pragma once

#include "kernels/cuda/types.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace pleat::kernels::cuda {

enum class Grouped { Rows, RowsAcross, Depth };

struct GroupedShape {
  const int32_t* offsets;  // [num_groups + 1]
  int num_groups;
  int m, n, k;  // m: Depth only; k: not for Depth
  bf16* out;    // Rows: written by ordinary stores where a tile is cut
  int accumulate;
};

constexpr int kTileM = 128, kTileK = 64;
constexpr int kHalfBytes = 64 * kTileK * 2;  // 64 rows (or columns) of one operand, one step deep
constexpr int kStagingBytes = 2 * 2 * 8192;  // two pieces of 64 rows by 128 bytes for each warpgroup

template <int kN>
constexpr int grouped_stages() {
  return kN == 256 ? 4 : 6;
}
template <int kN>
constexpr int grouped_shared_bytes(int num_groups) {
  return 1024 + grouped_stages<kN>() * (2 * kHalfBytes + kN / 64 * kHalfBytes) + kStagingBytes + 256 +
         (num_groups + 1) * 4;
}

// Walks the items of one cluster; an item is a pair of tiles.
template <Grouped kWhat, int kN>
struct GroupedItems {
  const int32_t* offsets;
  int num_groups, m_size, n_tiles;
  int64_t index, base = 0;
  int group = 0;
  // The present item: its first tile, and whether the second lies below it or beside it.
  int row_begin = 0, rows = 0, m = 0, n = 0;
  bool below = false;

  __device__ bool find(int64_t step) {
    index += step;
    while (group < num_groups) {
      row_begin = offsets[group];
      rows = offsets[group + 1] - row_begin;
      const int height = ((kWhat == Grouped::Depth ? m_size : rows) + kTileM - 1) / kTileM;
      const int pairs = height / 2, n_pairs = (n_tiles + 1) / 2;
      const int64_t tall = static_cast<int64_t>(pairs) * n_tiles, items = tall + height % 2 * n_pairs;
      if (index < base + items) {
        const int inside = static_cast<int>(index - base);
        below = inside < tall;
        if (below) {
          // Bands of 16 tiles of rows, so that the matrix of a large group is not read once per tile of rows.
          constexpr int kBand = 8;
          const int band = inside / (kBand * n_tiles), left = inside - band * kBand * n_tiles;
          const int band_height = min(kBand, pairs - band * kBand);
          n = left / band_height;
          m = (band * kBand + left - n * band_height) * 2;
        } else {
          m = height - 1;
          n = (inside - static_cast<int>(tall)) * 2;
        }
        return true;
      }
      base += items;
      ++group;
    }
    return false;
  }
};

// T: of the output, bf16, or float for Depth.
template <Grouped kWhat, int kN, class T>
__global__ void __launch_bounds__(384, 1)
    grouped_gemm(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b,
                 const __grid_constant__ CUtensorMap map_out, const GroupedShape shape) {
  constexpr int kStages = grouped_stages<kN>();
  constexpr int kBytesA = 2 * kHalfBytes, kBytesB = kN / 64 * kHalfBytes;
  constexpr bool kAcrossA = kWhat == Grouped::Depth, kAcrossB = kWhat != Grouped::Rows;
  extern __shared__ std::byte raw[];
  std::byte* const shared =
      reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(raw) + 1023) / 1024 * 1024);
  std::byte* const tiles_a = shared;
  std::byte* const tiles_b = tiles_a + kStages * kBytesA;
  std::byte* const staging = tiles_b + kStages * kBytesB;
  uint64_t* const full = reinterpret_cast<uint64_t*>(staging + kStagingBytes);
  uint64_t* const empty = full + kStages;
  int32_t* const offsets = reinterpret_cast<int32_t*>(empty + kStages + 2);

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int rank = static_cast<int>(cluster_rank());
  for (int i = static_cast<int>(threadIdx.x); i <= shape.num_groups; i += 384) offsets[i] = shape.offsets[i];
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      barrier_init(&full[s], 1);
      barrier_init(&empty[s], 16);  // every computing warp of both blocks
    }
    barrier_init_fence();
    prefetch_map(&map_a);
    prefetch_map(&map_b);
    prefetch_map(&map_out);
  }
  __syncthreads();
  cluster_sync();

  GroupedItems<kWhat, kN> items{offsets, shape.num_groups, shape.m, (shape.n + kN - 1) / kN,
                                static_cast<int64_t>(blockIdx.x / 2)};
  const int64_t stride = gridDim.x / 2;
  const auto first_row = [&] { return (items.m + (items.below ? rank : 0)) * kTileM; };
  const auto first_column = [&] { return (items.n + (items.below ? 0 : rank)) * kN; };
  const auto steps_of = [&] {
    return ((kWhat == Grouped::Depth ? items.rows : shape.k) + kTileK - 1) / kTileK;
  };
  int stage = 0;
  uint32_t parity = 0;
  const auto advance = [&] {
    if (++stage == kStages) stage = 0, parity ^= 1;
  };

  if (warp >= 8) {  // the loading warpgroup: one thread works
    give_registers<40>();
    if (warp == 8 && lane == 0) {
      for (bool more = items.find(0); more; more = items.find(stride)) {
        const int n0 = first_column(), m0 = first_row();
        for (int k = 0, steps = steps_of(); k < steps; ++k, advance()) {
          barrier_wait(&empty[stage], parity ^ 1);
          barrier_arrive_expect(&full[stage], kBytesA + kBytesB);
          std::byte* const a = tiles_a + stage * kBytesA;
          std::byte* const b = tiles_b + stage * kBytesB;
          const int depth = k * kTileK + (kWhat == Grouped::Depth ? items.row_begin : 0);
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const int row = m0 + h * 64 + (kWhat == Grouped::Depth ? 0 : items.row_begin);
            const int x = kAcrossA ? row : depth, y = kAcrossA ? depth : row;
            if (items.below)
              load_2d(a + h * kHalfBytes, &map_a, &full[stage], x, y);
            else if (h == rank)
              load_2d_multicast(a + h * kHalfBytes, &map_a, &full[stage], x, y, 3);
          }
          constexpr int kBoxes = kWhat == Grouped::Rows ? 2 : kN / 64;  // of b
#pragma unroll
          for (int i = 0; i < kBoxes; ++i) {
            std::byte* const to = b + i * (kBytesB / kBoxes);
            const int column = n0 + i * (kN / kBoxes), x = kAcrossB ? column : depth,
                      y = kAcrossB ? depth : column;
            if (items.below && i % 2 != rank) continue;
            const uint16_t blocks = items.below ? 3 : 1 << rank;
            if constexpr (kWhat == Grouped::Depth)
              load_2d_multicast(to, &map_b, &full[stage], x, y, blocks);
            else
              load_3d_multicast(to, &map_b, &full[stage], x, y, items.group, blocks);
          }
        }
      }
    }
    __syncwarp();
  } else {
    take_registers<232>();
    const int half = warp / 4, thread = static_cast<int>(threadIdx.x) % 128;
    std::byte* const pieces = staging + half * 2 * 8192;
    const auto release = [&](int used) {  // the stage may be loaded again, in both blocks
      if (lane < 2) barrier_arrive_at(&empty[used], lane);
    };
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
    const int lane_row = warp % 4 * 16 + lane % 8 + lane / 8 % 2 * 8;
    const auto stage_waiting = [&](int piece) {
      std::byte* const out = claim(piece);
      const uint32_t row_address = shared_address(out) + lane_row * 128;
#pragma unroll
      for (int j = 0; j < 8; j += 2) {
        const int at = (piece * 8 + j) * 2, chunk = j + lane / 16;  // chunks of 8 columns, swizzled
        store_tiles(row_address + (chunk ^ (lane_row % 8)) * 16, waiting[at], waiting[at + 1],
                    waiting[at + 2], waiting[at + 3]);
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
    for (bool more = items.find(0); more; more = items.find(stride)) {
      const int steps = steps_of();
      const int tile_rows = (kWhat == Grouped::Depth ? shape.m : items.rows) - first_row();
      const bool idle = tile_rows <= half * 64;  // nothing of this half will be stored
      if (idle) {
        for (int k = 0; k < steps; ++k, advance()) {
          barrier_wait(&full[stage], parity);
          release(stage);
        }
        continue;
      }
#pragma unroll
      for (int i = 0; i < kN / 2; ++i) sum[i] = 0;
      const auto multiply = [&] {
        const uint64_t tile_a = wgmma_tile(tiles_a + stage * kBytesA + half * kHalfBytes, kAcrossA);
        const uint64_t tile_b = wgmma_tile(tiles_b + stage * kBytesB, kAcrossB);
        wgmma_begin();
#pragma unroll
        for (int i = 0; i < kTileK / 16; ++i)
          Wgmma<kN, kAcrossA, kAcrossB>::run(sum, tile_a + i * ((kAcrossA ? 2048 : 32) >> 4),
                                             tile_b + i * ((kAcrossB ? 2048 : 32) >> 4), 1);
        wgmma_commit();
      };
      wgmma_pin(sum);
      // No branch may lie between products in flight, so the step that is cut (Depth) comes after the others,
      // and the steps that send the former tile are a loop of their own, unrolled.
      const int whole = kWhat == Grouped::Depth ? items.rows / kTileK : steps;
      int former = 0;
      const auto multiply_from = [&](int first) {
        for (int k = first; k < whole; ++k, advance()) {
          barrier_wait(&full[stage], parity);
          multiply();
          wgmma_wait<1>();
          if (k > 0) release(former);  // its products are done
          former = stage;
        }
        wgmma_wait<0>();
        if (whole > 0) release(former);
      };
      if (kWaits && any_waits && whole >= kPieces) {
#pragma unroll
        for (int piece = 0; piece < kPieces; ++piece, advance()) {
          barrier_wait(&full[stage], parity);
          multiply();
          if constexpr (kWaits) send_waiting(piece);
          wgmma_wait<1>();
          if (piece > 0) release(former);
          former = stage;
        }
        multiply_from(kPieces);
        any_waits = false;
      } else {
        send_all_waiting();
        multiply_from(0);
      }
      if (kWhat == Grouped::Depth && whole < steps) {
        barrier_wait(&full[stage], parity);
        std::byte* const a = tiles_a + stage * kBytesA + half * kHalfBytes;
        std::byte* const b = tiles_b + stage * kBytesB;
        const uint4 zero = {0, 0, 0, 0};
        for (int i = (items.rows - whole * kTileK) * 8 + thread; i < kTileK * 8; i += 128) {
          reinterpret_cast<uint4*>(a)[i] = zero;
#pragma unroll
          for (int box = 0; box < kN / 64; ++box) reinterpret_cast<uint4*>(b + box * kHalfBytes)[i] = zero;
        }
        fence_async_proxy();
        named_barrier(1 + half, 128);
        multiply();
        wgmma_wait<0>();
        release(stage);
        advance();
      }
      wgmma_pin(sum);

      const int n0 = first_column(), m0 = first_row() + half * 64;
      if (n0 >= shape.n) continue;
      if (kWhat == Grouped::Depth && shape.accumulate && steps == 0) continue;
      const int valid = kWhat == Grouped::Depth ? 64 : min(64, tile_rows - half * 64);
      if constexpr (kWaits) {
#pragma unroll
        for (int i = 0; i < kN / 4; ++i) {
          const __nv_bfloat162 two = __floats2bfloat162_rn(sum[2 * i], sum[2 * i + 1]);
          waiting[i] = *reinterpret_cast<const uint32_t*>(&two);
        }
        to_column = n0, to_row = kWhat == Grouped::Depth ? m0 : items.row_begin + m0, to_group = items.group;
        any_waits = valid == 64;
        if (any_waits) continue;
        // The group ends inside this half: row by row. Nothing is committed here, so no buffer may still be read.
        if (thread == 0) store_wait_read<0>();
#pragma unroll
        for (int piece = 0; piece < kPieces; ++piece) {
          const std::byte* const out = stage_waiting(piece);
          const int column = n0 + piece * kPiece;
          for (int i = thread; i < valid * 8; i += 128) {
            const int row = i / 8, chunk = i % 8;
            if (column + chunk * 8 < shape.n)
              *reinterpret_cast<uint4*>(shape.out + static_cast<int64_t>(to_row + row) * shape.n + column +
                                        chunk * 8) =
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
          send(out, n0 + piece * kPiece, m0, items.group);
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
