// The gradient of long rows of logits, in place, through shared memory.
//
// A cluster of blocks stays on its multiprocessors and takes row after row. Every warp owns the
// same run of columns of all its rows, in `ring` rows of shared memory: it asks the copy engine for them
// `ring` rows ahead, finds their maximum and sum in one look and sends these to all blocks of the cluster.
// Then it looks at the next row or two, and only when those are sent turns the first into its gradient where
// it lies and hands it to the copy engine again: what the other warps found has come meanwhile. So the memory
// works on other rows while a row's exponentials are taken, nobody waits for a message, and two blocks share
// a multiprocessor, so that one works while the other waits for its slowest warp.
#pragma once

#include <algorithm>
#include <optional>

#include "kernels/cross_entropy/loss_rows.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/team.cuh"

namespace pleat::kernels::cuda {

constexpr int kRingWarps = 16, kRingThreads = 32 * kRingWarps, kRingBlocks = 2;  // blocks: per multiprocessor
constexpr int kMostRing = 4;                                                     // rows
// Half of a multiprocessor's shared memory, less what the block holds besides the rows.
constexpr int64_t kRingRoom = 102 * 1024;

// The parts of a row's warps, in every block of the cluster. Four rows take turns. A warp sends row k after
// it has those of row k - 2 from all warps; and each of them had read row k - 4's before it sent its own of
// row k - 2. So what lay in row k's place is read.
template <int kCluster>
struct RowGather {
  static constexpr int kParts = kCluster * kRingWarps, kTurns = 4;
  RowPart parts[kTurns][kParts];
  uint64_t landed[kTurns];

  // One thread, when the last phase of this turn is over; parts may have landed already.
  __device__ void expect(int turn) { barrier_arrive_expect(&landed[turn], sizeof parts[0]); }
  // All threads of a warp. All warps give the same `turn`.
  __device__ void send(int turn, int rank, int warp, const RowPart& part) {
    if (const int to = static_cast<int>(threadIdx.x) % 32; to < kCluster)
      store_at(&parts[turn][rank * kRingWarps + warp],
               static_cast<uint64_t>(__float_as_uint(part.label_logit)) << 32 | __float_as_uint(part.top),
               static_cast<uint64_t>(__double_as_longlong(part.sum)), &landed[turn], to);
  }
};

// The units of a warp: whole rounds of its lanes, so that its lanes do not part ways and warps do not share a
// line of memory where rows are whole lines. Some warps have a round more than others, the first of all
// blocks in turn, so that no block has many of them.
struct WarpUnits {
  static constexpr int kRound = 32;
  int first, count, place;  // in the row; in the block's part of it

