// Tokens sorted by row of the table in one launch, by the eight blocks of a cluster. The entries lie in the
// blocks' shared memory, in ascending order over the blocks; a pass takes one digit of the key, counts it and
// puts every entry to its place in whichever block that is. The launches and the trips to memory of a sort
// over the whole device would take longer than the sorting, for as few tokens as a step has.
//
// Where the table is overwritten, the other multiprocessors zero the rows no token uses meanwhile.
#pragma once

#include <cooperative_groups.h>

#include <optional>

#include "device/cuda/check.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/dispatch/counting_sort.cuh"
#include "kernels/embedding/token_rows.cuh"

namespace pleat::kernels::cuda {

constexpr int kClusterBlocks = 8, kClusterThreads = 1024, kClusterWarps = kClusterThreads / 32;
constexpr int kDigitBits = 9, kDigits = 1 << kDigitBits;
constexpr int kMostPerThread = 8;
// Rows of the table a zeroing block takes at a time, at most. Every time costs it a look at all tokens; with
// a hundred blocks a second one is beyond the vocabularies of today.
constexpr int64_t kMostShare = 4096;
constexpr int64_t kMostClusterTokens = int64_t{kMostPerThread} * kClusterThreads * kClusterBlocks;

struct alignas(8) TokenEntry {
  int key, position;
};

// kPer: entries of a thread.
template <int kPer>
constexpr int64_t cluster_sort_bytes() {
  return static_cast<int64_t>(sizeof(TokenEntry)) * kPer * kClusterThreads +
         static_cast<int64_t>(sizeof(int)) * kClusterWarps * kDigits;
}

// Warps take runs of 32 kPer entries, so (block, warp, j, lane) is the order of the entries: passes are
// stable, and positions of one key stay ascending.
template <int kPer>
__device__ void sort_in_cluster(const TokenRows& tokens, int key_bits, const SortedTokens& sorted,
                                TokenEntry* entries) {
  namespace cg = cooperative_groups;
  constexpr int kEntries = kPer * kClusterThreads;           // of a block
  int* counts = reinterpret_cast<int*>(entries + kEntries);  // [warps, digits]
  __shared__ int of_block[kDigits], first[kDigits];          // entries of a digit; where the block's begin
  const int block = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const int mine = thread / 32 * (32 * kPer) + lane;
  int* warp_counts = counts + thread / 32 * kDigits;
  TokenEntry held[kPer];
#pragma unroll
  for (int j = 0; j < kPer; ++j) {
    const int t = block * kEntries + mine + 32 * j;
    held[j] = {t < sorted.num_tokens ? tokens.key(t) : sorted.table_rows, t};  // past the end: behind all
  }
  for (int shift = 0; shift < key_bits; shift += kDigitBits) {
    const auto digit_of = [&](const TokenEntry& entry) { return entry.key >> shift & (kDigits - 1); };
    for (int i = thread; i < kClusterWarps * kDigits; i += kClusterThreads) counts[i] = 0;
    __syncthreads();
    int before[kPer];  // entries of the digit before this one in its warp
#pragma unroll
    for (int j = 0; j < kPer; ++j) {
      const int digit = digit_of(held[j]);
      const unsigned same = __match_any_sync(0xffffffffu, digit);
      const int below = __popc(same & ((1u << lane) - 1));
      before[j] = warp_counts[digit] + below;
      __syncwarp();
      if (below == 0) warp_counts[digit] += __popc(same);
      __syncwarp();
    }
    __syncthreads();
    if (thread < kDigits) {  // counts become those of the warps before
      int count[kClusterWarps], sum = 0;
#pragma unroll
      for (int w = 0; w < kClusterWarps; ++w) count[w] = counts[w * kDigits + thread];
#pragma unroll
      for (int w = 0; w < kClusterWarps; ++w) {
        counts[w * kDigits + thread] = sum;
        sum += count[w];
      }
      of_block[thread] = sum;
    }
    cluster_sync();  // of_block is there, and every block holds its entries in registers
    int all = 0, of_former = 0;
    if (thread < kDigits) {
#pragma unroll
      for (int b = 0; b < kClusterBlocks; ++b) {
        const int count = *cg::this_cluster().map_shared_rank(&of_block[thread], b);
        if (b < block) of_former += count;
        all += count;
      }
    }
    int total;
    const int of_lower = block_scan<kClusterThreads>(all, total);
    if (thread < kDigits) first[thread] = of_lower + of_former;
    __syncthreads();
#pragma unroll
    for (int j = 0; j < kPer; ++j) {
      const int digit = digit_of(held[j]), to = first[digit] + warp_counts[digit] + before[j];
      *cg::this_cluster().map_shared_rank(&entries[to % kEntries], to / kEntries) = held[j];
    }
    cluster_sync();  // all entries have arrived, and nobody reads of_block
#pragma unroll
    for (int j = 0; j < kPer; ++j) held[j] = entries[mine + 32 * j];
  }
#pragma unroll
  for (int j = 0; j < kPer; ++j) {
    const int i = block * kEntries + mine + 32 * j;
    if (i >= sorted.num_tokens) continue;
    sorted.keys[i] = held[j].key;
    sorted.order[i] = held[j].position;
  }
}

// A look at all tokens marks the rows that are used. By block `block` of `blocks`, which takes `share` rows
// at a time.
__device__ inline void zero_unused_rows(const TokenRows& tokens, const TableBytes& table, int block,
                                        int blocks, int share, uint8_t* used) {
  const int thread = static_cast<int>(threadIdx.x);
  for (int64_t begin = static_cast<int64_t>(block) * share; begin < table.rows;
       begin += static_cast<int64_t>(blocks) * share) {
    const int count = static_cast<int>(min(static_cast<int64_t>(share), table.rows - begin));
    __syncthreads();  // the rows before are done
    for (int i = thread; i < count; i += kClusterThreads) used[i] = 0;
    __syncthreads();
    // All of a turn's tokens are read before the first mark: a mark might change a token, for all the
    // compiler knows.
    constexpr int kAhead = 8;
    const int64_t first_token = tokens.first() + begin;
    for (int64_t first = thread; first < tokens.num_tokens; first += kAhead * kClusterThreads) {
      int64_t row[kAhead];
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        const int64_t t = first + j * kClusterThreads;
        row[j] =
            t < tokens.num_tokens && tokens.tokens[t] != tokens.padding ? tokens.tokens[t] - first_token : -1;
      }
#pragma unroll
      for (int j = 0; j < kAhead; ++j)
        if (row[j] >= 0 && row[j] < count) used[row[j]] = 1;
    }
    __syncthreads();
    for (int i = thread / 32; i < count; i += kClusterWarps)
      if (!used[i]) table.zero_row(begin + i, thread % 32, 32);
  }
}

