// Kernels that plans of rows share: count, scan and place choices by bucket, and keep some of a bucket's
// choices. A bucket is a run of rows: an expert, or an expert and a part of the tokens with a capacity of its
// own.
//
// `Choices` gives num_choices, num_buckets(), top_k and, called with a choice, its bucket (-1: no row here).
// It may have again(choice): the same once count_and_scan has looked at all, without checks, so that nothing
// stands between the loads of several choices.
#pragma once

#include "device/cuda/check.h"
#include "kernels/cuda/counters.cuh"
#include "kernels/cuda/halt.cuh"
#include "kernels/cuda/shared_limit.cuh"
#include "kernels/dispatch/contract.h"
#include "kernels/dispatch/counting_sort.cuh"
#include "kernels/router/token.cuh"

namespace pleat::kernels::cuda {

static_assert(kChunkItems == kSortedChunk);

constexpr int kScanThreads = 1024, kScanWarps = kScanThreads / 32;
constexpr int kSelectThreads = 256;

template <class Choices>
__device__ int bucket_again(const Choices& choices, int64_t i) {
  if constexpr (requires { choices.again(i); })
    return choices.again(i);
  else
    return choices(i);
}

// Scratch: before [chunks, buckets] first counts, then what lies before a chunk in its bucket; of each bucket
// its choices, its first cell and its first row.
struct Sorted {
  int *before, *count, *first_cell, *first_row, *cells;
};

// How a plan gives rows to buckets, and where it says so.
struct RowRule {
  int pieces, capacity;  // buckets per offset; rows of a bucket, 0: no limit
  bool pad, must_fit;    // every bucket gets `capacity` rows; more choices than that are an error
  int64_t budget;
  int32_t* offsets;
  int64_t* dropped;  // null: not told
  bool add_dropped;
};

// Before a launch: there is a count of every chunk and bucket.
inline void check_counts(const Arg& idx, int64_t chunks, int64_t buckets) {
  constexpr int64_t kMost = std::numeric_limits<uint32_t>::max();
  if (chunks * buckets > kMost)
    refuse(idx, "{} chunks of choices in {} buckets, needed at most {} counts", chunks, buckets, kMost);
}

// Turns the counts of chunks into what lies before them, and puts the buckets' sums into `counts` [buckets],
// shared memory. One block: a thread takes a bucket and a part of the chunks, which it asks for all at once
// while they are few, and otherwise twice. No more threads work than have something to wait for: their
// instructions, not memory, would be what takes time. Places of counts fit into 32 bits (check_counts).
inline __device__ void scan_chunks(int buckets, int num_chunks, int* before, int* counts) {
  constexpr int kGroup = 8, kHeld = 4 * kGroup;
  __shared__ int of_part[kScanThreads];
  const int width = min(kScanThreads, (buckets + 31) / 32 * 32);
  const int parts = min(kScanThreads / width, (num_chunks + kGroup - 1) / kGroup);
  const int part = threadIdx.x / width, column = threadIdx.x - part * width;
  const int size = (num_chunks + parts - 1) / parts;  // of a part
  const int begin = min(part * size, num_chunks), end = min(begin + size, num_chunks);
  const unsigned stride = buckets;
  for (int first = 0; first < buckets; first += width) {
    const int e = first + column, num = e < buckets ? end - begin : 0;
    const unsigned from = begin * stride + e;
    int held[kHeld], sum = 0;
    if (part < parts) {
#pragma unroll
      for (int g = 0; g < kHeld; g += kGroup) {
        if (g >= size) break;
#pragma unroll
        for (int i = g; i < g + kGroup; ++i) held[i] = i < num ? __ldcg(before + (from + stride * i)) : 0;
      }
#pragma unroll
      for (int g = 0; g < kHeld; g += kGroup) {
        if (g >= size) break;
#pragma unroll
        for (int i = g; i < g + kGroup; ++i) sum += held[i];
      }
#pragma unroll 4
      for (int i = kHeld; i < num; ++i) sum += __ldcg(before + (from + stride * i));
    }
    __syncthreads();  // the former buckets' readers are done
    of_part[threadIdx.x] = sum;
    __syncthreads();
    if (part >= parts) continue;
    int at = 0, all = 0;
#pragma unroll 4
    for (int q = 0; q < parts; ++q) {
      const int other = of_part[q * width + column];
      at += q < part ? other : 0;
      all += other;
    }
    if (part == 0 && e < buckets) counts[e] = all;
#pragma unroll
    for (int g = 0; g < kHeld; g += kGroup) {
      if (g >= size) break;
#pragma unroll
      for (int i = g; i < g + kGroup; ++i) {
        if (i < num) before[from + stride * i] = at;
        at += held[i];
      }
    }
    for (int i = kHeld; i < num; ++i) {
      int& mine = before[from + stride * i];
      const int count = __ldcg(&mine);
      mine = at;
      at += count;
    }
  }
  __syncthreads();
}

// Gives buckets their rows. One block, which sees the counts of all; `counts` [buckets] is shared memory.
inline __device__ void scan(int buckets, int num_chunks, const RowRule& rule, Sorted at, int* counts) {
  __shared__ int sums[3][kScanWarps];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t dropped = threadIdx.x == 0 && rule.dropped && rule.add_dropped ? rule.dropped[0] : 0;
  scan_chunks(buckets, num_chunks, at.before, counts);
  int cells = 0;
  int64_t rows = 0, kept_rows = 0;
  for (int first = 0; first < buckets; first += kScanThreads) {
    const int e = first + threadIdx.x;
    const int count = e < buckets ? counts[e] : 0,
              kept = rule.capacity > 0 ? min(count, rule.capacity) : count;
    const int size = e < buckets ? (rule.pad ? rule.capacity : kept) : 0;
    PLEAT_HALT_UNLESS(!rule.must_fit || count <= rule.capacity,
                      "a source kept more choices of an expert than its capacity");
    const int warps = min(kScanWarps, (buckets - first + 31) / 32);  // the others have nothing
    int upto[3] = {count, size, kept}, before[3] = {}, all[3] = {};
    if (warp < warps) {
#pragma unroll
      for (int step = 1; step < 32; step *= 2)
#pragma unroll
        for (int& x : upto) {
          const int other = __shfl_up_sync(kAll, x, step);
          if (lane >= step) x += other;
        }
    }
    __syncthreads();  // the former buckets' readers are done
    if (lane == 31)
      for (int i = 0; i < 3; ++i) sums[i][warp] = upto[i];
    __syncthreads();
    if (warp >= warps) break;  // in the last round only
#pragma unroll 4
    for (int w = 0; w < warps; ++w)
#pragma unroll
      for (int i = 0; i < 3; ++i) {
        const int other = sums[i][w];
        before[i] += w < warp ? other : 0;
        all[i] += other;
      }
    if (e < buckets) {
      const int64_t row = rows + before[1] + upto[1] - size;
      at.count[e] = count;
      at.first_cell[e] = cells + before[0] + upto[0] - count;
      at.first_row[e] = static_cast<int>(row);
      if (e % rule.pieces == 0) rule.offsets[e / rule.pieces] = static_cast<int32_t>(row);
    }
    cells += all[0], rows += all[1], kept_rows += all[2];
  }
  if (threadIdx.x != 0) return;
  PLEAT_HALT_UNLESS(rows <= rule.budget,
                    "routing needs more rows than the budget holds; a larger token budget or a "
                    "capacity would fit");
  rule.offsets[buckets / rule.pieces] = static_cast<int32_t>(rows);
  if (rule.dropped) rule.dropped[0] = dropped + cells - kept_rows;
}

// Counts the choices of every chunk; the last block then scans. `arrived` is one of Counters.
template <class Choices>
__global__ void __launch_bounds__(kScanThreads)
    count_and_scan(Choices choices, int num_chunks, RowRule rule, Sorted to, int* arrived) {
  extern __shared__ int counts[];
  count_chunk<kScanThreads>(choices.num_choices, choices.num_buckets(), choices, counts);
  for (int e = threadIdx.x; e < choices.num_buckets(); e += kScanThreads)
    to.before[static_cast<int64_t>(blockIdx.x) * choices.num_buckets() + e] = counts[e];
  if (is_last_block(arrived)) scan(choices.num_buckets(), num_chunks, rule, to, counts);
}

// Rows of no token behind the plan's last.
inline __device__ void fill_tail(int64_t num_rows, int64_t budget, int32_t* row_token, int32_t* row_slot) {
  for (int64_t r = num_rows + blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; r < budget;
       r += gridDim.x * static_cast<int64_t>(blockDim.x))
    row_token[r] = row_slot[r] = -1;
}

// Fillers behind the choices of a bucket of exactly `capacity` rows.
inline __device__ void fill_bucket(int first_row, int count, int capacity, int32_t* row_token,
                                   int32_t* row_slot) {
  for (int i = min(count, capacity) + threadIdx.x; i < capacity; i += blockDim.x)
    row_token[first_row + i] = row_slot[first_row + i] = -1;
}

template <class Choices>
__global__ void __launch_bounds__(kSortThreads)
    place_rows(Choices choices, Sorted from, const int32_t* num_rows, int64_t budget, int capacity, bool pad,
               int32_t* row_token, int32_t* row_slot, int32_t* token_row) {
  extern __shared__ int counts[];
  const int buckets = choices.num_buckets(), end = *num_rows;
  const int* before = from.before + static_cast<int64_t>(blockIdx.x) * buckets;
  place_chunk(
      choices.num_choices, buckets, [&](int64_t i) { return bucket_again(choices, i); },
      [&](int e) { return from.first_row[e] + before[e]; }, counts,
      [&](int64_t i, int row) {
        token_row[i] = row;
        if (row < 0) return;
        const int t = static_cast<int>(i) / choices.top_k;
        row_token[row] = t;
        row_slot[row] = static_cast<int>(i) - t * choices.top_k;
      });
  if (pad)
    for (int e = blockIdx.x; e < buckets; e += gridDim.x)
      fill_bucket(from.first_row[e], from.count[e], capacity, row_token, row_slot);
  fill_tail(end, budget, row_token, row_slot);
}

template <class Choices>
__global__ void __launch_bounds__(kSortThreads) place_cells(Choices choices, Sorted at) {
  extern __shared__ int counts[];
  const int buckets = choices.num_buckets();
  const int* before = at.before + static_cast<int64_t>(blockIdx.x) * buckets;
  place_chunk(
      choices.num_choices, buckets, [&](int64_t i) { return bucket_again(choices, i); },
      [&](int e) { return at.first_cell[e] + before[e]; }, counts,
      [&](int64_t i, int cell) {
        if (cell >= 0) at.cells[cell] = static_cast<int>(i);
      });
}

// The rank of the capacity-th largest probability of the cells; `equals` gets how many of that rank are kept.
inline __device__ uint32_t threshold(const int* cells, int count, int capacity, const float* probs,
                                     int& equals) {
  __shared__ int histogram[256];
  __shared__ int digit, left;
  uint32_t prefix = 0;
  int remaining = capacity;
  for (int shift = 24; shift >= 0; shift -= 8) {
    for (int i = threadIdx.x; i < 256; i += kSelectThreads) histogram[i] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < count; i += kSelectThreads) {
      const uint32_t rank = rank_of_key(probs[cells[i]]);
      if (shift == 24 || rank >> (shift + 8) == prefix >> (shift + 8))
        atomicAdd(&histogram[rank >> shift & 255], 1);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      int d = 255, need = remaining;
      while (histogram[d] < need) need -= histogram[d--];
      digit = d, left = need;
    }
    __syncthreads();
    prefix |= static_cast<uint32_t>(digit) << shift;
    remaining = left;
  }
  equals = remaining;
  return prefix;
}

