// Random numbers of the router on the GPU: base/rng.h's streams, number by number, so that jitter and forced
// logits are those of the CPU.
#include "base/rng.h"
#include "device/cuda/check.h"
#include "kernels/cuda/bind.h"
#include "kernels/cuda/types.cuh"
#include "kernels/router/router.h"

namespace pleat::kernels {
namespace {

using namespace cuda;

constexpr int kThreads = 256;

using Stream = base::RandomStream;  // rng is {seed, step}

// Forward and backward are the same product. N elements of one row per thread.
template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    jitter(const T* x, const int64_t* rng, const int64_t* token_index, T* y, int64_t rows, int64_t width,
           double eps, uint32_t layer, bool add) {
  const int64_t i = (blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x) * N;
  if (i >= rows * width) return;
  const Stream stream(static_cast<uint64_t>(rng[0]), base::RandomUse::Jitter, static_cast<uint32_t>(rng[1]),
                      layer);
  const int64_t t = i / width, column = i - t * width;
  const uint64_t first = static_cast<uint64_t>(token_index[t] * width + column);
  const auto in = Vec<T, N>::load(x + i);
  Vec<T, N> out;
  if (add) out = Vec<T, N>::load(y + i);
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const float factor =
        static_cast<float>(1 - eps + 2 * eps * stream.uniform(first + static_cast<uint64_t>(j)));
    const float product = to_float(in.at[j]) * factor;
    out.at[j] = from_float<T>(add ? to_float(out.at[j]) + product : product);
  }
  out.store(y + i);
}

__global__ void __launch_bounds__(kThreads)
    force(const int64_t* rng, const int64_t* token_index, float* forced, int64_t tokens, int64_t experts,
          double bias_std, double loaded_bias, uint32_t layer) {
  const int64_t i = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x;
  if (i >= tokens * experts) return;
  const uint64_t seed = static_cast<uint64_t>(rng[0]);
  const uint32_t step = static_cast<uint32_t>(rng[1]);
  const Stream noise(seed, base::RandomUse::ForcedLogits, step, layer);
  const Stream shared(seed, base::RandomUse::ForcedBias, bias_std < 0 ? 0 : step, layer);
  const int64_t t = i / experts, e = i - t * experts;
  double bias = bias_std == 0 ? 0 : fabs(bias_std) * shared.normal(static_cast<uint64_t>(e));
  if (e == layer % experts) bias += loaded_bias;
  forced[i] = static_cast<float>(noise.normal(static_cast<uint64_t>(token_index[t] * experts + e)) + bias);
}

template <class T, int N>
CudaLaunch launch_jitter(const Invocation& call, const Arg& from, const Arg& key, const Arg& index,
                         const Arg& to, device::cuda::Lane& lane) {
  const T* x = from.as<T>();
  const int64_t *rng = key.as<int64_t>(), *token_index = index.as<int64_t>();
  T* y = to.as<T>();
  const int64_t rows = from.dim(0), width = from.dim(1);
  const int64_t blocks = ceil_div(rows * width, static_cast<int64_t>(kThreads) * N);
  const double eps = call.attr("eps");
  const uint32_t layer = static_cast<uint32_t>(call.integer("layer"));
  const bool add = to.into() == Into::Accumulate;
  return [=, stream = lane.stream()] {
    if (blocks == 0) return;
    jitter<T, N><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(x, rng, token_index, y, rows, width,
                                                                         eps, layer, add);
    PLEAT_CUDA_LAUNCHED();
  };
}

CudaLaunch prepare_jitter(const Invocation& call, const Arg& from, const Arg& key, const Arg& index,
                          const Arg& to, device::cuda::Lane& lane) {
  CudaLaunch out;
  with_float(from.dtype, [&](auto zero) {
    using T = decltype(zero);
    out = from.dim(1) % kWide<T> == 0 ? launch_jitter<T, kWide<T>>(call, from, key, index, to, lane)
                                      : launch_jitter<T, 1>(call, from, key, index, to, lane);
  });
  return out;
}

CudaLaunch prepare_jitter_forward(const Invocation& call, device::cuda::Lane& lane) {
  const signature::jitter::Forward<Arg> args(call.args);
  return prepare_jitter(call, args.x, args.rng, args.token_index, args.y, lane);
}

CudaLaunch prepare_jitter_backward_input(const Invocation& call, device::cuda::Lane& lane) {
  const signature::jitter::BackwardInput<Arg> args(call.args);
  return prepare_jitter(call, args.dy, args.rng, args.token_index, args.dx, lane);
}

CudaLaunch prepare_router_force(const Invocation& call, device::cuda::Lane& lane) {
  const signature::router_force::Forward<Arg> args(call.args);
  if (args.logits.dtype != tensor::Dtype::F32) return {};
  const int64_t T = args.logits.dim(0), E = args.logits.dim(1);
  const int64_t *rng = args.rng.as<int64_t>(), *token_index = args.token_index.as<int64_t>();
  float* forced = args.forced.as<float>();
  const double bias_std = call.attr("bias_std"), loaded_bias = call.attr("loaded_bias");
  const uint32_t layer = static_cast<uint32_t>(call.integer("layer"));
  const int64_t blocks = ceil_div(T * E, kThreads);
  return [=, stream = lane.stream()] {
    if (blocks == 0) return;
    force<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(rng, token_index, forced, T, E, bias_std,
                                                                  loaded_bias, layer);
    PLEAT_CUDA_LAUNCHED();
  };
}

constexpr CudaBinding kTable[] = {
    row<signature::jitter::Forward>(prepare_jitter_forward),
    row<signature::jitter::BackwardInput>(prepare_jitter_backward_input),
    row<signature::router_force::Forward>(prepare_router_force),
};

}  // namespace

std::span<const CudaBinding> router_noise_cuda_bindings() { return kTable; }

}  // namespace pleat::kernels
