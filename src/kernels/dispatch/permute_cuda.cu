// Rows to experts and back on the GPU. A warp takes one piece of one row (gathers) or of one token (sums over
// slots): a piece is short enough that all of its loads are in flight before the first is used.
#include "device/cuda/check.h"
#include "kernels/cuda/types.cuh"
#include "kernels/dispatch/dispatch_cuda.h"
#include "kernels/dispatch/dispatch_rows.h"
#include "kernels/math/require.h"

namespace pleat::kernels {
namespace {

using namespace cuda;
using namespace dispatch;

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kInFlight = 8;  // vectors a lane loads before it uses the first

// Rows are written once and read by a later kernel: they pass the caches by.
template <class V, class T>
__device__ void store_streaming(const V& v, T* to) {
  if constexpr (sizeof(V) == 16)
    __stcs(reinterpret_cast<int4*>(to), *reinterpret_cast<const int4*>(&v));
  else
    v.store(to);
}

// to[r] = from[row_token[r]] for the plan's rows, zero for fillers; row_probs likewise where given.
template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    gather(const T* from, const float* probs, const int32_t* row_token, const int32_t* row_slot,
           const int32_t* num_rows, int width, int pieces, int top_k, T* to, float* row_probs) {
  const unsigned unit = blockIdx.x * kWarps + threadIdx.x / 32;
  const int64_t r = unit / pieces;
  if (r >= *num_rows) return;
  const int lane = threadIdx.x % 32, piece = unit - static_cast<unsigned>(r) * pieces;
  const int64_t token = row_token[r];
  const T* row = from + (token < 0 ? 0 : token) * width;
  const int first = (piece * kInFlight * 32 + lane) * N;
  Vec<T, N> v[kInFlight];
#pragma unroll
  for (int i = 0; i < kInFlight; ++i) {
    const int column = first + i * 32 * N;
    if (column < width && token >= 0)
      v[i] = Vec<T, N>::load(row + column);
    else
      for (int j = 0; j < N; ++j) v[i].at[j] = from_float<T>(0);
  }
#pragma unroll
  for (int i = 0; i < kInFlight; ++i) {
    const int column = first + i * 32 * N;
    if (column < width) store_streaming(v[i], to + r * width + column);
  }
  if (row_probs && piece == 0 && lane == 0)
    row_probs[r] = token < 0 ? 0.0f : probs[token * top_k + row_slot[r]];
}

// y[t] = [y[t] +] sum over slots, ascending, of rows[token_row[t, slot]] [+ shared[t]] [+ residual[t]].
// K slots at a time (the most there are, unless that is more than eight), U vectors of each.
template <class T, int N, int K, int U>
__global__ void __launch_bounds__(kThreads)
    sum_slots(const T* rows, const int32_t* token_row, const T* shared, const T* residual, int num_tokens,
              int width, int pieces, int top_k, bool add, T* y, const float* drow_probs, float* dprobs) {
  const unsigned unit = blockIdx.x * kWarps + threadIdx.x / 32;
  const unsigned t = unit / pieces;
  if (t >= num_tokens) return;
  const int lane = threadIdx.x % 32, piece = unit - t * pieces;
  const int32_t* row_of = token_row + static_cast<int64_t>(t) * top_k;
  const int first = (piece * U * 32 + lane) * N;
  const int64_t at = static_cast<int64_t>(t) * width;
  float sum[U][N] = {};
  Vec<T, N> more[U], last[U];
  for (int slot = 0; slot < top_k; slot += K) {
    Vec<T, N> v[K][U];
#pragma unroll
    for (int s = 0; s < K; ++s) {
      const int64_t row = slot + s < top_k ? row_of[slot + s] : -1;
#pragma unroll
      for (int u = 0; u < U; ++u) {
        const int column = first + u * 32 * N;
        if (row >= 0 && column < width)
          v[s][u] = Vec<T, N>::load(rows + row * width + column);
        else
          for (int j = 0; j < N; ++j) v[s][u].at[j] = from_float<T>(0);
      }
    }
#pragma unroll
    for (int u = 0; u < U; ++u) {
      const int column = first + u * 32 * N;
      if (slot == 0 && column < width) {
        if (shared) more[u] = Vec<T, N>::load(shared + at + column);
        if (residual) last[u] = Vec<T, N>::load(residual + at + column);
        if (add) last[u] = Vec<T, N>::load(y + at + column);
      }
#pragma unroll
      for (int s = 0; s < K; ++s)
        for (int j = 0; j < N; ++j) sum[u][j] += to_float(v[s][u].at[j]);
    }
  }
#pragma unroll
  for (int u = 0; u < U; ++u) {
    const int column = first + u * 32 * N;
    if (column >= width) continue;
    Vec<T, N> out;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      float x = sum[u][j];
      if (shared) x += to_float(more[u].at[j]);
      if (residual || add) x += to_float(last[u].at[j]);
      out.at[j] = from_float<T>(x);
    }
    out.store(y + at + column);
  }
  if (dprobs && piece == 0)
    for (int s = lane; s < top_k; s += 32)
      dprobs[static_cast<int64_t>(t) * top_k + s] = row_of[s] < 0 ? 0.0f : drow_probs[row_of[s]];
}

// Warps, one per piece of a row: the grid must hold them.
unsigned grid_of(std::string_view kernel, int64_t rows, int64_t pieces) {
  if (rows * pieces > std::numeric_limits<int32_t>::max())
    base::fail("[{}] {} rows in {} pieces each are too many for one launch", kernel, rows, pieces);
  return static_cast<unsigned>(ceil_div(rows * pieces, kWarps));
}

template <class T, int N>
CudaLaunch launch_gather(std::string_view kernel, const Arg& from, const Arg& probs, const Arg& offsets,
                         const Arg& row_token, const Arg& row_slot, const Arg& to, const Arg& row_probs,
                         device::cuda::Lane& lane) {
  const int64_t width = from.dim(1), pieces = std::max<int64_t>(1, ceil_div(width, 32 * N * kInFlight));
  const unsigned blocks = grid_of(kernel, to.dim(0), pieces);
  const T* source = from.as<T>();
  T* target = to.as<T>();
  const float* chances = probs.as<float>();
  float* row_chances = row_probs.as<float>();
  const int32_t *token = row_token.as<int32_t>(), *slot = row_slot.as<int32_t>(),
                *num_rows = offsets.as<int32_t>() + offsets.dim(0) - 1;
  const int top_k = probs.present ? static_cast<int>(probs.dim(1)) : 0;
  return [=, stream = lane.stream()] {
    if (blocks == 0) return;
    gather<T, N><<<blocks, kThreads, 0, stream>>>(source, chances, token, slot, num_rows,
                                                  static_cast<int>(width), static_cast<int>(pieces), top_k,
                                                  target, row_chances);
    PLEAT_CUDA_LAUNCHED();
  };
}

struct Sum {
  const Arg &rows, &token_row, &shared, &residual, &y, &drow_probs, &dprobs;
};

template <class T, int N, int K, int U>
CudaLaunch launch_sum(std::string_view kernel, const Sum& sum, device::cuda::Lane& lane) {
  const int64_t T_ = sum.y.dim(0), width = sum.y.dim(1),
                pieces = std::max<int64_t>(1, ceil_div(width, 32 * N * U));
  const unsigned blocks = grid_of(kernel, T_, pieces);
  const T *rows = sum.rows.as<T>(), *shared = sum.shared.as<T>(), *residual = sum.residual.as<T>();
  const int32_t* token_row = sum.token_row.as<int32_t>();
  T* y = sum.y.as<T>();
  const float* drow_probs = sum.drow_probs.as<float>();
  float* dprobs = sum.dprobs.as<float>();
  const bool add = sum.y.into() == Into::Accumulate;
  const int top_k = static_cast<int>(sum.token_row.dim(1));
  return [=, stream = lane.stream()] {
    if (blocks == 0) return;
    sum_slots<T, N, K, U><<<blocks, kThreads, 0, stream>>>(
        rows, token_row, shared, residual, static_cast<int>(T_), static_cast<int>(width),
        static_cast<int>(pieces), top_k, add, y, drow_probs, dprobs);
    PLEAT_CUDA_LAUNCHED();
  };
}

template <class T, int N>
CudaLaunch pick_sum(std::string_view kernel, const Sum& sum, device::cuda::Lane& lane) {
  const int64_t k = sum.token_row.dim(1);
  if (k <= 2) return launch_sum<T, N, 2, 2>(kernel, sum, lane);
  if (k <= 4) return launch_sum<T, N, 4, 1>(kernel, sum, lane);
  return launch_sum<T, N, 8, 1>(kernel, sum, lane);
}

CudaLaunch prepare_sum(std::string_view kernel, const Sum& sum, device::cuda::Lane& lane) {
  check_rank(kernel, "rows", sum.rows, 2);
  check_rank(kernel, "token_row", sum.token_row, 2);
  require_dtype(kernel, "token_row", sum.token_row, tensor::Dtype::I32);
  CudaLaunch out;
  with_float(sum.rows.dtype, [&](auto zero) {
    using T = decltype(zero);
    out = sum.y.dim(1) % kWide<T> == 0 ? pick_sum<T, kWide<T>>(kernel, sum, lane)
                                       : pick_sum<T, 1>(kernel, sum, lane);
  });
  return out;
}

CudaLaunch prepare_gather(std::string_view kernel, const Arg& from, const Arg& probs, const Arg& offsets,
                          const Arg& row_token, const Arg& row_slot, const Arg& to, const Arg& row_probs,
                          device::cuda::Lane& lane) {
  CudaLaunch out;
  with_float(from.dtype, [&](auto zero) {
    using T = decltype(zero);
    out = from.dim(1) % kWide<T> == 0
              ? launch_gather<T, kWide<T>>(kernel, from, probs, offsets, row_token, row_slot, to, row_probs,
                                           lane)
              : launch_gather<T, 1>(kernel, from, probs, offsets, row_token, row_slot, to, row_probs, lane);
  });
  return out;
}

const Arg kAbsent{};

}  // namespace

