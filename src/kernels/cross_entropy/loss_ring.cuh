// Long rows of logits through shared memory.
//
// A block, or a cluster of blocks, stays on its multiprocessors and takes row after row. Every warp owns the
// same run of columns of all its rows, in `ring` rows of shared memory: it asks the copy engine for them
// `ring` rows ahead, finds their maximum and sum in one look, and after the one barrier of a row turns them
// into their gradient where they lie and hands them to the copy engine again. So the memory works on other
// rows while a row's exponentials are taken.
#pragma once

#include <cooperative_groups.h>

#include <algorithm>
#include <optional>

#include "kernels/cross_entropy/loss_rows.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/team.cuh"

namespace pleat::kernels::cuda {

constexpr int kRingWarps = 16, kRingThreads = 32 * kRingWarps;
constexpr int kMostRing = 4;  // rows

// What a warp found in its columns of a row.
struct RowPart {
  float top, label_logit;  // label_logit: 0 unless the label is among them
  double sum;              // of exp(x - top)
};

// Of parts [kCluster, kRingWarps]: `part(i)`. Every thread of the warp gets the same.
template <int kParts, class F>
__device__ inline RowSums combine_parts(F part) {
  const int lane = threadIdx.x % 32;
  float top = lowest(), label = 0;
#pragma unroll
  for (int i = lane; i < kParts; i += 32) {
    top = fmaxf(top, part(i).top);
    label += part(i).label_logit;
  }
  top = warp_max(top);
  double sum = 0;
#pragma unroll
  for (int i = lane; i < kParts; i += 32) {
    const RowPart p = part(i);
    sum += p.top == lowest() ? p.sum : p.sum * static_cast<double>(expf(p.top - top));
  }
  return {top, warp_sum(sum), warp_sum(label)};
}

// Maximum and sum of the warp's `count` units, in one look.
template <class T>
__device__ inline void look_at(const uint4* chunk, int count, int64_t first_column, int64_t real,
                               RowPart& out) {
  using V = Wide<T>;
  float top = lowest(), sum = 0;
#pragma unroll 2
  for (int u = threadIdx.x % 32; u < count; u += 32) {
    float a[V::kSize];
    load_or_lowest<T, V::kSize>(reinterpret_cast<const T*>(chunk), u * V::kSize, real - first_column).get(a);
    float most = top;
#pragma unroll
    for (int j = 0; j < V::kSize; ++j) most = fmaxf(most, a[j]);
    if (most > top) {
      sum *= exp_of<T>(top - most);
      top = most;
    }
    const float shift = top == lowest() ? 0.0f : top;
#pragma unroll
    for (int j = 0; j < V::kSize; ++j) sum += exp_of<T>(a[j] - shift);
  }
  out.top = warp_max(top);
  out.sum =
      warp_sum(static_cast<double>(sum) * (top == lowest() ? 1.0 : static_cast<double>(expf(top - out.top))));
}

// share: units of a warp, the last ones may have fewer. One block per multiprocessor.
template <class T, int kCluster, Ask kAsk>
__global__ void __launch_bounds__(kRingThreads, 1)
    ring_rows(LossArgs<T> p, int64_t rows, int share, int ring, const double* norm, double* out) {
  using V = Wide<T>;
  namespace cg = cooperative_groups;
  extern __shared__ uint4 held[];  // [ring, kRingWarps, share]
  __shared__ uint64_t arrived[kRingWarps][kMostRing];
  __shared__ RowPart parts[2][kRingWarps];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int rank = static_cast<int>(blockIdx.x) % kCluster;
  const int64_t units = p.columns / V::kSize,
                first_unit = static_cast<int64_t>(rank * kRingWarps + warp) * share;
  const int count = static_cast<int>(max(int64_t{0}, min(static_cast<int64_t>(share), units - first_unit)));
  const int64_t first_column = first_unit * V::kSize, first = p.first(), real = p.real();
  const uint32_t bytes = static_cast<uint32_t>(count) * 16;
  const int64_t stride = gridDim.x / kCluster;
  const auto chunk_of = [&](int slot) { return held + (slot * kRingWarps + warp) * share; };

  // Row `ahead` into a slot that is free; whether the row counts is remembered until it is looked at.
  uint32_t counted = 0;
  const auto fetch = [&](int64_t ahead, int slot) {
    const bool counts = ahead < rows && p.mask[ahead];
    counted = (counted & ~(1u << slot)) | static_cast<uint32_t>(counts) << slot;
    if (!counts || count == 0 || lane != 0) return;
    barrier_arrive_expect(&arrived[warp][slot], bytes);
    load_bulk(chunk_of(slot), p.logits + ahead * p.columns + first_column, bytes, &arrived[warp][slot]);
  };
  if (lane == 0) {
    for (int slot = 0; slot < ring; ++slot) barrier_init(&arrived[warp][slot], 1);
    barrier_init_fence();
    fence_async_proxy();
  }
  __syncwarp();
  const int64_t begin = blockIdx.x / kCluster;
  for (int slot = 0; slot < ring; ++slot) fetch(begin + slot * stride, slot);

  const double weight = kAsk == Ask::Gradient ? *norm : 0.0;
  uint32_t phases = 0;  // of the slots' barriers
  int slot = 0, before = ring - 1, turn = 0;
  for (int64_t row = begin; row < rows; row += stride) {
    uint4* chunk = chunk_of(slot);
    T* numbers = reinterpret_cast<T*>(chunk);
    const bool counts = counted >> slot & 1;
    RowSums whole{};
    int64_t label = 0;
    if (counts) {
      label = p.labels[row] - first;
      RowPart part{lowest(), 0.0f, 0.0};
      if (count > 0) {
        barrier_wait(&arrived[warp][slot], phases >> slot & 1);
        phases ^= 1u << slot;
        look_at<T>(chunk, count, first_column, real, part);
        const int64_t at = label - first_column;
        if (label < real && at >= 0 && at < static_cast<int64_t>(count) * V::kSize)
          part.label_logit = to_float(numbers[at]);
      }
      if (lane == 0) parts[turn][warp] = part;
      __syncwarp();
      if constexpr (kCluster == 1) {
        __syncthreads();
        whole = combine_parts<kRingWarps>([&](int i) { return parts[turn][i]; });
      } else {
        cluster_sync();
        whole = combine_parts<kCluster * kRingWarps>([&](int i) {
          return *cg::this_cluster().map_shared_rank(&parts[turn][i % kRingWarps], i / kRingWarps);
        });
      }
      turn ^= 1;  // the next row's parts may be written while these are still read
    }
    if (threadIdx.x == 0 && rank == 0) {
      if (counts)
        leave<kAsk>(p, row, whole, out);
      else
        leave_nothing<kAsk, T>(row, out);
    }
    if constexpr (kAsk == Ask::Gradient) {
      // The row before has been handed over; once it is out of shared memory its slot takes another.
      if (row != begin) {
        if (lane == 0) store_wait_read<0>();
        fetch(row + (ring - 1) * stride, before);
      }
      const auto top = static_cast<float>(whole.top), scale = static_cast<float>(weight / whole.sum);
      for (int u = lane; u < count; u += 32) {
        V pack = V::zero();
        if (counts) {
          float a[V::kSize];
          const int64_t column = first_column + u * V::kSize;
          load_or_lowest<T, V::kSize>(numbers, u * V::kSize, real - first_column).get(a);
          to_gradient<T>(a, column, label, top, scale, static_cast<float>(weight));
          pack.set(a);
        }
        pack.store(numbers + u * V::kSize);
      }
      fence_async_proxy();
      __syncwarp();
      if (lane == 0 && count > 0) {
        store_bulk(p.logits + row * p.columns + first_column, chunk, bytes);
        store_commit();
      }
    } else {
      __syncwarp();  // all lanes have looked
      fetch(row + ring * stride, slot);
    }
    before = slot;
    slot = slot + 1 == ring ? 0 : slot + 1;
  }
  if (lane == 0) store_wait_read<0>();
  if constexpr (kCluster > 1) cluster_sync();  // the others have read this block's parts
}

struct RingLaunch {
  int cluster, share, ring;
  unsigned blocks;
  size_t bytes;
};

template <Ask kAsk, class T, class F>
void with_ring_kernel(int cluster, F&& f) {
  switch (cluster) {
    case 1:
      return f(ring_rows<T, 1, kAsk>);
    case 2:
      return f(ring_rows<T, 2, kAsk>);
    case 4:
      return f(ring_rows<T, 4, kAsk>);
    default:
      return f(ring_rows<T, 8, kAsk>);
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
  config.numAttrs = ring.cluster > 1 ? 1 : 0;
  f(config);
}

// The smallest cluster whose shared memory holds two rows; none when even the largest does not.
template <Ask kAsk, class T>
std::optional<RingLaunch> plan_ring(const LossArgs<T>& p, int64_t rows) {
  constexpr int64_t kRoom = 225 * 1024;
  const int64_t units = p.columns / kWide<T>;
  for (const int cluster : {1, 2, 4, 8}) {
    const int64_t share = ceil_div(units, cluster * kRingWarps), row_bytes = kRingWarps * share * 16;
    const int64_t ring = std::min<int64_t>(kMostRing, kRoom / row_bytes);
    if (ring < 2) continue;
    RingLaunch out{cluster, static_cast<int>(share), static_cast<int>(ring), static_cast<unsigned>(cluster),
                   static_cast<size_t>(ring * row_bytes)};
    int clusters = 0;
    with_ring_kernel<kAsk, T>(cluster, [&](auto kernel) {
      PLEAT_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      static_cast<int>(out.bytes)));
      if (cluster == 1) {
        clusters =
            static_cast<int>(resident_blocks(kernel, kRingThreads, rows, static_cast<int64_t>(out.bytes)));
        return;
      }
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

template <Ask kAsk, class T>
void launch_ring(CUstream_st* stream, const RingLaunch& ring, const LossArgs<T>& p, int64_t rows,
                 const double* norm, double* out) {
  with_ring_kernel<kAsk, T>(ring.cluster, [&](auto kernel) {
    with_ring_config(ring, stream, [&](const cudaLaunchConfig_t& config) {
      PLEAT_CUDA(cudaLaunchKernelEx(&config, kernel, p, rows, ring.share, ring.ring, norm, out));
    });
  });
}

}  // namespace pleat::kernels::cuda
