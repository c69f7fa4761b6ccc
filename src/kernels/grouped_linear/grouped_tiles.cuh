// Tiles of products of groups of rows (grouped_gemm.cuh, scaled_linear/scaled_gemm.cuh): which there are, who computes
// them and in which order, and the thread that loads their operands.
//
// A block computes tiles of 128 by kN with two warpgroups; a third drives the copy engine, kStages deep. What
// limits such a kernel is what L2 can deliver, so two blocks form a cluster, take neighbouring tiles, and each
// loads half of what they share for both: two tiles of one column share `b`, the larger part; where a group has
// an odd number of tiles, its last row of tiles goes in pairs that share `a`.
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

#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/types.cuh"

namespace pleat::kernels::cuda {

enum class Grouped { Rows, RowsAcross, Depth };

struct GroupedShape {
  const int32_t* offsets;  // [num_groups + 1]; null: one group of `rows` rows
  int num_groups;
  int m, n, k;  // m: Depth only; k: not for Depth
  void* out;    // Rows: written by ordinary stores where a tile is cut
  int accumulate;
  int rows;
};

constexpr int kTileM = 128;
constexpr int kHalfBytes = 64 * 128;  // 64 rows (or columns) of one operand, a step deep: 128 bytes of each
constexpr int kTileQueue = 4, kBarrierBytes = 384;  // the queue, and all barriers with it
constexpr int kMostSorted = 256;  // groups that may be dealt by size; more are dealt as they come

// What a block can have on devices of compute capability 9.0; what is refused beyond is known without one.
constexpr int kBlockShared = 227 * 1024;

// A form of the product, and what lies in shared memory. kCodes: operands are codes of 8 bits with the depth inside,
// groups of Depth begin at multiples of a step, and in Depth the scales of a step come with it.
template <Grouped kWhat_, int kN_, bool kCodes_, int kStages_, int kStagingBytes_>
struct GroupedForm {
  static constexpr Grouped kWhat = kWhat_;
  static constexpr bool kCodes = kCodes_, kDepth = kWhat == Grouped::Depth;
  static constexpr int kN = kN_, kStages = kStages_, kStagingBytes = kStagingBytes_;
  static constexpr int kStep = kCodes ? 128 : 64;  // of depth: 128 bytes
  static constexpr bool kAcrossA = kDepth && !kCodes, kAcrossB = kWhat != Grouped::Rows && !kCodes;
  static constexpr bool kCuts = kDepth && !kCodes;  // the last step of a group may be cut
  static constexpr int kBytesA = 2 * kHalfBytes, kBytesB = kN / 64 * kHalfBytes;
  static constexpr int kBytesScale = kDepth && kCodes ? (kN + kTileM) * 4 : 0;  // columns', rows'
  static constexpr int kFullArrivals = kCuts ? 32 : 1;  // a warp's where a stage is cut

  static constexpr int shared_bytes(int num_groups) {
    return 1024 + kStages * (kBytesA + kBytesB + kBytesScale) + kStagingBytes + kBarrierBytes +
           (num_groups + 1) * 4 + (num_groups <= kMostSorted ? num_groups * 2 : 0);
  }
};

template <class Form>
struct GroupedShared {
  std::byte *tiles_a, *tiles_b, *scales, *staging;
  uint64_t *full, *empty;
  uint64_t* landed;  // of stages that are cut: they are full when the rest is zero
  uint64_t *told, *heard;
  struct GroupedTile* queue;
  int32_t* offsets;

  __device__ explicit GroupedShared(std::byte* raw);
};

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
  int depth;               // Depth: where it begins
  int unused;
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