CudaLaunch prepare_permute_forward(const Invocation& call, device::cuda::Lane& lane) {
  constexpr std::string_view kName = "permute";
  check_rank(kName, "x", call[0], 2);
  check_rank(kName, "probs", call[1], 2);
  check_offsets(kName, call[2]);
  check_rank(kName, "rows", call[5], 2);
  const int64_t R = call[5].dim(0);
  require_shape(kName, "probs", call[1], {call[0].dim(0), call[1].dim(1)});
  require_dtype(kName, "probs", call[1], tensor::Dtype::F32);
  require_dtype(kName, "row_token", call[3], tensor::Dtype::I32);
  require_shape(kName, "row_token", call[3], {R});
  require_dtype(kName, "row_slot", call[4], tensor::Dtype::I32);
  require_shape(kName, "row_slot", call[4], {R});
  require_dtype(kName, "rows", call[5], call[0].dtype);
  require_shape(kName, "rows", call[5], {R, call[0].dim(1)});
  require_dtype(kName, "row_probs", call[6], tensor::Dtype::F32);
  require_shape(kName, "row_probs", call[6], {R});
  return prepare_gather(kName, call[0], call[1], call[2], call[3], call[4], call[5], call[6], lane);
}

CudaLaunch prepare_permute_backward_input(const Invocation& call, device::cuda::Lane& lane) {
  constexpr std::string_view kName = "permute";
  check_rank(kName, "drows", call[0], 2);
  check_rank(kName, "token_row", call[2], 2);
  check_rank(kName, "dx", call[3], 2);
  const int64_t T = call[2].dim(0), k = call[2].dim(1);
  require_shape(kName, "drow_probs", call[1], {call[0].dim(0)});
  require_dtype(kName, "drow_probs", call[1], tensor::Dtype::F32);
  require_dtype(kName, "dx", call[3], call[0].dtype);
  require_shape(kName, "dx", call[3], {T, call[0].dim(1)});
  require_dtype(kName, "dprobs", call[4], tensor::Dtype::F32);
  require_shape(kName, "dprobs", call[4], {T, k});
  return prepare_sum(kName, {call[0], call[2], kAbsent, kAbsent, call[3], call[1], call[4]}, lane);
}

