// Gated activations on the GPU. One thread takes 16 bytes of gate and of up; a pure stream.
#include "device/cuda/check.h"
#include "kernels/cuda/bind.h"
#include "kernels/cuda/types.cuh"
#include "kernels/math/require.h"
#include "kernels/swiglu/activation.cuh"
#include "kernels/swiglu/activation.h"

namespace pleat::kernels {
namespace {

using namespace cuda;

constexpr int kThreads = 256;

// N elements per thread: 16 bytes where the width allows, one else.
template <class T, int N, class F>
__global__ void __launch_bounds__(kThreads) forward(const T* gu, T* a, int64_t rows, int width, F f) {
  const int64_t i = (blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x) * N;
  if (i >= rows * width) return;
  const int64_t row = i / width;
  const int column = static_cast<int>(i - row * width);
  const auto gate = Vec<T, N>::load(gu + row * 2 * width + column);
  const auto up = Vec<T, N>::load(gu + row * 2 * width + width + column);
  Vec<T, N> out;
#pragma unroll
  for (int j = 0; j < N; ++j) out.at[j] = from_float<T>(f.value(to_float(gate.at[j]), to_float(up.at[j])));
  out.store(a + i);
}

template <class T, int N, class F>
__global__ void __launch_bounds__(kThreads)
    backward(const T* da, const T* gu, T* dgu, int64_t rows, int width, F f) {
  const int64_t i = (blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x) * N;
  if (i >= rows * width) return;
  const int64_t row = i / width;
  const int64_t at = row * 2 * width + (i - row * width);
  const auto d = Vec<T, N>::load(da + i);
  const auto gate = Vec<T, N>::load(gu + at), up = Vec<T, N>::load(gu + at + width);
  Vec<T, N> dgate, dup;
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const GatePoint p = f.point(to_float(gate.at[j]), to_float(up.at[j]));
    dgate.at[j] = from_float<T>(to_float(d.at[j]) * p.dgate);
    dup.at[j] = from_float<T>(to_float(d.at[j]) * p.dup);
  }
  dgate.store(dgu + at);
  dup.store(dgu + at + width);
}

template <class T, int N, class F>
CudaLaunch launch_forward(const Invocation& call, device::cuda::Lane& lane, F f) {
  const T* gu = call[0].as<T>();
  T* a = call[1].as<T>();
  const int64_t rows = call[1].dim(0), width = call[1].dim(1);
  const int64_t blocks = ceil_div(rows * width, static_cast<int64_t>(kThreads) * N);
  return [=, stream = lane.stream()] {
    if (blocks == 0) return;
    forward<T, N, F>
        <<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(gu, a, rows, static_cast<int>(width), f);
    PLEAT_CUDA_LAUNCHED();
  };
}

template <class T, int N, class F>
CudaLaunch launch_backward(const Invocation& call, device::cuda::Lane& lane, F f) {
  const T *da = call[0].as<T>(), *gu = call[1].as<T>();
  T* dgu = call[2].as<T>();
  const int64_t rows = call[0].dim(0), width = call[0].dim(1);
  const int64_t blocks = ceil_div(rows * width, static_cast<int64_t>(kThreads) * N);
  return [=, stream = lane.stream()] {
    if (blocks == 0) return;
    backward<T, N, F><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(da, gu, dgu, rows,
                                                                              static_cast<int>(width), f);
    PLEAT_CUDA_LAUNCHED();
  };
}

CudaLaunch prepare_forward(const Invocation& call, device::cuda::Lane& lane) {
  require_rank("swiglu", "a", call[1], 2);
  require_shape("swiglu", "gu", call[0], {call[1].dim(0), 2 * call[1].dim(1)});
  require_same_dtype("swiglu", call, {"gu", "a"});
  CudaLaunch out;
  with_float(call[0].dtype, [&](auto zero) {
    using T = decltype(zero);
    with_activation("swiglu", call, [&](auto f) {
      out = call[1].dim(1) % kWide<T> == 0 ? launch_forward<T, kWide<T>>(call, lane, f)
                                           : launch_forward<T, 1>(call, lane, f);
    });
  });
  return out;
}

CudaLaunch prepare_backward(const Invocation& call, device::cuda::Lane& lane) {
  require_rank("swiglu", "da", call[0], 2);
  require_shape("swiglu", "gu", call[1], {call[0].dim(0), 2 * call[0].dim(1)});
  require_shape("swiglu", "dgu", call[2], {call[0].dim(0), 2 * call[0].dim(1)});
  require_same_dtype("swiglu", call, {"da", "gu", "dgu"});
  CudaLaunch out;
  with_float(call[0].dtype, [&](auto zero) {
    using T = decltype(zero);
    with_activation("swiglu", call, [&](auto f) {
      out = call[0].dim(1) % kWide<T> == 0 ? launch_backward<T, kWide<T>>(call, lane, f)
                                           : launch_backward<T, 1>(call, lane, f);
    });
  });
  return out;
}

}  // namespace

std::span<const CudaBinding> swiglu_cuda_bindings() {
  using program::KernelKind;
  using program::Phase;
  static constexpr CudaBinding rows[] = {
      {KernelKind::swiglu, Phase::Forward, prepare_forward},
      {KernelKind::swiglu, Phase::BackwardInput, prepare_backward},
  };
  return rows;
}

}  // namespace pleat::kernels
