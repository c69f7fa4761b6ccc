// Products of groups of rows with the matrix of their group, on the tensor cores of Hopper: one persistent
// kernel, group sizes read on the device, empty groups fine, nothing padded in memory.
//
//   Rows        y[r, n] = sum over k of a[r, k] b[e, n, k]   for rows r of group e    (b: depth inside)
//   RowsAcross  y[r, n] = sum over k of a[r, k] b[e, k, n]                             (b: depth outside)
//   Depth       y[e, m, n] (+)= sum over rows r of group e of a[r, m] b[r, n]
//
// A block computes tiles of 128 by kN with two warpgroups of 64 rows each; a third drives the copy engine,
// kStages deep. What limits such a kernel is what L2 can deliver, so two blocks form a cluster, take
// neighbouring tiles, and each loads half of what they share for both: two tiles of one column share `b`, the
// larger part; where a group has an odd number of tiles, its last row of tiles goes in pairs that share `a`.
// Finished tiles leave through shared memory by bulk stores, pieces of 128 bytes' width in turn, while the
// next tile is already being computed.
//
// A tile of Rows that reaches past its group also computes rows of the next; those are not stored. In Depth
// whatever lies behind the end of a group (it may be NaN) must not count: the last products are left out, and
// in the one that is cut the rows behind the end are zero. A warp beside the loading one sets them to zero in
// shared memory as soon as they have come, stages ahead of the products.
//
// Which tile comes next only the loading thread works out, ahead of the others, who read it from a queue: it
// takes divisions and a walk over the groups, at a moment when the tensor cores would wait for it.
//
// Items are dealt to clusters round robin, rows fastest inside a group: blocks that run at the same time
// share what they read in L2. In Depth an item takes as long as its group is large. Where a group is few
// items, groups are therefore dealt by size, or some clusters would get more of the large ones; and a large
// one is followed by a small one, whose sums leave while products of the next are computed. The order of
// every sum follows from the shapes and the group sizes alone.
#pragma once

#include "kernels/cuda/types.cuh"
#include "kernels/cuda/wgmma.cuh"
#include "program/limits.h"

namespace pleat::kernels::cuda {

enum class Grouped { Rows, RowsAcross, Depth };

struct GroupedShape {
  const int32_t* offsets;  // [num_groups + 1]
  int num_groups;
  int m, n, k;  // m: Depth only; k: not for Depth
  bf16* out;    // Rows: written by ordinary stores where a tile is cut
  int accumulate;
};

constexpr int kTileM = 128, kTileK = 64, kSlices = kTileK / 16;  // slices: products of a step
constexpr int kHalfBytes = 64 * kTileK * 2;  // 64 rows (or columns) of one operand, one step deep
constexpr int kStagingBytes = 2 * 2 * 8192;  // two pieces of 64 rows by 128 bytes for each warpgroup

template <int kN>
constexpr int grouped_stages() {
  return kN == 256 ? 4 : 6;
}
constexpr int kTileQueue = 4, kBarrierBytes = 384;  // the queue, and all barriers with it

constexpr int kMostSorted = 256;  // groups that may be dealt by size; more are dealt as they come

template <int kN>
constexpr int grouped_shared_bytes(int num_groups) {
  return 1024 + grouped_stages<kN>() * (2 * kHalfBytes + kN / 64 * kHalfBytes) + kStagingBytes +
         kBarrierBytes + (num_groups + 1) * 4 + (num_groups <= kMostSorted ? num_groups * 2 : 0);
}

// What a block can have on devices of compute capability 9.0; what is refused beyond is known without one.
constexpr int kBlockShared = 227 * 1024;
static_assert(grouped_shared_bytes<128>(program::kMaxGpuExperts) <= kBlockShared &&
              grouped_shared_bytes<256>(program::kMaxGpuExperts) <= kBlockShared &&
              grouped_shared_bytes<256>(program::kMaxGpuExperts + 1) > kBlockShared);

// The groups, the largest first, of equal ones the first. By all threads, at least as many as groups; it is
// there after the next barrier.
__device__ inline void sort_groups(const int32_t* offsets, int num_groups, uint16_t* order) {
  const int g = static_cast<int>(threadIdx.x);
  if (g >= num_groups) return;
  const int size = offsets[g + 1] - offsets[g];
  int before = 0, begin = offsets[0];
#pragma unroll 8
  for (int i = 0; i < num_groups; ++i) {
    const int end = offsets[i + 1], other = end - begin;
    before += other > size || (other == size && i < g);
    begin = end;
  }
  order[before] = static_cast<uint16_t>(g);
}

// A tile as those see it who compute it.
struct alignas(16) GroupedTile {
  int steps;               // of depth; negative: there are no more tiles
  int rest;                // Depth: rows of the last step if it is cut, else 0
  int rows;                // of the output from the tile's first on, may be more than a tile's
  int column, row, group;  // of the output
  int unused[2];
};

// Walks the items of one cluster; an item is a pair of tiles.
template <Grouped kWhat, int kN>
struct GroupedItems {
  const int32_t* offsets;
  const uint16_t* order;  // of Depth, the groups by size; null: they are dealt as they come
  int num_groups, m_size, n_tiles;
  int cluster, num_clusters;
  int turn = 0;      // items of this cluster so far
  int64_t base = 0;  // of Rows, items of the groups before
  int group = 0;
  // The present item: its first tile, and whether the second lies below it or beside it.
  int row_begin = 0, rows = 0, m = 0, n = 0;
  bool below = false;