// The first cluster sorts, all others zero.
template <int kPer>
__global__ void __launch_bounds__(kClusterThreads, 1)
    sort_and_zero(TokenRows tokens, int key_bits, SortedTokens sorted, TableBytes table, int share) {
  extern __shared__ TokenEntry cluster_entries[];
  if (blockIdx.x < kClusterBlocks)
    sort_in_cluster<kPer>(tokens, key_bits, sorted, cluster_entries);
  else
    zero_unused_rows(tokens, table, static_cast<int>(blockIdx.x) - kClusterBlocks,
                     static_cast<int>(gridDim.x) - kClusterBlocks, share,
                     reinterpret_cast<uint8_t*>(cluster_entries));
}

// Calls f(kernel, bytes of shared memory) for the fewest entries per thread that hold the tokens.
template <class F>
void with_cluster_sort(int64_t num_tokens, F&& f) {
  constexpr int64_t kThreads = int64_t{kClusterThreads} * kClusterBlocks;
  if (num_tokens <= kThreads)
    f(sort_and_zero<1>, cluster_sort_bytes<1>());
  else if (num_tokens <= 2 * kThreads)
    f(sort_and_zero<2>, cluster_sort_bytes<2>());
  else if (num_tokens <= 4 * kThreads)
    f(sort_and_zero<4>, cluster_sort_bytes<4>());
  else
    f(sort_and_zero<kMostPerThread>, cluster_sort_bytes<kMostPerThread>());
}

struct ClusterSort {
  unsigned blocks;
  int share;  // table rows a zeroing block takes at a time
};

// Calls f(cudaLaunchConfig_t) for the launch.
template <class F>
void with_cluster_config(unsigned blocks, int64_t shared_bytes, CUstream_st* stream, F&& f) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(kClusterThreads);
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = stream;
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = kClusterBlocks;
  cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  config.attrs = &cluster;
  config.numAttrs = 1;
  f(config);
}

// None where there are too many tokens, or no room for a cluster.
inline std::optional<ClusterSort> plan_cluster_sort(int64_t num_tokens, int64_t table_rows, bool zero) {
  if (num_tokens > kMostClusterTokens) return {};
  std::optional<ClusterSort> out;
  with_cluster_sort(num_tokens, [&](auto kernel, int64_t bytes) {
    PLEAT_CUDA(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
    int clusters = 0;
    with_cluster_config(kClusterBlocks, bytes, nullptr, [&](const cudaLaunchConfig_t& config) {
      PLEAT_CUDA(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config));
    });
    if (clusters == 0) return;
    static_assert(kMostShare <= cluster_sort_bytes<1>());  // a byte a row
    const int64_t needed = ceil_div(table_rows, kClusterBlocks * kClusterWarps),
                  zeroing = std::clamp<int64_t>(clusters - 1, 1, needed) * kClusterBlocks;
    out = ClusterSort{static_cast<unsigned>(kClusterBlocks + (zero ? zeroing : 0)),
                      static_cast<int>(std::min(kMostShare, ceil_div(table_rows, zeroing)))};
  });
  return out;
}

inline void launch_cluster_sort(CUstream_st* stream, const ClusterSort& plan, const TokenRows& tokens,
                                const SortedTokens& sorted, const TableBytes& table) {
  with_cluster_sort(tokens.num_tokens, [&](auto kernel, int64_t bytes) {
    with_cluster_config(plan.blocks, bytes, stream, [&](const cudaLaunchConfig_t& config) {
      PLEAT_CUDA(cudaLaunchKernelEx(&config, kernel, tokens, tokens.key_bits(), sorted, table, plan.share));
    });
  });
}

}  // namespace pleat::kernels::cuda
