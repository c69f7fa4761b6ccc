// Copies, sums of two gradients, the gradient norm and the decision to commit, on the GPU.
#include "device/cuda/check.h"
#include "device/cuda/pieces.h"
#include "kernels/cuda/bind.h"
#include "kernels/cuda/column_sum.cuh"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/team.cuh"
#include "kernels/optimizer/optimizer.h"

namespace pleat::kernels {
namespace {

using namespace cuda;

constexpr int kThreads = 256, kNormThreads = 512;

template <class T, int N>
__global__ void __launch_bounds__(kThreads) add_grad(const T* x, T* y, int64_t count) {
  const int64_t i = (blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x) * N;
  if (i + N <= count) {
    const auto from = Pack<T, N>::load(x + i);
    auto to = Pack<T, N>::load(y + i);
    float a[N], b[N];
    from.get(a);
    to.get(b);
#pragma unroll
    for (int j = 0; j < N; ++j) b[j] += a[j];
    to.set(b);
    to.store(y + i);
  } else {
    for (int64_t j = i; j < count; ++j) y[j] = from_float<T>(to_float(y[j]) + to_float(x[j]));
  }
}

// Block b sums squares of elements [b * kNormBlock, ...) of a tensor; g holds those from `first` on.
template <class T>
__global__ void __launch_bounds__(kNormThreads)
    norm_parts(const T* g, int64_t size, int64_t elements, const int64_t* place, double* parts) {
  constexpr int N = kWide<T>;
  const int64_t first = place ? min(elements, *place * size) : 0;
  const int64_t last = min(first + size, elements);
  const int64_t block = blockIdx.x * kNormBlock;
  const int64_t begin = max(block, first) - first, end = min(block + kNormBlock, last) - first;
  double sum = 0;
  if (begin < end) {
    const T* from = g + begin;
    const int64_t count = end - begin;
    const bool aligned = reinterpret_cast<uintptr_t>(from) % 16 == 0;
    const int64_t wide = aligned ? count / N * N : 0;
#pragma unroll 4
    for (int64_t i = threadIdx.x * static_cast<int64_t>(N); i < wide; i += kNormThreads * N) {
      float a[N];
      Pack<T, N>::load(from + i).get(a);
#pragma unroll
      for (int j = 0; j < N; ++j) sum += static_cast<double>(a[j]) * static_cast<double>(a[j]);
    }
    for (int64_t i = wide + threadIdx.x; i < count; i += kNormThreads) {
      const double a = static_cast<double>(to_float(from[i]));
      sum += a * a;
    }
  }
  sum = block_sum<kNormThreads>(sum);
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(1024)
    clip_norm(const double* parts, int64_t num_parts, const double* loss, int64_t num_losses,
              const int64_t* overflow, int64_t num_overflows, double clip, double* grad_scale,
              int32_t* commit) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < num_parts; i += 1024) sum += parts[i];
  sum = block_sum<1024>(sum);
  int bad = 0;
  for (int64_t i = threadIdx.x; i < num_losses; i += 1024) bad |= !isfinite(loss[i]);
  for (int64_t i = threadIdx.x; i < num_overflows; i += 1024) bad |= overflow[i] != 0;
  bad = __syncthreads_or(bad);
  if (threadIdx.x != 0) return;
  const double norm = sqrt(sum);
  grad_scale[0] = norm;
  grad_scale[1] = clip > 0 && norm > clip ? clip / norm : 1.0;
  *commit = isfinite(norm) && !bad ? 1 : 0;
}

// Either side may be pinned host memory.
template <template <class> class Args>
CudaLaunch prepare_copy(const Invocation& call, device::cuda::Lane& lane) {
  const Args<Arg> args(call.args);
  return
      [bytes = args.x.size() * tensor::size_of(args.x.dtype), x = static_cast<const std::byte*>(args.x.data),
       y = static_cast<std::byte*>(args.y.data), stream = lane.stream()] {
        device::cuda::for_each_piece(y, x, bytes, [&](std::byte* to, const std::byte* from, int64_t count) {
          PLEAT_CUDA(cudaMemcpyAsync(to, from, static_cast<size_t>(count), cudaMemcpyDefault, stream));
        });
      };
}

CudaLaunch prepare_add(const Arg& addend, const Arg& sum, device::cuda::Lane& lane) {
  CudaLaunch out;
  with_float(addend.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T* x = addend.as<T>();
    T* y = sum.as<T>();
    const int64_t count = addend.size();
    out = [=, wide = all_aligned({x, y}), stream = lane.stream()] {
      if (count == 0) return;
      const auto blocks = static_cast<unsigned>(ceil_div(count, kThreads * (wide ? kWide<T> : 1)));
      if (wide)
        add_grad<T, kWide<T>><<<blocks, kThreads, 0, stream>>>(x, y, count);
      else
        add_grad<T, 1><<<blocks, kThreads, 0, stream>>>(x, y, count);
      PLEAT_CUDA_LAUNCHED();
    };
  });
  return out;
}

