// Counters for losses that span microbatches or layers, on the GPU: a warp per token, a histogram per block.
#include "device/cuda/check.h"
#include "kernels/cuda/bind.h"
#include "kernels/router/router.h"
#include "kernels/router/token.cuh"

namespace pleat::kernels {
namespace {

using namespace cuda;

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int64_t kMaxBlocks = 528;

__device__ void add_counter(int64_t* counter, int value) {
  if (value)
    atomicAdd(reinterpret_cast<unsigned long long*>(counter), static_cast<unsigned long long>(value));
}

template <int P>
__global__ void __launch_bounds__(kThreads)
    count(const float* logits, const uint8_t* valid, int64_t num_tokens, int experts, int top_k,
          int64_t* counts, int64_t* tokens) {
  extern __shared__ int mine[];  // [experts]
  const int lane = threadIdx.x % 32;
  for (int e = threadIdx.x; e < experts; e += kThreads) mine[e] = 0;
  __syncthreads();
  int seen = 0;
  for (int64_t t = blockIdx.x * kWarps + threadIdx.x / 32; t < num_tokens; t += gridDim.x * kWarps) {
    if (!valid[t]) continue;
    ++seen;
    float x[P];
    bool chosen[P];
    load_row(logits + t * experts, experts, lane, x);
    choose_by_logit(x, experts, top_k, lane, chosen);
    PLEAT_EACH(j, P) if (chosen[j]) atomicAdd(&mine[lane + 32 * j], 1);
  }
  __syncthreads();
  for (int e = threadIdx.x; e < experts; e += kThreads) add_counter(&counts[e], mine[e]);
  if (lane == 0) add_counter(tokens, seen);
}

CudaLaunch prepare_router_count(const Invocation& call, device::cuda::Lane& lane) {
  const signature::router_count::Forward<Arg> args(call.args);
  if (args.logits.dtype != tensor::Dtype::F32) return {};
  const int64_t T = args.logits.dim(0), E = args.logits.dim(1), k = call.integer("top_k");
  const float* logits = args.logits.as<float>();
  const uint8_t* valid = args.valid.as<uint8_t>();
  int64_t *counts = args.counts.as<int64_t>(), *tokens = args.tokens.as<int64_t>();
  const bool clear_counts = args.counts.into() == Into::Overwrite,
             clear_tokens = args.tokens.into() == Into::Overwrite;
  const int64_t blocks = std::min(kMaxBlocks, ceil_div(T, kWarps));
  CudaLaunch out;
  with_elements_per_lane(E, [&](auto per_lane) {
    constexpr int P = per_lane();
    out = [=, stream = lane.stream()] {
      if (clear_counts) PLEAT_CUDA(cudaMemsetAsync(counts, 0, static_cast<size_t>(E) * 8, stream));
      if (clear_tokens) PLEAT_CUDA(cudaMemsetAsync(tokens, 0, 8, stream));
      if (blocks == 0) return;
      count<P><<<static_cast<unsigned>(blocks), kThreads, static_cast<size_t>(E) * 4, stream>>>(
          logits, valid, T, static_cast<int>(E), static_cast<int>(k), counts, tokens);
      PLEAT_CUDA_LAUNCHED();
    };
  });
  return out;
}

constexpr CudaBinding kTable[] = {
    row<signature::router_count::Forward>(prepare_router_count),
};

}  // namespace

std::span<const CudaBinding> router_count_cuda_bindings() { return kTable; }

}  // namespace pleat::kernels
