// token_score.h on the GPU: a block per row, once over it for the largest logit and once for the sum.
#include "device/cuda/check.h"
#include "kernels/cuda/bind.h"
#include "kernels/cuda/halt.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/types.cuh"
#include "kernels/math/require.h"

namespace pleat::kernels {
namespace {

using namespace cuda;

constexpr int kThreads = 256;
constexpr int kNone = 0x7fffffff;

struct Best {
  float value;
  int id;  // kNone: nothing but NaN so far

  __device__ void take(float v, int at) {
    if (v > value || (v == value && at < id)) value = v, id = at;
  }
};

template <class T, int N>
__global__ void __launch_bounds__(kThreads) score(const T* logits, const int32_t* labels, const uint8_t* mask,
                                                  int vocabulary, double* log_prob, int32_t* best) {
  const int64_t t = blockIdx.x;
  if (!mask[t]) {
    if (threadIdx.x == 0) log_prob[t] = 0, best[t] = -1;
    return;
  }
  PLEAT_HALT_UNLESS(labels[t] >= 0 && labels[t] < vocabulary,
                    "[token_score] the label of a row is outside the vocabulary");
  const T* row = logits + t * vocabulary;
  Best mine{-__builtin_huge_valf(), kNone};
  for (int c = threadIdx.x * N; c < vocabulary; c += kThreads * N) {
    const auto v = Vec<T, N>::load(row + c);
#pragma unroll
    for (int j = 0; j < N; ++j) mine.take(to_float(v.at[j]), c + j);
  }
  for (int step = 16; step > 0; step /= 2) {
    const float value = __shfl_xor_sync(0xffffffffu, mine.value, step);
    mine.take(value, __shfl_xor_sync(0xffffffffu, mine.id, step));
  }
  __shared__ Best of_warp[kThreads / 32];
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = mine;
  __syncthreads();
  for (int w = 0; w < kThreads / 32; ++w) mine.take(of_warp[w].value, of_warp[w].id);
  double sum = 0;
  for (int c = threadIdx.x * N; c < vocabulary; c += kThreads * N) {
    const auto v = Vec<T, N>::load(row + c);
    float part = 0;
#pragma unroll
    for (int j = 0; j < N; ++j) part += expf(to_float(v.at[j]) - mine.value);
    sum += static_cast<double>(part);
  }
  sum = block_sum<kThreads>(sum);
  if (threadIdx.x != 0) return;
  log_prob[t] = static_cast<double>(to_float(row[labels[t]])) - static_cast<double>(mine.value) - log(sum);
  best[t] = mine.id == kNone ? -1 : mine.id;
}

template <class T, int N>
CudaLaunch launch(const Invocation& call, device::cuda::Lane& lane) {
  const T* logits = call[0].as<T>();
  const int32_t* labels = call[1].as<int32_t>();
  const uint8_t* mask = call[2].as<uint8_t>();
  double* log_prob = call[3].as<double>();
  int32_t* best = call[4].as<int32_t>();
  const int64_t rows = call[0].dim(0), vocabulary = call[0].dim(1);
  return [=, stream = lane.stream()] {
    if (rows == 0) return;
    score<T, N><<<static_cast<unsigned>(rows), kThreads, 0, stream>>>(
        logits, labels, mask, static_cast<int>(vocabulary), log_prob, best);
    PLEAT_CUDA_LAUNCHED();
  };
}

CudaLaunch prepare(const Invocation& call, device::cuda::Lane& lane) {
  constexpr std::string_view kName = "token_score";
  require_rank(kName, "logits", call[0], 2);
  const int64_t rows = call[0].dim(0);
  require_shape(kName, "labels", call[1], {rows});
  require_dtype(kName, "labels", call[1], tensor::Dtype::I32);
  require_shape(kName, "mask", call[2], {rows});
  require_dtype(kName, "mask", call[2], tensor::Dtype::U8);
  require_shape(kName, "log_prob", call[3], {rows});
  require_dtype(kName, "log_prob", call[3], tensor::Dtype::F64);
  require_shape(kName, "best", call[4], {rows});
  require_dtype(kName, "best", call[4], tensor::Dtype::I32);
  CudaLaunch out;
  with_float(call[0].dtype, [&](auto zero) {
    using T = decltype(zero);
    out = call[0].dim(1) % kWide<T> == 0 ? launch<T, kWide<T>>(call, lane) : launch<T, 1>(call, lane);
  });
  return out;
}

}  // namespace

std::span<const CudaBinding> token_score_cuda_bindings() {
  using program::KernelKind;
  using program::Phase;
  static constexpr CudaBinding rows[] = {{KernelKind::token_score, Phase::Forward, prepare}};
  return rows;
}

}  // namespace pleat::kernels