  __device__ static GroupedItems of(const int32_t* offsets, const uint16_t* order,
                                    const GroupedShape& shape) {
    return {offsets,
            order,
            shape.num_groups,
            shape.m,
            (shape.n + kN - 1) / kN,
            static_cast<int>(blockIdx.x / 2),
            static_cast<int>(gridDim.x / 2)};
  }
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

template <class Form>
__device__ inline GroupedShared<Form>::GroupedShared(std::byte* raw) {
  constexpr int kStages = Form::kStages;
  tiles_a = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(raw) + 1023) / 1024 * 1024);
  tiles_b = tiles_a + kStages * Form::kBytesA;
  staging = tiles_b + kStages * Form::kBytesB;
  scales = staging + Form::kStagingBytes;
  full = reinterpret_cast<uint64_t*>(scales + kStages * Form::kBytesScale);
  empty = full + kStages;
  landed = empty + kStages;
  told = landed + kStages;
  heard = told + kTileQueue;
  queue = reinterpret_cast<GroupedTile*>(reinterpret_cast<std::byte*>(full) + kBarrierBytes) - kTileQueue;
  static_assert((3 * kStages + 2 * kTileQueue) * 8 + kTileQueue * sizeof(GroupedTile) <= kBarrierBytes);
  offsets = reinterpret_cast<int32_t*>(queue + kTileQueue);
}

// Where groups begin when each begins at a multiple of `step`, in place; by a warp.
__device__ inline void align_groups(int32_t* offsets, int num_groups, int step) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int base = 0, former_end = offsets[0];  // before the groups this turn looks at
  for (int first = 0; first < num_groups; first += 32) {
    const int g = first + lane, end = offsets[min(g, num_groups - 1) + 1];
    const int up = __shfl_up_sync(0xffffffffu, end, 1), begin = lane == 0 ? former_end : up;
    int sum = g < num_groups ? (end - begin + step - 1) / step * step : 0;
    for (int by = 1; by < 32; by *= 2) {
      const int before = __shfl_up_sync(0xffffffffu, sum, by);
      if (lane >= by) sum += before;
    }
    former_end = __shfl_sync(0xffffffffu, end, 31);
    if (g < num_groups) offsets[g + 1] = base + sum;
    base += __shfl_sync(0xffffffffu, sum, 31);
    __syncwarp();
  }
  if (lane == 0) offsets[0] = 0;
}

// By all 384 threads, ahead of everything else: offsets and barriers. Gives the order in which groups of Depth are
// dealt, null: as they come.
template <class Form>
__device__ inline uint16_t* open_tiles(const GroupedShared<Form>& shared, const GroupedShape& shape) {
  // Groups of nearly as many items as there are clusters, or more, give every cluster about the same as they
  // come, and their rows are in L2 for all of them.
  const int items_of_group =
      (shape.m + kTileM - 1) / kTileM * ((shape.n + Form::kN - 1) / Form::kN) / 2;  // rounding aside
  uint16_t* const order =
      Form::kDepth && shape.num_groups <= kMostSorted && 8 * items_of_group <= 3 * static_cast<int>(gridDim.x)
          ? reinterpret_cast<uint16_t*>(shared.offsets + shape.num_groups + 1)
          : nullptr;
  for (int i = static_cast<int>(threadIdx.x); i <= shape.num_groups; i += 384)
    shared.offsets[i] = !Form::kCodes || shape.offsets ? shape.offsets[i] : i * shape.rows;
  if (threadIdx.x == 0) {
    for (int s = 0; s < Form::kStages; ++s) {
      barrier_init(&shared.full[s], Form::kFullArrivals);
      barrier_init(&shared.empty[s], 16);  // every computing warp of both blocks
      barrier_init(&shared.landed[s], 1);
    }
    for (int i = 0; i < kTileQueue; ++i) {
      barrier_init(&shared.told[i], 1);
      barrier_init(&shared.heard[i], Form::kCuts ? 9 : 8);  // every computing warp, and the one that cuts
    }
    barrier_init_fence();
  }
  __syncthreads();
  if constexpr (Form::kCodes && Form::kDepth) {
    if (threadIdx.x < 32) align_groups(shared.offsets, shape.num_groups, Form::kStep);
    __syncthreads();
  }
  if (order) sort_groups(shared.offsets, shape.num_groups, order);
  cluster_sync();
  return order;
}