  __device__ WarpUnits(int units, int warp, int rank, int cluster) {
    const int rounds = (units + kRound - 1) / kRound, warps = cluster * kRingWarps,
              own = warp * cluster + rank;
    const int each = rounds / warps, rest = rounds % warps;
    first = (own * each + min(own, rest)) * kRound;
    count = max(0, min((each + (own < rest ? 1 : 0)) * kRound, units - first));
    place = (warp * each + min(warp, (rest - rank + cluster - 1) / cluster)) * kRound;
  }
  // Of a block with the most.
  static int64_t most(int64_t units, int cluster) {
    const int64_t rounds = ceil_div(units, kRound), warps = cluster * kRingWarps;
    return (rounds / warps * kRingWarps + ceil_div(rounds % warps, cluster)) * kRound;
  }
};

// Calls f(from, units) for what a lane has of its warp's `count` units, two rounds at a time. Not more: the
// code of a kernel that has to stay in the instruction caches while warps are at different places of it.
template <class T, class F>
__device__ inline void for_warp_units(T* numbers, int count, F&& f) {
  constexpr int kRounds = 2, kRound = WarpUnits::kRound;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  T* from = numbers + lane * kWide<T>;
#pragma unroll 1
  for (; count >= kRounds * kRound; count -= kRounds * kRound, from += kRounds * kRound * kWide<T>)
    f(from, std::integral_constant<int, kRounds>{});
#pragma unroll 1
  for (; count > 0; count -= kRound, from += kRound * kWide<T>)
    if (lane < count) f(from, std::integral_constant<int, 1>{});
}

// Turns the rows' logits into their gradient and leaves their losses. share: units a block has room for in a
// slot.
template <class T, int kCluster>
__global__ void __launch_bounds__(kRingThreads, kRingBlocks)
    ring_gradient(LossArgs<T> p, int64_t rows, int share, int ring, const double* norm, double* row_loss) {
  using V = Wide<T>;
  using Gather = RowGather<kCluster>;
  extern __shared__ uint4 held[];  // [ring, share]
  __shared__ uint64_t arrived[kRingWarps][kMostRing];
  __shared__ Gather gather;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int rank = static_cast<int>(blockIdx.x) % kCluster;
  const WarpUnits mine(static_cast<int>(p.columns) / V::kSize, warp, rank, kCluster);
  const int count = mine.count, first_column = mine.first * V::kSize;
  const uint32_t bytes = static_cast<uint32_t>(count) * 16;
  const int64_t begin = blockIdx.x / kCluster, stride = gridDim.x / kCluster;
  const auto chunk_of = [&](int slot) { return held + slot * share + mine.place; };
  const auto in_memory = [&](int64_t row) { return p.logits + row * p.columns + first_column; };
  const auto mask_of = [&](int64_t row) { return row < rows ? static_cast<uint32_t>(p.mask[row]) : 0u; };

  // A row into a slot that is free; whether the row counts is remembered until it is looked at.
  uint32_t counted = 0;
  const auto fetch = [&](int64_t row, uint32_t mask, int slot) {
    const bool counts = mask != 0;
    counted = (counted & ~(1u << slot)) | static_cast<uint32_t>(counts) << slot;
    if (!counts || count == 0 || lane != 0) return;
    barrier_arrive_expect(&arrived[warp][slot], bytes);
    load_bulk(chunk_of(slot), in_memory(row), bytes, &arrived[warp][slot]);
  };
  if (lane == 0) {
#pragma unroll 1
    for (int slot = 0; slot < ring; ++slot) barrier_init(&arrived[warp][slot], 1);
    if (warp == 0)
      for (uint64_t& landed : gather.landed) barrier_init(&landed, 1);
    barrier_init_fence();
    fence_async_proxy();
  }
  __syncwarp();
#pragma unroll 1
  for (int slot = 0; slot < ring; ++slot) fetch(begin + slot * stride, mask_of(begin + slot * stride), slot);
  cluster_sync();  // all blocks are there, and their barriers

  int64_t ahead = begin + ring * stride;
  uint32_t ahead_mask = mask_of(ahead);  // asked for a row before it is needed
  const auto weight = static_cast<float>(*norm);
  uint32_t phases = 0, landed_phases = 0;  // of the barriers
  const auto next_slot = [&](int slot) { return slot + 1 == ring ? 0 : slot + 1; };
  const auto numbers_of = [&](int slot) { return reinterpret_cast<T*>(chunk_of(slot)); };
  // Where the row's label stands among this warp's numbers; not below `count` units: elsewhere.
  const auto label_of = [&](int64_t row) {
    return static_cast<unsigned>(p.labels[row]) - static_cast<unsigned>(first_column);
  };
  const auto is_here = [&](unsigned label) { return label < static_cast<unsigned>(count) * V::kSize; };

  int sending = 0, reading = 0, turn_of_loss = 0;  // turns of the gathering, of warps
  const auto look = [&](int64_t row, int slot) {
    if ((counted >> slot & 1) == 0) return;
    if (threadIdx.x == 0) gather.expect(sending);
    RowPart part{lowest(), 0.0f, 0.0};
    if (count > 0) {
      T* const numbers = numbers_of(slot);
      const unsigned label = label_of(row);
      barrier_wait(&arrived[warp][slot], phases >> slot & 1);
      phases ^= 1u << slot;
      OnlineSum<T> sum;
      for_warp_units(numbers, count, [&](T* from, auto units) {
        V chunk[units()];
#pragma unroll
        for (int i = 0; i < units(); ++i) chunk[i] = V::load(from + i * 32 * V::kSize);
        sum.take(chunk);
      });
      part = warp_part(sum);
      if (is_here(label)) part.label_logit = to_float(numbers[label]);
    }
    gather.send(sending, rank, warp, part);
    sending = (sending + 1) % Gather::kTurns;
  };
  const auto finish = [&](int64_t row, int slot) {
    const bool counts = counted >> slot & 1;
    T* const numbers = numbers_of(slot);
    const unsigned label = label_of(row);
    RowPart whole{};
    if (counts) {
      barrier_wait_cluster(&gather.landed[reading], landed_phases >> reading & 1);
      landed_phases ^= 1u << reading;
      whole = combine_parts<T, Gather::kParts>(gather.parts[reading]);
      reading = (reading + 1) % Gather::kTurns;
    }
    const float shift = shift_of(whole.top), scale = weight / static_cast<float>(whole.sum);
    for_warp_units(numbers, count, [&](T* from, auto units) {
#pragma unroll
      for (int i = 0; i < units(); ++i) {
        T* const at = from + i * 32 * V::kSize;
        V pack = V::zero();
        if (counts) {
          float a[V::kSize];
          V::load(at).get(a);
          to_softmax<T>(a, shift, scale);
          pack.set(a);
        }
        pack.store(at);
      }
    });
    // The lane that has just written the label's unit writes it once more: no unit has to ask for it.
    if (counts && is_here(label) && lane == static_cast<int>(label / V::kSize % 32))
      numbers[label] = from_float<T>(exp_of<T>(whole.label_logit - shift) * scale - weight);
    fence_async_proxy();
    __syncwarp();
    if (lane == 0 && count > 0) {
      store_bulk(in_memory(row), numbers, bytes);
      store_commit();
    }
    // Warps take turns at the loss: its logarithm is long, and all would wait for a warp that takes every
    // one.
    if (lane == 0 && warp * kCluster + rank == turn_of_loss)
      row_loss[row] = counts ? loss_of(p, row, whole) : 0.0;
    turn_of_loss = (turn_of_loss + 1) % (kCluster * kRingWarps);
  };

  // Rows are looked at two ahead of those that are finished; with two slots, one ahead: the next has not come
  // before this one is on its way out.
  const int lead = ring > 2 ? 2 : 1;
  int slot = ring - lead, next = 0;
#pragma unroll 1
  for (int64_t row = begin - lead * stride; row < rows; row += stride) {
    if (row >= begin) finish(row, slot);
    if (row + lead * stride < rows) look(row + lead * stride, next);
    if (row >= begin) {
      // Once the row is out of shared memory its slot takes another.
      if (lane == 0) store_wait_read<0>();
      fetch(ahead, ahead_mask, slot);
      ahead += stride;
      ahead_mask = mask_of(ahead);
    }
    slot = next_slot(slot);
    next = next_slot(next);
  }
  if (lane == 0) store_wait_read<0>();
  cluster_sync();  // nothing of this block is on its way to a block that has ended
}

struct RingLaunch {
  int cluster, share, ring;
  unsigned blocks;
  size_t bytes;
};

template <class T, class F>
void with_ring_kernel(int cluster, F&& f) {
  switch (cluster) {
    case 2:
      return f(ring_gradient<T, 2>);
    case 4:
      return f(ring_gradient<T, 4>);
    case 8:
      return f(ring_gradient<T, 8>);
    default:
      base::fail_with(base::ExitCode::Internal, "rows of logits in clusters of {}", cluster);
  }
}

// Calls f(cudaLaunchConfig_t) for the launch.
template <class F>
void with_ring_config(const RingLaunch& ring, CUstream_st* stream, F&& f) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(ring.blocks);
  config.blockDim = dim3(kRingThreads);
  config.dynamicSmemBytes = ring.bytes;
  config.stream = stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = static_cast<unsigned>(ring.cluster);
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
  f(config);
}

