// Gated activations on the GPU. One thread takes 16 bytes of gate and of up; a pure stream.
#include "device/cuda/check.h"
#include "kernels/cuda/bind.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/swiglu/activation.cuh"
#include "kernels/swiglu/activation.h"
#include "program/limits.h"

namespace pleat::kernels {
namespace {

using namespace cuda;

constexpr int kThreads = 256;

// N elements per thread: 16 bytes where the width allows, one else.
template <class T, int N, class F>
__global__ void __launch_bounds__(kThreads) forward(const T* gu, T* a, int64_t rows, unsigned per_row, F f) {
  const unsigned row = (blockIdx.x * kThreads + threadIdx.x) / per_row;
  const unsigned part = blockIdx.x * kThreads + threadIdx.x - row * per_row;
  if (row >= rows) return;
  const int64_t width = static_cast<int64_t>(per_row) * N, at = row * 2 * width + part * N;
  float gate[N], up[N], out[N];
  const auto gates = Pack<T, N>::load(gu + at), ups = Pack<T, N>::load(gu + at + width);
  gates.get(gate);
  ups.get(up);
#pragma unroll
  for (int j = 0; j < N; ++j) out[j] = f.value(gate[j], up[j]);
  Pack<T, N> packed;
  packed.set(out);
  packed.store(a + row * width + part * N);
}

template <class T, int N, class F>
__global__ void __launch_bounds__(kThreads)
    backward(const T* da, const T* gu, T* dgu, int64_t rows, unsigned per_row, F f) {
  const unsigned row = (blockIdx.x * kThreads + threadIdx.x) / per_row;
  const unsigned part = blockIdx.x * kThreads + threadIdx.x - row * per_row;
  if (row >= rows) return;
  const int64_t width = static_cast<int64_t>(per_row) * N, at = row * 2 * width + part * N;
  const auto ds = Pack<T, N>::load(da + row * width + part * N), gates = Pack<T, N>::load(gu + at),
             ups = Pack<T, N>::load(gu + at + width);
  float d[N], gate[N], up[N];
  ds.get(d);
  gates.get(gate);
  ups.get(up);
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const GatePoint p = f.point(gate[j], up[j]);
    gate[j] = d[j] * p.dgate;
    up[j] = d[j] * p.dup;
  }
  Pack<T, N> packed;
  packed.set(gate);
  packed.store(dgu + at);
  packed.set(up);
  packed.store(dgu + at + width);
}

// Threads are counted in 32 bits: dividing wider numbers would take longer than the rest.
unsigned num_blocks(int64_t rows, int64_t per_row) {
  if (rows * per_row > program::kMaxGpuVectors)
    base::fail("[swiglu] {} rows of {} vectors are too many for one launch", rows, per_row);
  return static_cast<unsigned>(ceil_div(rows * per_row, kThreads));
}

template <class T, int N, class F>
CudaLaunch launch_forward(const Invocation& call, device::cuda::Lane& lane, F f) {
  const signature::swiglu::Forward<Arg> args(call.args);
  const T* gu = args.gu.as<T>();
  T* a = args.a.as<T>();
  const int64_t rows = args.a.dim(0), width = args.a.dim(1);
  const int64_t per_row = width / N;
  const unsigned blocks = num_blocks(rows, per_row);
  return [=, stream = lane.stream()] {
    if (blocks == 0) return;
    forward<T, N, F><<<blocks, kThreads, 0, stream>>>(gu, a, rows, static_cast<unsigned>(per_row), f);
    PLEAT_CUDA_LAUNCHED();
  };
}

template <class T, int N, class F>
CudaLaunch launch_backward(const Invocation& call, device::cuda::Lane& lane, F f) {
  const signature::swiglu::BackwardInput<Arg> args(call.args);
  const T *da = args.da.as<T>(), *gu = args.gu.as<T>();
  T* dgu = args.dgu.as<T>();
  const int64_t rows = args.da.dim(0), width = args.da.dim(1);
  const int64_t per_row = width / N;
  const unsigned blocks = num_blocks(rows, per_row);
  return [=, stream = lane.stream()] {
    if (blocks == 0) return;
    backward<T, N, F><<<blocks, kThreads, 0, stream>>>(da, gu, dgu, rows, static_cast<unsigned>(per_row), f);
    PLEAT_CUDA_LAUNCHED();
  };
}

CudaLaunch prepare_forward(const Invocation& call, device::cuda::Lane& lane) {
  const signature::swiglu::Forward<Arg> args(call.args);
  CudaLaunch out;
  with_float(args.gu.dtype, [&](auto zero) {
    using T = decltype(zero);
    with_activation(call, [&](auto f) {
      out = args.a.dim(1) % kWide<T> == 0 ? launch_forward<T, kWide<T>>(call, lane, f)
                                          : launch_forward<T, 1>(call, lane, f);
    });
  });
  return out;
}

CudaLaunch prepare_backward(const Invocation& call, device::cuda::Lane& lane) {
  const signature::swiglu::BackwardInput<Arg> args(call.args);
  CudaLaunch out;
  with_float(args.da.dtype, [&](auto zero) {
    using T = decltype(zero);
    with_activation(call, [&](auto f) {
      out = args.da.dim(1) % kWide<T> == 0 ? launch_backward<T, kWide<T>>(call, lane, f)
                                           : launch_backward<T, 1>(call, lane, f);
    });
  });
  return out;
}

constexpr CudaBinding kTable[] = {
    row<signature::swiglu::Forward>(prepare_forward),
    row<signature::swiglu::BackwardInput>(prepare_backward),
};

}  // namespace

std::span<const CudaBinding> swiglu_cuda_bindings() { return kTable; }

}  // namespace pleat::kernels
