// A learned gate per token on the GPU. Backward holds a row in registers (gate_held.cuh). Forward, and
// backward of widths that are no multiple of 16 bytes or too wide to hold: a warp takes a row, its dot
// products first, then the scaled row, whose second read comes from the cache.
#include "device/cuda/check.h"
#include "kernels/cuda/bind.h"
#include "kernels/cuda/column_sum.cuh"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/team.cuh"
#include "kernels/sigmoid_gate/contract.h"
#include "kernels/sigmoid_gate/gate_held.cuh"

namespace pleat::kernels {
namespace {

using namespace cuda;

constexpr int kThreads = 128, kWarps = kThreads / 32;

// Sum over a row of a[j] b[j], in every lane of its warp.
template <class T, int N>
__device__ inline float dot(const T* a, const T* b, int64_t width) {
  float sum = 0;
#pragma unroll 4
  for (int64_t j = threadIdx.x % 32 * N; j < width; j += 32 * N) {
    float p[N], q[N];
    Pack<T, N>::load(a + j).get(p);
    Pack<T, N>::load(b + j).get(q);
#pragma unroll
    for (int i = 0; i < N; ++i) sum += p[i] * q[i];
  }
  return warp_sum(sum);
}

// to[j] = scale from[j] (+ to[j])
template <class T, int N>
__device__ inline void scale_row(const T* from, float scale, T* to, int64_t width, bool accumulate) {
#pragma unroll 4
  for (int64_t j = threadIdx.x % 32 * N; j < width; j += 32 * N) {
    float a[N], b[N] = {};
    Pack<T, N>::load(from + j).get(a);
    if (accumulate) Pack<T, N>::load(to + j).get(b);
#pragma unroll
    for (int i = 0; i < N; ++i) a[i] = b[i] + scale * a[i];
    Pack<T, N> pack;
    pack.set(a);
    pack.store(to + j);
  }
}

__device__ inline int64_t row_of_warp() {
  return blockIdx.x * static_cast<int64_t>(kWarps) + threadIdx.x / 32;
}

template <class T, int N>
__global__ void __launch_bounds__(kThreads) forward(GateArgs<T> p) {
  const int64_t row = row_of_warp(), at = row * p.width;
  if (row >= p.rows) return;
  scale_row<T, N>(p.y + at, gate_of(dot<T, N>(p.x + at, p.w, p.width)), p.out + at, p.width, false);
}

template <class T, int N>
__global__ void __launch_bounds__(kThreads) backward(GateArgs<T> p) {
  const int64_t row = row_of_warp(), at = row * p.width;
  if (row >= p.rows) return;
  const float gate = gate_of(dot<T, N>(p.x + at, p.w, p.width));
  const float slope = dot<T, N>(p.dout + at, p.y + at, p.width) * gate * (1.0f - gate);
  scale_row<T, N>(p.w, slope, p.dx + at, p.width, p.accumulate);
  scale_row<T, N>(p.dout + at, gate, p.dy + at, p.width, false);
}

template <class T, int N>
__global__ void __launch_bounds__(kThreads) slopes(GateArgs<T> p) {
  const int64_t row = row_of_warp(), at = row * p.width;
  if (row >= p.rows) return;
  const float gate = gate_of(dot<T, N>(p.x + at, p.w, p.width));
  const float slope = dot<T, N>(p.dout + at, p.y + at, p.width) * gate * (1.0f - gate);
  if (threadIdx.x % 32 == 0) p.coefficients[row] = slope;
}

template <class T, int N>
struct WeightTerms {
  const T* x;
  const float* coefficients;
  int64_t width;
  struct Raw {
    Pack<T, N> x;
    float coefficient;
  };
  __device__ Raw raw(int64_t row, int64_t column) const {
    return {Pack<T, N>::load(x + row * width + column), coefficients[row]};
  }
  __device__ void add(const Raw& r, float (&sums)[N]) const {
    float a[N];
    r.x.get(a);
#pragma unroll
    for (int j = 0; j < N; ++j) sums[j] += r.coefficient * a[j];
  }
};

// Calls f(T, N) for the element type of `rows` and the run that its width and the addresses allow.
template <class F>
CudaLaunch with_run(const Arg& rows, std::initializer_list<const void*> addresses, F&& f) {
  CudaLaunch out;
  with_float(rows.dtype, [&](auto zero) {
    using T = decltype(zero);
    const bool wide = rows.dim(1) % kWide<T> == 0 && all_aligned(addresses);
    out = wide ? f(zero, std::integral_constant<int, kWide<T>>{}) : f(zero, std::integral_constant<int, 1>{});
  });
  return out;
}

unsigned blocks_of(int64_t rows) { return static_cast<unsigned>(ceil_div(rows, kWarps)); }

CudaLaunch prepare_forward(const Invocation& call, device::cuda::Lane& lane) {
  const signature::sigmoid_gate::Forward<Arg> args(call.args);
  return with_run(
      args.x, {args.x.data, args.w.data, args.y.data, args.out.data}, [&](auto zero, auto run) -> CudaLaunch {
        using T = decltype(zero);
        GateArgs<T> p{};
        p.x = args.x.as<T>(), p.w = args.w.as<T>(), p.y = args.y.as<T>(), p.out = args.out.as<T>();
        p.rows = args.x.dim(0), p.width = args.x.dim(1);
        return [p, stream = lane.stream()] {
          if (p.rows == 0) return;
          forward<T, decltype(run)::value><<<blocks_of(p.rows), kThreads, 0, stream>>>(p);
          PLEAT_CUDA_LAUNCHED();
        };
      });
}

CudaLaunch prepare_backward_input(const Invocation& call, device::cuda::Lane& lane) {
  const signature::sigmoid_gate::BackwardInput<Arg> args(call.args);
  return with_run(
      args.dout, {args.dout.data, args.x.data, args.w.data, args.y.data, args.dx.data, args.dy.data},
      [&](auto zero, auto run) -> CudaLaunch {
        using T = decltype(zero);
        GateArgs<T> p{};
        p.dout = args.dout.as<T>(), p.x = args.x.as<T>(), p.w = args.w.as<T>(), p.y = args.y.as<T>();
        p.dx = args.dx.as<T>(), p.dy = args.dy.as<T>();
        p.accumulate = args.dx.into() == Into::Accumulate;
        p.rows = args.dout.dim(0), p.width = args.dout.dim(1);
        if constexpr (decltype(run)::value > 1)
          if (CudaLaunch held = gate_backward_input_held(p, lane)) return held;
        return [p, stream = lane.stream()] {
          if (p.rows == 0) return;
          backward<T, decltype(run)::value><<<blocks_of(p.rows), kThreads, 0, stream>>>(p);
          PLEAT_CUDA_LAUNCHED();
        };
      });
}

CudaLaunch prepare_backward_weight(const Invocation& call, device::cuda::Lane& lane) {
  const signature::sigmoid_gate::BackwardWeight<Arg> args(call.args);
  const int64_t rows = args.dout.dim(0), width = args.dout.dim(1);
  if (!is_stored(args.dw.dtype)) return {};
  return with_run(
      args.dout, {args.dout.data, args.x.data, args.w.data, args.y.data},
      [&](auto zero, auto run) -> CudaLaunch {
        using T = decltype(zero);
        constexpr int N = decltype(run)::value;
        GateArgs<T> p{};
        p.dout = args.dout.as<T>(), p.x = args.x.as<T>(), p.w = args.w.as<T>(), p.y = args.y.as<T>();
        p.rows = rows, p.width = width;
        const SumTarget to(args.dw);
        if constexpr (N > 1)
          if (CudaLaunch held = gate_backward_weight_held(p, to, call, lane)) return held;
        const int64_t parts_at = gate_coefficient_bytes(rows);
        std::byte* const scratch = call.scratch_for(parts_at + column_sum_bytes(rows, width));
        p.coefficients = reinterpret_cast<float*>(scratch);
        auto* const parts = reinterpret_cast<float*>(scratch + parts_at);
        return [=, stream = lane.stream()] {
          if (rows > 0) {
            slopes<T, N><<<blocks_of(rows), kThreads, 0, stream>>>(p);
            PLEAT_CUDA_LAUNCHED();
          }
          launch_column_sums<N>(stream, WeightTerms<T, N>{p.x, p.coefficients, width}, rows, parts, to);
        };
      });
}

constexpr CudaBinding kTable[] = {
    row<signature::sigmoid_gate::Forward>(prepare_forward),
    row<signature::sigmoid_gate::BackwardInput>(prepare_backward_input),
    row<signature::sigmoid_gate::BackwardWeight>(prepare_backward_weight),
};

}  // namespace

std::span<const CudaBinding> sigmoid_gate_cuda_bindings() { return kTable; }

}  // namespace pleat::kernels