// The smallest cluster whose blocks hold two rows: the longer a warp's part of a row, the less its part in
// the gathering weighs. None when even the largest does not.
template <class T>
std::optional<RingLaunch> plan_ring(const LossArgs<T>& p, int64_t rows) {
  const int64_t units = p.columns / kWide<T>;
  for (const int cluster : {2, 4, 8}) {
    const int64_t share = WarpUnits::most(units, cluster), row_bytes = 16 * share;
    const int64_t ring = std::min<int64_t>(kMostRing, kRingRoom / row_bytes);
    if (ring < 2) continue;
    RingLaunch out{cluster, static_cast<int>(share), static_cast<int>(ring), static_cast<unsigned>(cluster),
                   static_cast<size_t>(ring * row_bytes)};
    int clusters = 0;
    with_ring_kernel<T>(cluster, [&](auto kernel) {
      // The most any width takes: a kernel has one limit, whatever is planned with it later.
      PLEAT_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      static_cast<int>(kRingRoom)));
      PLEAT_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                      cudaSharedmemCarveoutMaxShared));
      with_ring_config(out, nullptr, [&](const cudaLaunchConfig_t& config) {
        PLEAT_CUDA(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config));
      });
    });
    if (clusters == 0) continue;
    out.blocks = static_cast<unsigned>(std::min<int64_t>(rows, clusters) * cluster);
    return out;
  }
  return {};
}

template <class T>
void launch_ring(CUstream_st* stream, const RingLaunch& ring, const LossArgs<T>& p, int64_t rows,
                 const double* norm, double* row_loss) {
  with_ring_kernel<T>(ring.cluster, [&](auto kernel) {
    with_ring_config(ring, stream, [&](const cudaLaunchConfig_t& config) {
      PLEAT_CUDA(cudaLaunchKernelEx(&config, kernel, p, rows, ring.share, ring.ring, norm, row_loss));
    });
  });
}

}  // namespace pleat::kernels::cuda
