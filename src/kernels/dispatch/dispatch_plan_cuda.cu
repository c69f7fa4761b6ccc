// The order of routed rows on the GPU: a stable counting sort by expert in three launches (count, scan,
// place). With a capacity, choices are sorted into cells first and a block per bucket then keeps its own.
#include "device/cuda/check.h"
#include "kernels/cuda/halt.cuh"
#include "kernels/dispatch/counting_sort.cuh"
#include "kernels/dispatch/dispatch_cuda.h"
#include "kernels/dispatch/dispatch_rows.h"
#include "kernels/math/require.h"
#include "kernels/router/router.h"
#include "kernels/router/token.cuh"

namespace pleat::kernels {
namespace {

using namespace cuda;

constexpr int kScanThreads = 1024, kScanWarps = kScanThreads / 32;
constexpr int kSelectThreads = 256;

// A bucket is what has a capacity of its own: an expert, or an expert and a piece of the tokens.
struct Choices {
  const int32_t *idx, *piece;
  int64_t num_choices;
  int top_k, experts, pieces;

  __host__ __device__ int num_buckets() const { return experts * pieces; }
  __device__ int operator()(int64_t i) const {
    const int e = idx[i];
    PLEAT_HALT_UNLESS(e >= 0 && e < experts, "[dispatch_plan] a choice is no expert");
    if (!piece) return e;
    const int p = piece[i / top_k];
    PLEAT_HALT_UNLESS(p >= 0 && p < pieces, "[dispatch_plan] a token is in no piece");
    return e * pieces + p;
  }
};

// Scratch: before [buckets, chunks] first counts, then what lies before a chunk in its bucket; of each bucket
// its choices, its first cell and its first row.
struct Sorted {
  int *before, *count, *first_cell, *first_row, *cells;
};

__global__ void __launch_bounds__(kSortThreads) count_choices(Choices choices, int num_chunks, Sorted to) {
  extern __shared__ int counts[];
  count_chunk(choices.num_choices, choices.num_buckets(), choices, counts);
  for (int e = threadIdx.x; e < choices.num_buckets(); e += kSortThreads)
    to.before[static_cast<int64_t>(e) * num_chunks + blockIdx.x] = counts[e];
}

__global__ void __launch_bounds__(kScanThreads)
    scan(int buckets, int pieces, int num_chunks, int capacity, bool pad, int64_t budget, Sorted at,
         int32_t* offsets, int64_t* dropped, bool add_dropped) {
  extern __shared__ int counts[];
  const int lane = threadIdx.x % 32;
  for (int e = threadIdx.x / 32; e < buckets; e += kScanWarps) {
    int* row = at.before + static_cast<int64_t>(e) * num_chunks;
    int sum = 0;
    for (int first = 0; first < num_chunks; first += 32) {
      const int i = first + lane, x = i < num_chunks ? row[i] : 0;
      int inclusive = x;
      for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(kAll, inclusive, step);
        if (lane >= step) inclusive += other;
      }
      if (i < num_chunks) row[i] = sum + inclusive - x;
      sum += __shfl_sync(kAll, inclusive, 31);
    }
    if (lane == 0) counts[e] = sum;
  }
  __syncthreads();
  int cells = 0;
  int64_t rows = 0, kept_rows = 0;
  for (int first = 0; first < buckets; first += kScanThreads) {
    const int e = first + threadIdx.x;
    const int count = e < buckets ? counts[e] : 0, kept = capacity > 0 ? min(count, capacity) : count;
    const int size = e < buckets ? (pad ? capacity : kept) : 0;
    int all_cells, all_rows, all_kept;
    const int cell = cells + block_scan<kScanThreads>(count, all_cells);
    const int64_t row = rows + block_scan<kScanThreads>(size, all_rows);
    block_scan<kScanThreads>(kept, all_kept);
    if (e < buckets) {
      at.count[e] = count;
      at.first_cell[e] = cell;
      at.first_row[e] = static_cast<int>(row);
      if (e % pieces == 0) offsets[e / pieces] = static_cast<int32_t>(row);
    }
    cells += all_cells, rows += all_rows, kept_rows += all_kept;
  }
  if (threadIdx.x != 0) return;
  PLEAT_HALT_UNLESS(rows <= budget,
                    "[dispatch_plan] routing needs more rows than the budget holds; a larger token budget or a "
                    "capacity would fit");
  offsets[buckets / pieces] = static_cast<int32_t>(rows);
  dropped[0] = (add_dropped ? dropped[0] : 0) + cells - kept_rows;
}

// Rows of no token behind the plan's last.
__device__ void fill_tail(int64_t num_rows, int64_t budget, int32_t* row_token, int32_t* row_slot) {
  for (int64_t r = num_rows + blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; r < budget;
       r += gridDim.x * static_cast<int64_t>(blockDim.x))
    row_token[r] = row_slot[r] = -1;
}

__global__ void __launch_bounds__(kSortThreads)
    place_rows(Choices choices, int num_chunks, Sorted from, const int32_t* offsets, int64_t budget,
               int32_t* row_token, int32_t* row_slot, int32_t* token_row) {
  extern __shared__ int counts[];
  place_chunk(
      choices.num_choices, choices.num_buckets(), choices,
      [&](int e) {
        return from.first_row[e] + from.before[static_cast<int64_t>(e) * num_chunks + blockIdx.x];
      },
      counts, [&](int64_t i, int row) {
        const int t = static_cast<int>(i) / choices.top_k;
        row_token[row] = t;
        row_slot[row] = static_cast<int>(i) - t * choices.top_k;
        token_row[i] = row;
      });
  fill_tail(offsets[choices.experts], budget, row_token, row_slot);
}

__global__ void __launch_bounds__(kSortThreads)
    place_cells(Choices choices, int num_chunks, Sorted at) {
  extern __shared__ int counts[];
  place_chunk(
      choices.num_choices, choices.num_buckets(), choices,
      [&](int e) { return at.first_cell[e] + at.before[static_cast<int64_t>(e) * num_chunks + blockIdx.x]; },
      counts, [&](int64_t i, int cell) { at.cells[cell] = static_cast<int>(i); });
}

// The rank of the capacity-th largest probability of the cells; `equals` gets how many of that rank are kept.
__device__ uint32_t threshold(const int* cells, int count, int capacity, const float* probs, int& equals) {
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

// One block per bucket.
__global__ void __launch_bounds__(kSelectThreads)
    select(Choices choices, const float* probs, int capacity, bool by_probability, bool pad, Sorted from,
           const int32_t* offsets, int64_t budget, int32_t* row_token, int32_t* row_slot, int32_t* token_row) {
  const int e = blockIdx.x, count = from.count[e];
  const int* cells = from.cells + from.first_cell[e];
  uint32_t least = 0;  // by default every rank is above it
  int equals = 0;
  if (count > capacity && by_probability) least = threshold(cells, count, capacity, probs, equals);
  int row = 0, equals_seen = 0;
  for (int first = 0; first < count; first += kSelectThreads) {
    const int i = first + threadIdx.x;
    const int choice = i < count ? cells[i] : 0;
    const uint32_t rank = i < count ? rank_of_key(probs[choice]) : 0;
    int all_equals, all_kept;
    const int equals_before = equals_seen + block_scan<kSelectThreads>(i < count && rank == least, all_equals);
    const bool wanted = i < count && (rank > least || (rank == least && equals_before < equals));
    const int at = row + block_scan<kSelectThreads>(wanted, all_kept);
    const bool kept = wanted && at < capacity;
    if (i < count) {
      const int to = from.first_row[e] + at, t = choice / choices.top_k;
      token_row[choice] = kept ? to : -1;
      if (kept) {
        row_token[to] = t;
        row_slot[to] = choice - t * choices.top_k;
      }
    }
    equals_seen += all_equals, row += all_kept;
  }
  if (pad)
    for (int i = min(count, capacity) + threadIdx.x; i < capacity; i += kSelectThreads)
      row_token[from.first_row[e] + i] = row_slot[from.first_row[e] + i] = -1;
  fill_tail(offsets[choices.experts], budget, row_token, row_slot);
}

void allow_shared(const void* kernel, size_t bytes) {
  if (bytes > 48 * 1024)
    PLEAT_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
}

}  // namespace

CudaLaunch prepare_dispatch_plan(const Invocation& call, device::cuda::Lane& lane) {
  constexpr std::string_view kName = "dispatch_plan";
  using tensor::Dtype;
  const int64_t E = call.integer("experts"), k = call.integer("top_k"), capacity = call.integer("capacity");
  if (E < 1 || E > kMaxExperts) base::fail("[{}] {} experts, needed 1 to {}", kName, E, kMaxExperts);
  if (capacity < 0) base::fail("[{}] capacity is {}, needed 0 (none) or more", kName, capacity);
  const bool pad = call.integer("pad") != 0;
  if (pad && capacity == 0) base::fail("[{}] padding needs a capacity", kName);
  const int64_t policy = call.integer("policy");
  if (policy != 0 && policy != 1) base::fail("[{}] policy is {}, needed 0 or 1", kName, policy);
  require_rank(kName, "idx", call[0], 2);
  const int64_t T = call[0].dim(0), pieces = call[2].present ? call.integer("pieces") : 1;
  if (pieces < 1 || E * pieces > kMaxExperts)
    base::fail("[{}] {} experts in {} pieces, at most {} together", kName, E, pieces, kMaxExperts);
  require_shape(kName, "idx", call[0], {T, k});
  require_shape(kName, "probs", call[1], {T, k});
  require_shape(kName, "piece", call[2], {T});
  require_shape(kName, "offsets", call[3], {E + 1});
  require_rank(kName, "row_token", call[4], 1);
  const int64_t budget = call[4].dim(0);
  require_shape(kName, "row_slot", call[5], {budget});
  require_shape(kName, "token_row", call[6], {T, k});
  require_shape(kName, "dropped", call[7], {1});
  for (size_t i : {0, 2, 3, 4, 5, 6})
    require_dtype(kName,
                  program::arguments_of(program::KernelKind::dispatch_plan, program::Phase::Forward)[i].name,
                  call[i], Dtype::I32);
  require_dtype(kName, "dropped", call[7], Dtype::I64);
  dispatch::check_index_range(kName, T * k, std::max(budget, E * pieces * capacity));
  if (call[1].dtype != Dtype::F32) return {};

  const Choices choices{call[0].as<int32_t>(), call[2].as<int32_t>(), T * k,
                        static_cast<int>(k),   static_cast<int>(E),   static_cast<int>(pieces)};
  const int64_t buckets = E * pieces, chunks = std::max<int64_t>(1, ceil_div(T * k, kChunkItems));
  const float* probs = call[1].as<float>();
  int32_t *offsets = call[3].as<int32_t>(), *row_token = call[4].as<int32_t>(),
          *row_slot = call[5].as<int32_t>(), *token_row = call[6].as<int32_t>();
  int64_t* dropped = call[7].as<int64_t>();
  const bool add = call[7].into() == Into::Accumulate;
  lane.need_scratch(4 * (buckets * (chunks + 3) + (capacity > 0 ? T * k : 0)));
  const size_t shared = static_cast<size_t>(buckets) * 4;
  allow_shared(reinterpret_cast<const void*>(&place_rows), shared * kSortWarps);
  allow_shared(reinterpret_cast<const void*>(&place_cells), shared * kSortWarps);
  return [=, &lane, num_chunks = static_cast<int>(chunks), most = static_cast<int>(capacity)] {
    int* scratch = reinterpret_cast<int*>(lane.scratch());
    Sorted sorted;
    sorted.before = scratch;
    sorted.count = sorted.before + buckets * chunks;
    sorted.first_cell = sorted.count + buckets;
    sorted.first_row = sorted.first_cell + buckets;
    sorted.cells = sorted.first_row + buckets;
    const unsigned blocks = static_cast<unsigned>(chunks);
    count_choices<<<blocks, kSortThreads, shared, lane.stream()>>>(choices, num_chunks, sorted);
    PLEAT_CUDA_LAUNCHED();
    scan<<<1, kScanThreads, shared, lane.stream()>>>(choices.num_buckets(), choices.pieces, num_chunks, most,
                                                     pad, budget, sorted, offsets, dropped, add);
    PLEAT_CUDA_LAUNCHED();
    if (most == 0) {
      place_rows<<<blocks, kSortThreads, shared * kSortWarps, lane.stream()>>>(
          choices, num_chunks, sorted, offsets, budget, row_token, row_slot, token_row);
    } else {
      place_cells<<<blocks, kSortThreads, shared * kSortWarps, lane.stream()>>>(choices, num_chunks, sorted);
      PLEAT_CUDA_LAUNCHED();
      select<<<static_cast<unsigned>(buckets), kSelectThreads, 0, lane.stream()>>>(
          choices, probs, most, policy == 0, pad, sorted, offsets, budget, row_token, row_slot, token_row);
    }
    PLEAT_CUDA_LAUNCHED();
  };
}

}  // namespace pleat::kernels