// What one thread does: works out the tiles, tells the others, and loads both operands of every step.
template <class Form>
__device__ inline void load_tiles(const GroupedShared<Form>& shared,
                                  GroupedItems<Form::kWhat, Form::kN> items, const CUtensorMap& map_a,
                                  const CUtensorMap& map_b, const CUtensorMap* scales_a,
                                  const CUtensorMap* scales_b, const GroupedShape& shape, int rank) {
  constexpr bool kDepth = Form::kDepth;
  constexpr int kStep = Form::kStep, kN = Form::kN;
  int stage = 0, place = 0;  // in the ring of stages, in the queue
  uint32_t parity = 0, place_parity = 0;
  for (bool more = items.next();; more = items.next()) {
    const int n0 = (items.n + (items.below ? 0 : rank)) * kN;
    const int m0 = (items.m + (items.below ? rank : 0)) * kTileM,
              steps = ((kDepth ? items.rows : shape.k) + kStep - 1) / kStep;
    barrier_wait(&shared.heard[place], place_parity ^ 1);
    shared.queue[place] = {more ? steps : -1,
                           kDepth ? items.rows % kStep : 0,
                           (kDepth ? shape.m : items.rows) - m0,
                           n0,
                           m0 + (kDepth ? 0 : items.row_begin),
                           items.group,
                           kDepth ? items.row_begin : 0,
                           0};
    barrier_arrive(&shared.told[place]);
    if (++place == kTileQueue) place = 0, place_parity ^= 1;
    if (!more) break;
    for (int k = 0; k < steps; ++k) {
      barrier_wait(&shared.empty[stage], parity ^ 1);
      const bool cut = Form::kCuts && (k + 1) * kStep > items.rows;
      uint64_t* const arrival = cut ? &shared.landed[stage] : &shared.full[stage];
      if (Form::kFullArrivals > 1 && !cut) barrier_arrive_times(arrival, Form::kFullArrivals - 1);
      barrier_arrive_expect(arrival, Form::kBytesA + Form::kBytesB + Form::kBytesScale);
      std::byte* const a = shared.tiles_a + stage * Form::kBytesA;
      std::byte* const b = shared.tiles_b + stage * Form::kBytesB;
      const int depth = k * kStep + (kDepth ? items.row_begin : 0);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = m0 + h * 64 + (kDepth ? 0 : items.row_begin);
        const int x = Form::kAcrossA ? row : depth, y = Form::kAcrossA ? depth : row;
        if (items.below)
          load_2d(a + h * kHalfBytes, &map_a, arrival, x, y);
        else if (h == rank)
          load_2d_multicast(a + h * kHalfBytes, &map_a, arrival, x, y, 3);
      }
      constexpr int kBoxes = Form::kAcrossB ? kN / 64 : 2;  // of b
#pragma unroll
      for (int i = 0; i < kBoxes; ++i) {
        std::byte* const to = b + i * (Form::kBytesB / kBoxes);
        const int column = n0 + i * (kN / kBoxes), x = Form::kAcrossB ? column : depth,
                  y = Form::kAcrossB ? depth : column;
        if (items.below && i % 2 != rank) continue;
        const uint16_t blocks = items.below ? 3 : 1 << rank;
        if constexpr (kDepth)
          load_2d_multicast(to, &map_b, arrival, x, y, blocks);
        else
          load_3d_multicast(to, &map_b, arrival, x, y, items.group, blocks);
      }
      if constexpr (Form::kBytesScale > 0) {
        std::byte* const to = shared.scales + stage * Form::kBytesScale;
        load_2d(to, scales_b, arrival, n0, depth / kStep);
        load_2d(to + kN * 4, scales_a, arrival, m0, depth / kStep);
      }
      if (++stage == Form::kStages) stage = 0, parity ^= 1;
    }
  }
}

// The queue as a warp that computes reads it.
template <class Form>
struct TileReader {
  const GroupedShared<Form>& shared;
  int place = 0;
  uint32_t parity = 0;

  __device__ GroupedTile next(int lane) {  // for all threads of a warp
    barrier_wait(&shared.told[place], parity);
    __syncwarp();  // all have seen it before one lane says so
    GroupedTile tile{};
    if (lane == 0) {
      tile = shared.queue[place];
      barrier_arrive(&shared.heard[place]);
    }
    if (++place == kTileQueue) place = 0, parity ^= 1;
    const auto from_first = [](int x) { return __shfl_sync(0xffffffffu, x, 0); };
    return GroupedTile{
        from_first(tile.steps), from_first(tile.rest),  from_first(tile.rows),  from_first(tile.column),
        from_first(tile.row),   from_first(tile.group), from_first(tile.depth), 0};
  }
};

}  // namespace pleat::kernels::cuda
