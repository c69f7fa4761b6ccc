// Small kernels around attention: the log-sum-exp in cuDNN's order, sinks applied to a result without them,
// and the gradient of the sinks.
#include "device/cuda/check.h"
#include "kernels/attention/attention_own.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/types.cuh"

namespace pleat::kernels::attention {
namespace {

using namespace cuda;

constexpr int kThreads = 256, kTile = 32;

// 32 x 32 tiles through shared memory: reads and writes both run along a row.
__global__ void __launch_bounds__(kThreads)
    transpose(const float* lse, float* to, int heads, int64_t seq_len) {
  __shared__ float tile[kTile][kTile + 1];
  const int64_t sequence = blockIdx.z, first_row = blockIdx.x * static_cast<int64_t>(kTile);
  const int first_head = static_cast<int>(blockIdx.y) * kTile, x = static_cast<int>(threadIdx.x) % kTile;
  for (int y = static_cast<int>(threadIdx.x) / kTile; y < kTile; y += kThreads / kTile)
    if (first_row + y < seq_len && first_head + x < heads)
      tile[y][x] = lse[(sequence * seq_len + first_row + y) * heads + first_head + x];
  __syncthreads();
  for (int y = static_cast<int>(threadIdx.x) / kTile; y < kTile; y += kThreads / kTile)
    if (first_row + x < seq_len && first_head + y < heads)
      to[(sequence * heads + first_head + y) * seq_len + first_row + x] = tile[x][y];
}

// One warp per (row, head).
template <class T>
__global__ void __launch_bounds__(kThreads)
    apply(const T* sinks, T* out, float* lse, int64_t count, int heads, int dv) {
  const int64_t at = blockIdx.x * static_cast<int64_t>(kThreads / 32) + threadIdx.x / 32;
  if (at >= count) return;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float sink = to_float(sinks[at % heads]), old = lse[at];
  // The part that the visible rows keep: 1 / (1 + exp(sink - lse)).
  const float kept = 1.0f / (1.0f + expf(sink - old));
  T* row = out + at * dv;
  for (int c = lane; c < dv; c += 32) row[c] = from_float<T>(to_float(row[c]) * kept);
  __syncwarp();
  if (lane == 0) {
    const float most = fmaxf(sink, old);
    lse[at] = most + log1pf(expf(fminf(sink, old) - most));
  }
}

constexpr int kChunkRows = kSinkChunkRows;

// parts[head, chunk] = sum over the rows of a chunk of exp(sink - lse) * (dout . out). A warp takes every
// eighth row, lanes split the head.
template <class T>
__global__ void __launch_bounds__(kThreads)
    sum_chunk(const T* dout, const T* out, const float* lse, const T* sinks, int64_t rows, int heads, int dv,
              double* parts) {
  const int head = static_cast<int>(blockIdx.y), lane = static_cast<int>(threadIdx.x) % 32;
  const double sink = to_float(sinks[head]);
  const int64_t begin = blockIdx.x * static_cast<int64_t>(kChunkRows);
  const int64_t end = min(rows, begin + kChunkRows);
  double sum = 0;
  for (int64_t i = begin + threadIdx.x / 32; i < end; i += kThreads / 32) {
    const int64_t at = (i * heads + head) * dv;
    double dot = 0;
    for (int c = lane; c < dv; c += 32)
      dot += static_cast<double>(to_float(dout[at + c])) * static_cast<double>(to_float(out[at + c]));
    sum += exp(sink - static_cast<double>(lse[i * heads + head])) * warp_sum(dot);
  }
  sum = block_sum<kThreads>(lane == 0 ? sum : 0.0);
  if (threadIdx.x == 0) parts[static_cast<int64_t>(head) * gridDim.x + blockIdx.x] = sum;
}

// One warp per head.
template <class G>
__global__ void __launch_bounds__(32) finish(const double* parts, int64_t num_parts, G* dsinks, Into into) {
  const int head = static_cast<int>(blockIdx.x);
  double sum = 0;
  for (int64_t i = threadIdx.x; i < num_parts; i += 32) sum += parts[head * num_parts + i];
  sum = warp_sum(sum);
  if (threadIdx.x == 0) {
    const double before = into == Into::Accumulate ? static_cast<double>(to_float(dsinks[head])) : 0.0;
    dsinks[head] = from_float<G>(static_cast<float>(before - sum));
  }
}

}  // namespace

CudaLaunch transpose_lse(const float* lse, float* to, int64_t rows, int heads, int64_t seq_len,
                         device::cuda::Lane& lane) {
  const dim3 grid(static_cast<unsigned>(ceil_div(seq_len, kTile)),
                  static_cast<unsigned>(ceil_div(heads, kTile)), static_cast<unsigned>(rows / seq_len));
  return [=, stream = lane.stream()] {
    if (rows == 0) return;
    transpose<<<grid, kThreads, 0, stream>>>(lse, to, heads, seq_len);
    PLEAT_CUDA_LAUNCHED();
  };
}

CudaLaunch apply_sinks(const AttentionShape& shape, const void* sinks, void* out, float* lse,
                       tensor::Dtype dtype, device::cuda::Lane& lane) {
  CudaLaunch launch;
  with_float(dtype, [&](auto zero) {
    using T = decltype(zero);
    const int64_t count = shape.rows * shape.heads;
    const unsigned blocks = static_cast<unsigned>(ceil_div(count, kThreads / 32));
    launch = [=, heads = shape.heads, dv = shape.v_head_dim, stream = lane.stream()] {
      if (count == 0) return;
      apply<T><<<blocks, kThreads, 0, stream>>>(static_cast<const T*>(sinks), static_cast<T*>(out), lse,
                                                count, heads, dv);
      PLEAT_CUDA_LAUNCHED();
    };
  });
  return launch;
}

CudaLaunch sinks_backward(const AttentionShape& shape, const void* dout, const void* out, const float* lse,
                          const void* sinks, tensor::Dtype dtype, const Arg& dsinks,
                          std::span<std::byte> scratch, device::cuda::Lane& lane) {
  CudaLaunch launch;
  const int64_t chunks = ceil_div(shape.rows, kChunkRows);
  const auto heads = static_cast<unsigned>(shape.heads);
  double* const parts = reinterpret_cast<double*>(scratch_for(scratch, sink_bytes(shape.rows, shape.heads)));
  with_float(dtype, [&](auto zero) {
    with_float(dsinks.dtype, [&](auto gradient) {
      using T = decltype(zero);
      using G = decltype(gradient);
      launch = [=, rows = shape.rows, dv = shape.v_head_dim, into = dsinks.into(), to = dsinks.as<G>(),
                stream = lane.stream()] {
        if (chunks > 0) {
          sum_chunk<T><<<dim3(static_cast<unsigned>(chunks), heads), kThreads, 0, stream>>>(
              static_cast<const T*>(dout), static_cast<const T*>(out), lse, static_cast<const T*>(sinks),
              rows, static_cast<int>(heads), dv, parts);
          PLEAT_CUDA_LAUNCHED();
        }
        finish<G><<<heads, 32, 0, stream>>>(parts, chunks, to, into);
        PLEAT_CUDA_LAUNCHED();
      };
    });
  });
  return launch;
}

}  // namespace pleat::kernels::attention