CudaLaunch prepare_add_input_gradient(const Invocation& call, device::cuda::Lane& lane) {
  const signature::add_grad::BackwardInput<Arg> args(call.args);
  return prepare_add(args.x, args.y, lane);
}

CudaLaunch prepare_add_weight_gradient(const Invocation& call, device::cuda::Lane& lane) {
  const signature::add_grad::BackwardWeight<Arg> args(call.args);
  return prepare_add(args.x, args.y, lane);
}

CudaLaunch prepare_grad_norm(const Invocation& call, device::cuda::Lane& lane) {
  const signature::grad_norm::Update<Arg> args(call.args);
  const bool cut = args.coords.present;
  const int64_t elements = cut ? call.integer("elements") : args.g.size(),
                blocks = ceil_div(elements, kNormBlock);
  const int64_t* place = cut ? args.coords.as<int64_t>() + call.integer("group") : nullptr;
  CudaLaunch out;
  with_float(args.g.dtype, [&](auto zero) {
    using T = decltype(zero);
    out = [=, g = static_cast<const T*>(args.g.as<T>()), size = args.g.size(),
           parts = args.parts.as<double>(), stream = lane.stream()] {
      if (blocks == 0) return;
      norm_parts<T>
          <<<static_cast<unsigned>(blocks), kNormThreads, 0, stream>>>(g, size, elements, place, parts);
      PLEAT_CUDA_LAUNCHED();
    };
  });
  return out;
}

CudaLaunch prepare_clip(const Invocation& call, device::cuda::Lane& lane) {
  const signature::clip::Update<Arg> args(call.args);
  const double clip = call.attr("clip");
  return [=, parts = args.parts.as<double>(), num_parts = args.parts.size(), loss = args.loss.as<double>(),
          num_losses = args.loss.size(), overflow = args.overflow.as<int64_t>(),
          num_overflows = args.overflow.present ? args.overflow.size() : 0,
          grad_scale = args.grad_scale.as<double>(), commit = args.commit.as<int32_t>(),
          stream = lane.stream()] {
    clip_norm<<<1, 1024, 0, stream>>>(parts, num_parts, loss, num_losses, overflow, num_overflows, clip,
                                      grad_scale, commit);
    PLEAT_CUDA_LAUNCHED();
  };
}

constexpr CudaBinding kTable[] = {
    row<signature::copy::Forward>(prepare_copy<signature::copy::Forward>),
    row<signature::copy::BackwardInput>(prepare_copy<signature::copy::BackwardInput>),
    row<signature::copy::Update>(prepare_copy<signature::copy::Update>),
    row<signature::add_grad::BackwardInput>(prepare_add_input_gradient),
    row<signature::add_grad::BackwardWeight>(prepare_add_weight_gradient),
    row<signature::grad_norm::Update>(prepare_grad_norm),
    row<signature::clip::Update>(prepare_clip),
};

}  // namespace

std::span<const CudaBinding> optimizer_cuda_bindings() { return kTable; }

}  // namespace pleat::kernels
