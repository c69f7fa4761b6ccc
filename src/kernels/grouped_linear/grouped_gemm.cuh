// Products of groups of rows with the matrix of their group, on the tensor cores of Hopper: one persistent
// kernel, group sizes read on the device, empty groups fine, nothing padded in memory.
//
//   Rows        y[r, n] = sum over k of a[r, k] b[e, n, k]   for rows r of group e    (b: depth inside)
//   RowsAcross  y[r, n] = sum over k of a[r, k] b[e, k, n]                             (b: depth outside)
//   Depth       y[e, m, n] (+)= sum over rows r of group e of a[r, m] b[r, n]
//
// A block computes tiles of 128 by kN with two warpgroups of 64 rows each; a third only drives the copy
// engine, kStages deep. Two blocks form a cluster: they share the rows of `a`, each loads half of them for
// both, and take neighbouring columns. Finished tiles leave through shared memory by bulk stores while the
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
  int m, n, k;      // m: Depth only; k: not for Depth
  bf16* out;        // Rows: also written by ordinary stores where a tile is cut
  float* out_wide;  // Depth with float output: instead of bulk stores
  int accumulate;
};

constexpr int kTileM = 128, kTileK = 64;
constexpr int kHalfBytes = 64 * kTileK * 2;  // 64 rows (or columns) of one operand, one step deep

template <int kN>
constexpr int grouped_stages() {
  return kN == 256 ? 3 : kN == 192 ? 4 : 5;
}
template <int kN>
constexpr int grouped_shared_bytes(int num_groups) {
  return 1024 + grouped_stages<kN>() * (2 * kHalfBytes + kN / 64 * kHalfBytes) + 2 * 64 * kN * 2 + 256 +
         (num_groups + 1) * 4;
}

// Walks the items of one cluster.
template <Grouped kWhat, int kN>
struct GroupedItems {
  const int32_t* offsets;
  int num_groups, m_tiles, n_pairs;
  int64_t index, base = 0;
  int group = 0;
  // The present item.
  int row_begin = 0, rows = 0, m = 0, n_pair = 0;

  __device__ bool find(int64_t step) {
    index += step;
    while (group < num_groups) {
      row_begin = offsets[group];
      rows = offsets[group + 1] - row_begin;
      const int tiles = kWhat == Grouped::Depth ? m_tiles : (rows + kTileM - 1) / kTileM;
      const int64_t items = static_cast<int64_t>(tiles) * n_pairs;
      if (index < base + items) {
        // Bands of 16 tiles of rows, so that the matrix of a large group is not read once per tile of rows.
        const int inside = static_cast<int>(index - base);
        const int band = inside / (16 * n_pairs), left = inside - band * 16 * n_pairs;
        const int height = min(16, tiles - band * 16);
        n_pair = left / height;
        m = band * 16 + left - n_pair * height;
        return true;
      }
      base += items;
      ++group;
    }
    return false;
  }
};