CudaLaunch prepare_combine_forward(const Invocation& call, device::cuda::Lane& lane) {
  constexpr std::string_view kName = "combine";
  check_rank(kName, "rows", call[0], 2);
  check_rank(kName, "token_row", call[1], 2);
  const int64_t T = call[1].dim(0), h = call[0].dim(1);
  require_shape(kName, "residual", call[2], {T, h});
  require_dtype(kName, "residual", call[2], call[0].dtype);
  require_shape(kName, "shared", call[3], {T, h});
  require_dtype(kName, "shared", call[3], call[0].dtype);
  require_shape(kName, "y", call[4], {T, h});
  require_dtype(kName, "y", call[4], call[0].dtype);
  if (call[4].into() != Into::Overwrite) base::fail("[{}] output 'y' can only be overwritten", kName);
  return prepare_sum(kName, {call[0], call[1], call[3], call[2], call[4], kAbsent, kAbsent}, lane);
}

CudaLaunch prepare_combine_backward_input(const Invocation& call, device::cuda::Lane& lane) {
  constexpr std::string_view kName = "combine";
  check_rank(kName, "dy", call[0], 2);
  check_rank(kName, "row_token", call[1], 1);
  check_offsets(kName, call[2]);
  require_dtype(kName, "row_token", call[1], tensor::Dtype::I32);
  require_dtype(kName, "drows", call[3], call[0].dtype);
  require_shape(kName, "drows", call[3], {call[1].dim(0), call[0].dim(1)});
  return prepare_gather(kName, call[0], kAbsent, call[2], call[1], kAbsent, call[3], kAbsent, lane);
}

}  // namespace pleat::kernels