// Of `count` choices in ascending order, `capacity` at most get rows from first_row on: the most probable, of
// equal ones the first, or just the first. The others get none. A whole block, one bucket.
inline __device__ void keep_some(const int* cells, int count, int capacity, bool by_probability,
                                 const float* probs, int top_k, int first_row, int32_t* row_token,
                                 int32_t* row_slot, int32_t* token_row) {
  uint32_t least = 0;  // by default every rank is above it
  int equals = 0;
  if (count > capacity && by_probability) {
    if (capacity > 0)
      least = threshold(cells, count, capacity, probs, equals);
    else
      least = 0xffffffffu;
  }
  int row = 0, equals_seen = 0;
  for (int first = 0; first < count; first += kSelectThreads) {
    const int i = first + threadIdx.x;
    const int choice = i < count ? cells[i] : 0;
    const uint32_t rank = i < count ? rank_of_key(probs[choice]) : 0;
    int all_equals, all_kept;
    const int equals_before =
        equals_seen + block_scan<kSelectThreads>(i < count && rank == least, all_equals);
    const bool wanted = i < count && (rank > least || (rank == least && equals_before < equals));
    const int at = row + block_scan<kSelectThreads>(wanted, all_kept);
    const bool kept = wanted && at < capacity;
    if (i < count) {
      const int t = choice / top_k;
      token_row[choice] = kept ? first_row + at : -1;
      if (kept) {
        row_token[first_row + at] = t;
        row_slot[first_row + at] = choice - t * top_k;
      }
    }
    equals_seen += all_equals, row += all_kept;
  }
}

}  // namespace pleat::kernels::cuda
