// Gated activation of expert rows on the GPU, with the routing probability multiplied in. Forward: one thread
// takes 16 bytes of gate and of up. Backward: a warp or a block takes a row, since the probability's gradient
// is a sum over it.
#include "device/cuda/check.h"
#include "kernels/cuda/bind.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/types.cuh"
#include "kernels/swiglu/activation.cuh"
#include "program/limits.h"

namespace pleat::kernels {
namespace {

using namespace cuda;

constexpr int kThreads = 256;
constexpr int kRowThreads = 128;    // of a backward block
constexpr int64_t kWideRow = 4096;  // from here a backward block takes one row, below it one per warp

template <class T, int N, class F>
__global__ void __launch_bounds__(kThreads)
    forward(const T* gu, const float* row_probs, const int32_t* num_rows, T* a, int width, F f) {
  const unsigned per_row = static_cast<unsigned>(width) / N;
  const unsigned i = blockIdx.x * kThreads + threadIdx.x;
  const unsigned row = i / per_row;
  if (row >= static_cast<unsigned>(*num_rows)) return;
  const int64_t column = (i - row * per_row) * N, at = static_cast<int64_t>(row) * 2 * width + column;
  const auto gate = Vec<T, N>::load(gu + at), up = Vec<T, N>::load(gu + at + width);
  const float p = row_probs[row];
  Vec<T, N> out;
#pragma unroll
  for (int j = 0; j < N; ++j)
    out.at[j] = from_float<T>(f.value(to_float(gate.at[j]), to_float(up.at[j])) * p);
  out.store(a + static_cast<int64_t>(row) * width + column);
}

// kPerRow threads take a row: 32 or the whole block.
template <class T, int N, int kPerRow, class F>
__global__ void __launch_bounds__(kRowThreads)
    backward(const T* da, const T* gu, const float* row_probs, const int32_t* num_rows, T* dgu,
             float* drow_probs, bool add, int width, F f) {
  const int64_t row = blockIdx.x * static_cast<int64_t>(kRowThreads / kPerRow) + threadIdx.x / kPerRow;
  if (row >= *num_rows) return;  // of a row that is one block, all threads
  const int lane = threadIdx.x % kPerRow;
  const T *gate_row = gu + row * 2 * width, *up_row = gate_row + width, *da_row = da + row * width;
  T *dgate_row = dgu + row * 2 * width, *dup_row = dgate_row + width;
  const float p = row_probs[row];
  float sum = 0;
#pragma unroll 2
  for (int c = lane * N; c < width; c += kPerRow * N) {
    const auto d = Vec<T, N>::load(da_row + c);
    const auto gate = Vec<T, N>::load(gate_row + c), up = Vec<T, N>::load(up_row + c);
    Vec<T, N> dgate, dup;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const GatePoint at = f.point(to_float(gate.at[j]), to_float(up.at[j]));
      const float dj = to_float(d.at[j]);
      dgate.at[j] = from_float<T>(dj * p * at.dgate);
      dup.at[j] = from_float<T>(dj * p * at.dup);
      sum += dj * at.value;
    }
    dgate.store(dgate_row + c);
    dup.store(dup_row + c);
  }
  sum = block_sum<kPerRow>(sum);
  if (lane == 0) drow_probs[row] = add ? drow_probs[row] + sum : sum;
}

template <class T, int N, class F>
CudaLaunch launch_forward(const Invocation& call, device::cuda::Lane& lane, F f) {
  const signature::expert_swiglu::Forward<Arg> args(call.args);
  const T* gu = args.gu.as<T>();
  const float* row_probs = args.row_probs.as<float>();
  const int32_t* num_rows = args.offsets.as<int32_t>() + args.offsets.dim(0) - 1;
  T* a = args.a.as<T>();
  const int64_t vectors = args.a.size() / N, width = args.a.dim(1);
  if (vectors > program::kMaxGpuVectors)
    refuse(args.a, "{} rows of {} are too many for one launch", args.a.dim(0), width);
  return [=, stream = lane.stream()] {
    if (vectors == 0) return;
    forward<T, N, F><<<static_cast<unsigned>(ceil_div(vectors, kThreads)), kThreads, 0, stream>>>(
        gu, row_probs, num_rows, a, static_cast<int>(width), f);
    PLEAT_CUDA_LAUNCHED();
  };
}

template <class T, int N, int kPerRow, class F>
CudaLaunch launch_backward(const Invocation& call, device::cuda::Lane& lane, F f) {
  const signature::expert_swiglu::BackwardInput<Arg> args(call.args);
  const T *da = args.da.as<T>(), *gu = args.gu.as<T>();
  const float* row_probs = args.row_probs.as<float>();
  const int32_t* num_rows = args.offsets.as<int32_t>() + args.offsets.dim(0) - 1;
  T* dgu = args.dgu.as<T>();
  float* drow_probs = args.drow_probs.as<float>();
  const bool add = args.drow_probs.into() == Into::Accumulate;
  const int64_t rows = args.da.dim(0), width = args.da.dim(1);
  return [=, stream = lane.stream()] {
    if (rows == 0) return;
    backward<T, N, kPerRow, F>
        <<<static_cast<unsigned>(ceil_div(rows, kRowThreads / kPerRow)), kRowThreads, 0, stream>>>(
            da, gu, row_probs, num_rows, dgu, drow_probs, add, static_cast<int>(width), f);
    PLEAT_CUDA_LAUNCHED();
  };
}

CudaLaunch prepare_forward(const Invocation& call, device::cuda::Lane& lane) {
  const signature::expert_swiglu::Forward<Arg> args(call.args);
  CudaLaunch out;
  if (args.row_probs.dtype != tensor::Dtype::F32) return out;
  with_float(args.a.dtype, [&](auto zero) {
    using T = decltype(zero);
    with_activation(call, [&](auto f) {
      out = args.a.dim(1) % kWide<T> == 0 ? launch_forward<T, kWide<T>>(call, lane, f)
                                          : launch_forward<T, 1>(call, lane, f);
    });
  });
  return out;
}

CudaLaunch prepare_backward(const Invocation& call, device::cuda::Lane& lane) {
  const signature::expert_swiglu::BackwardInput<Arg> args(call.args);
  CudaLaunch out;
  if (args.row_probs.dtype != tensor::Dtype::F32) return out;
  with_float(args.da.dtype, [&](auto zero) {
    using T = decltype(zero);
    with_activation(call, [&](auto f) {
      if (args.da.dim(1) % kWide<T> != 0)
        out = launch_backward<T, 1, 32>(call, lane, f);
      else if (args.da.dim(1) < kWideRow)
        out = launch_backward<T, kWide<T>, 32>(call, lane, f);
      else
        out = launch_backward<T, kWide<T>, kRowThreads>(call, lane, f);
    });
  });
  return out;
}

constexpr CudaBinding kTable[] = {
    row<signature::expert_swiglu::Forward>(prepare_forward),
    row<signature::expert_swiglu::BackwardInput>(prepare_backward),
};

}  // namespace

std::span<const CudaBinding> expert_swiglu_cuda_bindings() { return kTable; }

}  // namespace pleat::kernels
