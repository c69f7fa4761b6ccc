// Sums of rows, zeros, and the rows of this folder in the registry.
#include "device/cuda/check.h"
#include "kernels/cuda/bind.h"
#include "kernels/cuda/column_sum.cuh"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/team.cuh"

namespace pleat::kernels {
namespace {

using namespace cuda;

constexpr int kThreads = 256;

// y = ((x + bias) + shared) + residual in float, rounded once.
template <class T, int N>
__global__ void __launch_bounds__(kThreads) add_rows(const T* x, const T* bias, const T* shared,
                                                     const T* residual, T* y, int64_t total, int64_t width) {
  const int64_t i = (blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x) * N;
  if (i >= total) return;
  float sum[N], other[N];
  Pack<T, N> first = Pack<T, N>::load(x + i), second = Pack<T, N>::zero(), third = second,
             per_column = second;
  if (shared) second = Pack<T, N>::load(shared + i);
  if (residual) third = Pack<T, N>::load(residual + i);
  if (bias) per_column = Pack<T, N>::load(bias + i % width);
  first.get(sum);
  const auto add = [&](const Pack<T, N>& from) {
    from.get(other);
#pragma unroll
    for (int j = 0; j < N; ++j) sum[j] += other[j];
  };
  if (bias) add(per_column);
  if (shared) add(second);
  if (residual) add(third);
  first.set(sum);
  first.store(y + i);
}

template <class T, int N>
struct Columns {
  const T* dy;
  int64_t width;
  using Raw = Pack<T, N>;
  __device__ Raw raw(int64_t row, int64_t column) const { return Raw::load(dy + row * width + column); }
  __device__ void add(const Raw& r, float (&sums)[N]) const {
    float d[N];
    r.get(d);
#pragma unroll
    for (int j = 0; j < N; ++j) sums[j] += d[j];
  }
};

CudaLaunch prepare_add_rows_forward(const Invocation& call, device::cuda::Lane& lane) {
  const signature::add_rows::Forward<Arg> args(call.args);
  const int64_t rows = args.x.dim(0), width = args.x.dim(1);
  CudaLaunch out;
  with_float(args.x.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T *x = args.x.as<T>(), *bias = args.bias.as<T>(), *shared = args.shared.as<T>(),
            *residual = args.residual.as<T>();
    T* y = args.y.as<T>();
    const bool wide = width % kWide<T> == 0 && all_aligned({x, bias, shared, residual, y});
    const int64_t total = rows * width;
    out = [=, stream = lane.stream()] {
      if (total == 0) return;
      const auto blocks = static_cast<unsigned>(ceil_div(total, kThreads * (wide ? kWide<T> : 1)));
      if (wide)
        add_rows<T, kWide<T>><<<blocks, kThreads, 0, stream>>>(x, bias, shared, residual, y, total, width);
      else
        add_rows<T, 1><<<blocks, kThreads, 0, stream>>>(x, bias, shared, residual, y, total, width);
      PLEAT_CUDA_LAUNCHED();
    };
  });
  return out;
}

CudaLaunch prepare_add_rows_backward_weight(const Invocation& call, device::cuda::Lane& lane) {
  const signature::add_rows::BackwardWeight<Arg> args(call.args);
  const int64_t rows = args.dy.dim(0), width = args.dy.dim(1);
  CudaLaunch out;
  if (!is_stored(args.dbias.dtype)) return out;
  with_float(args.dy.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T* dy = args.dy.as<T>();
    auto* const parts = reinterpret_cast<float*>(call.scratch_for(column_sum_bytes(rows, width)));
    out = [=, stream = lane.stream(), to = SumTarget(args.dbias),
           wide = width % kWide<T> == 0 && all_aligned({dy})] {
      if (wide)
        launch_column_sums<kWide<T>>(stream, Columns<T, kWide<T>>{dy, width}, rows, parts, to);
      else
        launch_column_sums<1>(stream, Columns<T, 1>{dy, width}, rows, parts, to);
    };
  });
  return out;
}

// Args: the row of any phase.
template <template <class> class Args>
CudaLaunch prepare_fill_zero(const Invocation& call, device::cuda::Lane& lane) {
  const Args<Arg> args(call.args);
  return [to = args.y.data, bytes = args.y.size() * tensor::size_of(args.y.dtype), stream = lane.stream()] {
    if (bytes > 0) PLEAT_CUDA(cudaMemsetAsync(to, 0, static_cast<size_t>(bytes), stream));
  };
}

constexpr CudaBinding kTable[] = {
    row<signature::add_rows::Forward>(prepare_add_rows_forward),
    row<signature::add_rows::BackwardWeight>(prepare_add_rows_backward_weight),
    row<signature::fill_zero::Forward>(prepare_fill_zero<signature::fill_zero::Forward>),
    row<signature::fill_zero::BackwardInput>(prepare_fill_zero<signature::fill_zero::BackwardInput>),
    row<signature::fill_zero::BackwardWeight>(prepare_fill_zero<signature::fill_zero::BackwardWeight>),
    row<signature::fill_zero::Update>(prepare_fill_zero<signature::fill_zero::Update>),
};

}  // namespace

std::span<const CudaBinding> rows_cuda_bindings() { return kTable; }

}  // namespace pleat::kernels