  __device__ static int height_of(int size) { return (size + kTileM - 1) / kTileM; }
  __device__ int64_t items_of(int height) const {
    return static_cast<int64_t>(height / 2) * n_tiles + height % 2 * ((n_tiles + 1) / 2);
  }
  __device__ void enter(int g) {
    group = g;
    row_begin = offsets[g];
    rows = offsets[g + 1] - row_begin;
  }
  // Item `inside` of the group, whose tiles are `height` high.
  __device__ void take(int inside, int height) {
    const int pairs = height / 2, tall = pairs * n_tiles;
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
      n = (inside - tall) * 2;
    }
  }

  // False: there are no more.
  __device__ bool next() {
    if constexpr (kWhat == Grouped::Depth) {  // as many items in every group
      const int height = height_of(m_size), items = static_cast<int>(items_of(height)),
                all = items * num_groups, turns = (all + num_clusters - 1) / num_clusters;
      while (turn < turns) {
        const int round = !order ? turn : turn % 2 == 0 ? turn / 2 : turns - 1 - turn / 2;
        // Rounds go to and fro over the clusters: of a round's items, in order of size, nobody gets the first
        // always.
        const int index =
            round * num_clusters + (order && round % 2 == 1 ? num_clusters - 1 - cluster : cluster);
        ++turn;
        if (index >= all) continue;  // in the last round there may be none for this cluster
        const int place = index / items;
        enter(order ? order[place] : place);
        take(index - place * items, height);
        return true;
      }
    } else {
      const int64_t index = static_cast<int64_t>(turn++) * num_clusters + cluster;
      for (; group < num_groups; ++group) {
        enter(group);
        const int height = height_of(rows);
        const int64_t items = items_of(height);
        if (index < base + items) {
          take(static_cast<int>(index - base), height);
          return true;
        }
        base += items;
      }
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
  constexpr int kFullArrivals = kWhat == Grouped::Depth ? 32 : 1;  // a warp's where a stage is cut
  constexpr bool kAcrossA = kWhat == Grouped::Depth, kAcrossB = kWhat != Grouped::Rows;
  extern __shared__ std::byte raw[];
  std::byte* const shared =
      reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(raw) + 1023) / 1024 * 1024);
  std::byte* const tiles_a = shared;
  std::byte* const tiles_b = tiles_a + kStages * kBytesA;
  std::byte* const staging = tiles_b + kStages * kBytesB;
  uint64_t* const full = reinterpret_cast<uint64_t*>(staging + kStagingBytes);
  uint64_t* const empty = full + kStages;
  uint64_t* const landed = empty + kStages;  // of stages that are cut: they are full when the rest is zero
  uint64_t* const told = landed + kStages;
  uint64_t* const heard = told + kTileQueue;
  GroupedTile* const queue =
      reinterpret_cast<GroupedTile*>(staging + kStagingBytes + kBarrierBytes) - kTileQueue;
  static_assert((3 * kStages + 2 * kTileQueue) * 8 + kTileQueue * sizeof(GroupedTile) <= kBarrierBytes);
  int32_t* const offsets = reinterpret_cast<int32_t*>(queue + kTileQueue);
  // Groups of nearly as many items as there are clusters, or more, give every cluster about the same as they
  // come, and their rows are in L2 for all of them.
  const int items_of_group =
      (shape.m + kTileM - 1) / kTileM * ((shape.n + kN - 1) / kN) / 2;  // rounding aside
  uint16_t* const order = kWhat == Grouped::Depth && shape.num_groups <= kMostSorted &&
                                  8 * items_of_group <= 3 * static_cast<int>(gridDim.x)
                              ? reinterpret_cast<uint16_t*>(offsets + shape.num_groups + 1)
                              : nullptr;