template <Grouped kWhat, int kN>
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
  uint64_t* const full = reinterpret_cast<uint64_t*>(staging + 2 * 64 * kN * 2);
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

  GroupedItems<kWhat, kN> items{offsets, shape.num_groups, (shape.m + kTileM - 1) / kTileM,
                                ((shape.n + kN - 1) / kN + 1) / 2, static_cast<int64_t>(blockIdx.x / 2)};
  const int64_t stride = gridDim.x / 2;
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
        const int n0 = (items.n_pair * 2 + rank) * kN, m0 = items.m * kTileM + rank * 64;
        for (int k = 0, steps = steps_of(); k < steps; ++k, advance()) {
          barrier_wait_cluster(&empty[stage], parity ^ 1);
          barrier_arrive_expect(&full[stage], kBytesA + kBytesB);
          std::byte* const a = tiles_a + stage * kBytesA + rank * kHalfBytes;
          std::byte* const b = tiles_b + stage * kBytesB;
          if constexpr (kAcrossA)
            load_2d_multicast(a, &map_a, &full[stage], m0, items.row_begin + k * kTileK, 3);
          else
            load_2d_multicast(a, &map_a, &full[stage], k * kTileK, items.row_begin + m0, 3);
          if constexpr (kWhat == Grouped::Rows) {
            load_3d(b, &map_b, &full[stage], k * kTileK, n0, items.group);
          } else {
#pragma unroll
            for (int i = 0; i < kN / 64; ++i)
              if constexpr (kWhat == Grouped::RowsAcross)
                load_3d(b + i * kHalfBytes, &map_b, &full[stage], n0 + i * 64, k * kTileK, items.group);
              else
                load_2d(b + i * kHalfBytes, &map_b, &full[stage], n0 + i * 64, items.row_begin + k * kTileK);
          }
        }
      }
    }
    __syncwarp();
  } else {
    take_registers<232>();
    const int half = warp / 4, thread = static_cast<int>(threadIdx.x) % 128;
    std::byte* const out = staging + half * 64 * kN * 2;
    float sum[kN / 2];
    for (bool more = items.find(0); more; more = items.find(stride)) {
      const int steps = steps_of();
      const int tile_rows =
          kWhat == Grouped::Depth ? shape.m - items.m * kTileM : items.rows - items.m * kTileM;
      const bool idle = tile_rows <= half * 64;  // nothing of this half will be stored
      if (idle) {
        for (int k = 0; k < steps; ++k, advance()) {
          barrier_wait(&full[stage], parity);
          if (lane < 2) barrier_arrive_at(&empty[stage], lane);
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
      // No branch may lie between products in flight, so the step that is cut (Depth) comes after the others.
      const int whole = kWhat == Grouped::Depth ? items.rows / kTileK : steps;
      int former = 0;
      for (int k = 0; k < whole; ++k, advance()) {
        barrier_wait(&full[stage], parity);
        multiply();
        wgmma_wait<1>();
        // The former step's products are done: its stage may be loaded again, in both blocks.
        if (k > 0 && lane < 2) barrier_arrive_at(&empty[former], lane);
        former = stage;
      }
      wgmma_wait<0>();
      if (whole > 0 && lane < 2) barrier_arrive_at(&empty[former], lane);
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
        if (lane < 2) barrier_arrive_at(&empty[stage], lane);
        advance();
      }
      wgmma_pin(sum);

      const int n0 = (items.n_pair * 2 + rank) * kN, m0 = items.m * kTileM + half * 64;
      if (n0 >= shape.n) continue;
      if (kWhat == Grouped::Depth && shape.accumulate && steps == 0) continue;
      if (kWhat == Grouped::Depth && shape.out_wide) {
        const int row = m0 + warp % 4 * 16 + lane / 4, column = n0 + lane % 4 * 2;
        float* const to = shape.out_wide + static_cast<int64_t>(items.group) * shape.m * shape.n;
#pragma unroll
        for (int j = 0; j < kN / 8; ++j)
#pragma unroll
          for (int lower = 0; lower < 2; ++lower) {
            const int r = row + lower * 8, c = column + j * 8;
            if (r >= shape.m || c >= shape.n) continue;
            float2* const at = reinterpret_cast<float2*>(to + static_cast<int64_t>(r) * shape.n + c);
            float2 value = {sum[4 * j + 2 * lower], sum[4 * j + 2 * lower + 1]};
            if (shape.accumulate) {
              const float2 old = *at;
              value.x += old.x, value.y += old.y;
            }
            *at = value;
          }
        continue;
      }
      if (thread == 0) store_wait_read();  // the former tile has left the staging memory
      named_barrier(1 + half, 128);
      const int staging_row = warp % 4 * 16 + lane % 8 + lane / 8 % 2 * 8;
      const uint32_t row_address = shared_address(out) + staging_row * 128;
#pragma unroll
      for (int j = 0; j < kN / 8; j += 2) {
        const auto pack = [&](int i) {
          const __nv_bfloat162 two = __floats2bfloat162_rn(sum[i], sum[i + 1]);
          return *reinterpret_cast<const uint32_t*>(&two);
        };
        const int chunk = j + lane / 16;  // of 8 columns; 8 chunks to a box of 64 columns
        store_tiles(row_address + chunk / 8 * 8192 + ((chunk % 8) ^ (staging_row % 8)) * 16, pack(4 * j),
                    pack(4 * j + 2), pack(4 * j + 4), pack(4 * j + 6));
      }
      fence_async_proxy();
      named_barrier(1 + half, 128);
      if (kWhat == Grouped::Depth || tile_rows >= half * 64 + 64) {
        if (thread == 0) {
#pragma unroll
          for (int box = 0; box < kN / 64; ++box) {
            if (kWhat != Grouped::Depth)
              store_2d(&map_out, out + box * 8192, n0 + box * 64, items.row_begin + m0);
            else if (shape.accumulate)
              add_3d(&map_out, out + box * 8192, n0 + box * 64, m0, items.group);
            else
              store_3d(&map_out, out + box * 8192, n0 + box * 64, m0, items.group);
          }
          store_commit();
        }
      } else {
        // The group ends inside this half: row by row.
        const int valid = tile_rows - half * 64;
        for (int i = thread; i < valid * (kN / 8); i += 128) {
          const int row = i / (kN / 8), chunk = i % (kN / 8);
          if (n0 + chunk * 8 < shape.n)
            *reinterpret_cast<uint4*>(shape.out + static_cast<int64_t>(items.row_begin + m0 + row) * shape.n +
                                      n0 + chunk * 8) =
                *reinterpret_cast<const uint4*>(out + chunk / 8 * 8192 + row * 128 +
                                                ((chunk % 8) ^ (row % 8)) * 16);
        }
        named_barrier(1 + half, 128);  // read before it is overwritten
      }
    }
    if (thread == 0) store_wait_read();
  }
  // No block leaves while its neighbour may still write to its shared memory or arrive at its barriers.
  __syncthreads();
  cluster_sync();
}

}  // namespace pleat::kernels::cuda
