// Token embedding on the GPU: a gather, and its transpose without atomics on floats.
//
// Backward sorts the tokens by (row of the table, position) and cuts the sorted list into tiles. A block sums
// the runs of equal tokens of its tile in ascending position; runs that lie in one tile go straight to the
// table, the pieces of runs that cross tiles wait in scratch for a last launch that adds them in order. So
// one read of dy and one write of the table, however uneven the tokens are.
#include <cub/device/device_radix_sort.cuh>

#include "device/cuda/check.h"
#include "kernels/cuda/bind.h"
#include "kernels/cuda/column_sum.cuh"
#include "kernels/cuda/pack.cuh"
#include "kernels/math/coords.h"
#include "kernels/math/require.h"
#include "kernels/rows/gather.cuh"

namespace pleat::kernels {
namespace {

using namespace cuda;

// Row of the table that holds a token. Tokens in no vocabulary cannot throw here: forward gives NaN.
struct Tokens {
  const int32_t* tokens;
  const int64_t* place;  // the rank's number in the group, or null
  int64_t num_tokens, table_rows;
  __device__ int64_t rows() const { return num_tokens; }
  __device__ int64_t of(int64_t t) const {
    const int64_t row = tokens[t] - (place ? *place * table_rows : 0);
    if (row >= 0 && row < table_rows) return row;
    return place && tokens[t] >= 0 ? kZeroRow : kBadRow;
  }
};

constexpr int kThreads = 128, kTile = 32, kAhead = 8;

__global__ void make_keys(Tokens tokens, int32_t* keys, int32_t* order, uint8_t* used) {
  const int64_t t = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (t >= tokens.num_tokens) return;
  const int64_t row = tokens.of(t);
  keys[t] = static_cast<int32_t>(row >= 0 ? row : tokens.table_rows);  // behind all others
  order[t] = static_cast<int32_t>(t);
  if (row >= 0) used[row] = 1;
}

// Zeroes the rows no token uses. blockIdx.x is a row.
template <class D, int N>
__global__ void __launch_bounds__(kThreads) zero_unused(const uint8_t* used, D* dtable, int64_t width) {
  if (used[blockIdx.x]) return;
  D* row = dtable + blockIdx.x * width;
  for (int64_t j = threadIdx.x * N; j < width; j += kThreads * N) Pack<D, N>::zero().store(row + j);
}

// In accesses of at most 16 bytes.
template <class D, int N>
__device__ inline void add_to_table(D* to, const float (&sum)[N], bool accumulate) {
  constexpr int kRun = N < kWide<D> ? N : kWide<D>;
#pragma unroll
  for (int j = 0; j < N; j += kRun) {
    float part[kRun] = {};
    if (accumulate) Pack<D, kRun>::load(to + j).get(part);
#pragma unroll
    for (int i = 0; i < kRun; ++i) part[i] += sum[j + i];
    Pack<D, kRun> pack;
    pack.set(part);
    pack.store(to + j);
  }
}

struct Sorted {
  const int32_t *keys, *order;
  int num_tokens, table_rows;
  float* pieces;  // [tiles, 2, width]: of the run that came in, of the run that goes on
  __device__ int key(int i) const { return i < 0 || i >= num_tokens ? -1 : keys[i]; }
};

// blockIdx.x: tile, blockIdx.y: run of kThreads * N columns.
template <class T, class D, int N>
__global__ void __launch_bounds__(kThreads)
    sum_tile(Sorted sorted, const T* dy, D* dtable, int64_t width, bool accumulate) {
  __shared__ int32_t keys[kTile + 2], order[kTile];  // keys[0] is of the entry before the tile
  const int begin = static_cast<int>(blockIdx.x) * kTile;
  const int count = min(kTile, sorted.num_tokens - begin);
  for (int i = threadIdx.x; i < kTile + 2; i += kThreads) keys[i] = sorted.key(begin + i - 1);
  for (int i = threadIdx.x; i < count; i += kThreads) order[i] = sorted.order[begin + i];
  __syncthreads();
  const int64_t column = (blockIdx.y * static_cast<int64_t>(kThreads) + threadIdx.x) * N;
  if (column >= width) return;
  float sum[N] = {};
  bool came_in = keys[0] == keys[1];  // the run at hand started before this tile
  for (int first = 0; first < count; first += kAhead) {
    Pack<T, N> held[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
      held[i] = first + i < count && keys[first + i + 1] < sorted.table_rows
                    ? Pack<T, N>::load(dy + order[first + i] * width + column)
                    : Pack<T, N>::zero();
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int entry = first + i;
      if (entry >= count) break;
      const int key = keys[entry + 1];
      if (key >= sorted.table_rows) return;  // only such entries follow
      float d[N];
      held[i].get(d);
#pragma unroll
      for (int j = 0; j < N; ++j) sum[j] += d[j];
      const bool last = entry == count - 1, goes_on = keys[entry + 2] == key;
      if (goes_on && !last) continue;
      float* piece = sorted.pieces + static_cast<int64_t>(blockIdx.x) * 2 * width + column;
      if (came_in)
        add_to_table(piece, sum, false);
      else if (goes_on)
        add_to_table(piece + width, sum, false);
      else
        add_to_table(dtable + key * width + column, sum, accumulate);
#pragma unroll
      for (int j = 0; j < N; ++j) sum[j] = 0;
      came_in = false;
    }
  }
}

template <int N>
__device__ inline void load_piece(const float* from, float (&to)[N]) {
  constexpr int kRun = N < 4 ? N : 4;
#pragma unroll
  for (int j = 0; j < N; j += kRun) {
    const auto part = Vec<float, kRun>::load(from + j);
#pragma unroll
    for (int i = 0; i < kRun; ++i) to[j + i] = part.at[i];
  }
}

// The run that starts in tile blockIdx.x and goes on: its pieces in order.
template <class D, int N>
__global__ void __launch_bounds__(kThreads)
    sum_pieces(Sorted sorted, D* dtable, int64_t width, bool accumulate) {
  const int begin = static_cast<int>(blockIdx.x) * kTile, next = begin + kTile;
  const int key = sorted.key(next - 1);
  if (key < 0 || key >= sorted.table_rows || sorted.key(next) != key) return;
  // It started here unless all of the tile and the entry before it are this key.
  if (sorted.key(begin) == key && sorted.key(begin - 1) == key) return;
  const int64_t column = (blockIdx.y * static_cast<int64_t>(kThreads) + threadIdx.x) * N;
  if (column >= width) return;
  float sum[N];
  load_piece(sorted.pieces + (static_cast<int64_t>(blockIdx.x) * 2 + 1) * width + column, sum);
  for (int tile = static_cast<int>(blockIdx.x) + 1; sorted.key(tile * kTile) == key; ++tile) {
    float more[N];
    load_piece(sorted.pieces + static_cast<int64_t>(tile) * 2 * width + column, more);
#pragma unroll
    for (int j = 0; j < N; ++j) sum[j] += more[j];
  }
  add_to_table(dtable + key * width + column, sum, accumulate);
}

// Where the parts of the scratch begin.
struct Plan {
  int64_t keys, order, sorted_keys, sorted_order, used, pieces, temporary, total;
  size_t temporary_bytes;
};
Plan plan_scratch(int64_t num_tokens, int64_t table_rows, int64_t width, int end_bit) {
  Plan p{};
  const auto take = [&](int64_t bytes) {
    const int64_t at = p.total;
    p.total += (bytes + 255) / 256 * 256;
    return at;
  };
  p.keys = take(4 * num_tokens), p.order = take(4 * num_tokens);
  p.sorted_keys = take(4 * num_tokens), p.sorted_order = take(4 * num_tokens);
  p.used = take(table_rows);
  p.pieces = take(ceil_div(num_tokens, kTile) * 2 * width * static_cast<int64_t>(sizeof(float)));
  const int32_t* none = nullptr;
  PLEAT_CUDA(cub::DeviceRadixSort::SortPairs(nullptr, p.temporary_bytes, none, static_cast<int32_t*>(nullptr),
                                             none, static_cast<int32_t*>(nullptr),
                                             static_cast<int>(num_tokens), 0, end_bit));
  p.temporary = take(static_cast<int64_t>(p.temporary_bytes));
  return p;
}

template <class T, class D, int N>
CudaLaunch backward(const Tokens& tokens, const T* dy, D* dtable, int64_t width, bool accumulate,
                    device::cuda::Lane& lane) {
  int end_bit = 1;  // keys run to table_rows, which is a key itself
  while ((tokens.table_rows >> end_bit) != 0) ++end_bit;
  const Plan p = plan_scratch(tokens.num_tokens, tokens.table_rows, width, end_bit);
  lane.need_scratch(p.total);
  return [=, &lane] {
    if (tokens.table_rows * width == 0) return;
    CUstream_st* stream = lane.stream();
    std::byte* scratch = lane.scratch();
    const auto ints = [&](int64_t at) { return reinterpret_cast<int32_t*>(scratch + at); };
    auto* used = reinterpret_cast<uint8_t*>(scratch + p.used);
    PLEAT_CUDA(cudaMemsetAsync(used, 0, static_cast<size_t>(tokens.table_rows), stream));
    if (tokens.num_tokens > 0) {
      make_keys<<<static_cast<unsigned>(ceil_div(tokens.num_tokens, 256)), 256, 0, stream>>>(
          tokens, ints(p.keys), ints(p.order), used);
      PLEAT_CUDA_LAUNCHED();
    }
    if (!accumulate) {
      constexpr int kFill = N == 1 ? 1 : kWide<D>;
      zero_unused<D, kFill>
          <<<static_cast<unsigned>(tokens.table_rows), kThreads, 0, stream>>>(used, dtable, width);
      PLEAT_CUDA_LAUNCHED();
    }
    if (tokens.num_tokens == 0) return;
    size_t temporary_bytes = p.temporary_bytes;
    PLEAT_CUDA(cub::DeviceRadixSort::SortPairs(
        scratch + p.temporary, temporary_bytes, static_cast<const int32_t*>(ints(p.keys)),
        ints(p.sorted_keys), static_cast<const int32_t*>(ints(p.order)), ints(p.sorted_order),
        static_cast<int>(tokens.num_tokens), 0, end_bit, stream));
    const Sorted sorted{ints(p.sorted_keys), ints(p.sorted_order), static_cast<int>(tokens.num_tokens),
                        static_cast<int>(tokens.table_rows), reinterpret_cast<float*>(scratch + p.pieces)};
    const dim3 grid(static_cast<unsigned>(ceil_div(tokens.num_tokens, kTile)),
                    static_cast<unsigned>(ceil_div(width, kThreads * N)));
    sum_tile<T, D, N><<<grid, kThreads, 0, stream>>>(sorted, dy, dtable, width, accumulate);
    PLEAT_CUDA_LAUNCHED();
    sum_pieces<D, N><<<grid, kThreads, 0, stream>>>(sorted, dtable, width, accumulate);
    PLEAT_CUDA_LAUNCHED();
  };
}

Tokens tokens_of(const Invocation& call, const Arg& coords, int64_t table_rows) {
  return {call[0].as<int32_t>(), coords.present ? coords.as<int64_t>() + call.integer("group") : nullptr,
          call[0].dim(0), table_rows};
}

CudaLaunch prepare_forward(const Invocation& call, device::cuda::Lane& lane) {
  require_rank("embedding", "tokens", call[0], 1);
  require_rank("embedding", "table", call[1], 2);
  require_dtype("embedding", "tokens", call[0], tensor::Dtype::I32);
  require_coords("embedding", call, call[2]);
  require_shape("embedding", "y", call[3], {call[0].dim(0), call[1].dim(1)});
  require_same_dtype("embedding", call, {"", "table", "", "y"});
  if (!is_stored(call[1].dtype)) return {};
  const int64_t bytes = call[1].dim(1) * tensor::size_of(call[1].dtype);
  return
      [tokens = tokens_of(call, call[2], call[1].dim(0)), table = static_cast<const void*>(call[1].data),
       y = call[3].data, bytes, unit = common_unit({bytes}, {call[1].data, call[3].data}),
       stream = lane.stream()] { launch_gather(stream, table, y, tokens.num_tokens, bytes, unit, tokens); };
}

CudaLaunch prepare_backward_weight(const Invocation& call, device::cuda::Lane& lane) {
  require_rank("embedding", "tokens", call[0], 1);
  require_rank("embedding", "dtable", call[3], 2);
  require_dtype("embedding", "tokens", call[0], tensor::Dtype::I32);
  require_coords("embedding", call, call[2]);
  require_shape("embedding", "dy", call[1], {call[0].dim(0), call[3].dim(1)});
  const Tokens tokens = tokens_of(call, call[2], call[3].dim(0));
  const int64_t width = call[3].dim(1), limit = int64_t{1} << 30;
  if (tokens.num_tokens >= limit || tokens.table_rows >= limit)
    base::fail("[embedding] {} tokens and {} rows: needed less than {} of each", tokens.num_tokens,
               tokens.table_rows, limit);
  const bool accumulate = call[3].into() == Into::Accumulate;
  CudaLaunch out;
  with_float(call[1].dtype, [&](auto dy_zero) {
    with_float(call[3].dtype, [&](auto table_zero) {
      using T = decltype(dy_zero);
      using D = decltype(table_zero);
      const T* dy = call[1].as<T>();
      D* dtable = call[3].as<D>();
      // A thread's columns must be whole 16 bytes of dy and of the zeros written.
      constexpr int kRun = kWide<T>;
      out = width % std::max(kRun, kWide<D>) == 0 && all_aligned({dy, dtable})
                ? backward<T, D, kRun>(tokens, dy, dtable, width, accumulate, lane)
                : backward<T, D, 1>(tokens, dy, dtable, width, accumulate, lane);
    });
  });
  return out;
}

}  // namespace

std::span<const CudaBinding> embedding_cuda_bindings() {
  using program::KernelKind;
  using program::Phase;
  static constexpr CudaBinding rows[] = {
      {KernelKind::embedding, Phase::Forward, prepare_forward},
      {KernelKind::embedding, Phase::BackwardWeight, prepare_backward_weight},
  };
  return rows;
}

}  // namespace pleat::kernels