  const int warp = warp_of_block(), lane = static_cast<int>(threadIdx.x) % 32;
  const int rank = static_cast<int>(cluster_rank());
  for (int i = static_cast<int>(threadIdx.x); i <= shape.num_groups; i += 384) offsets[i] = shape.offsets[i];
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      barrier_init(&full[s], kFullArrivals);
      barrier_init(&empty[s], 16);  // every computing warp of both blocks
      barrier_init(&landed[s], 1);
    }
    for (int i = 0; i < kTileQueue; ++i) {
      barrier_init(&told[i], 1);
      barrier_init(&heard[i],
                   kWhat == Grouped::Depth ? 9 : 8);  // every computing warp, and the one that cuts
    }
    barrier_init_fence();
    prefetch_map(&map_a);
    prefetch_map(&map_b);
    prefetch_map(&map_out);
  }
  __syncthreads();
  if (order) sort_groups(offsets, shape.num_groups, order);
  cluster_sync();

  int stage = 0, place = 0;  // in the ring of stages, in the queue
  uint32_t parity = 0, place_parity = 0;
  const auto advance = [&] {
    if (++stage == kStages) stage = 0, parity ^= 1;
  };
  const auto advance_place = [&] {
    if (++place == kTileQueue) place = 0, place_parity ^= 1;
  };

  const auto next_tile = [&] {  // for all threads of a warp
    barrier_wait(&told[place], place_parity);
    __syncwarp();  // all have seen it before one lane says so
    GroupedTile tile{};
    if (lane == 0) {
      tile = queue[place];
      barrier_arrive(&heard[place]);
    }
    advance_place();
    const auto from_first = [](int x) { return __shfl_sync(0xffffffffu, x, 0); };
    return GroupedTile{from_first(tile.steps),  from_first(tile.rest), from_first(tile.rows),
                       from_first(tile.column), from_first(tile.row),  from_first(tile.group)};
  };

  if (warp >= 8) {  // the loading warpgroup: one thread loads, in Depth a warp cuts
    give_registers<56>();
    if (warp == 8 && lane == 0) {
      GroupedItems<kWhat, kN> items{offsets,
                                    order,
                                    shape.num_groups,
                                    shape.m,
                                    (shape.n + kN - 1) / kN,
                                    static_cast<int>(blockIdx.x / 2),
                                    static_cast<int>(gridDim.x / 2)};
      for (bool more = items.next();; more = items.next()) {
        constexpr bool kDepth = kWhat == Grouped::Depth;
        const int n0 = (items.n + (items.below ? 0 : rank)) * kN;
        const int m0 = (items.m + (items.below ? rank : 0)) * kTileM,
                  steps = ((kDepth ? items.rows : shape.k) + kTileK - 1) / kTileK;
        barrier_wait(&heard[place], place_parity ^ 1);
        queue[place] = {more ? steps : -1,
                        kDepth ? items.rows % kTileK : 0,
                        (kDepth ? shape.m : items.rows) - m0,
                        n0,
                        m0 + (kDepth ? 0 : items.row_begin),
                        items.group,
                        {}};
        barrier_arrive(&told[place]);
        advance_place();
        if (!more) break;
        for (int k = 0; k < steps; ++k, advance()) {
          barrier_wait(&empty[stage], parity ^ 1);
          const bool cut = kWhat == Grouped::Depth && (k + 1) * kTileK > items.rows;
          uint64_t* const arrival = cut ? &landed[stage] : &full[stage];
          if (kFullArrivals > 1 && !cut) barrier_arrive_times(arrival, kFullArrivals - 1);
          barrier_arrive_expect(arrival, kBytesA + kBytesB);
          std::byte* const a = tiles_a + stage * kBytesA;
          std::byte* const b = tiles_b + stage * kBytesB;
          const int depth = k * kTileK + (kWhat == Grouped::Depth ? items.row_begin : 0);
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const int row = m0 + h * 64 + (kWhat == Grouped::Depth ? 0 : items.row_begin);
            const int x = kAcrossA ? row : depth, y = kAcrossA ? depth : row;
            if (items.below)
              load_2d(a + h * kHalfBytes, &map_a, arrival, x, y);
            else if (h == rank)
              load_2d_multicast(a + h * kHalfBytes, &map_a, arrival, x, y, 3);
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
              load_2d_multicast(to, &map_b, arrival, x, y, blocks);
            else
              load_3d_multicast(to, &map_b, arrival, x, y, items.group, blocks);
          }
        }
      }
    }
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
    std::byte* const pieces = staging + half * 2 * 8192;
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
