// token_score.h on the GPU: a block per row, once over it for the largest logit and the sum of exponentials.
// Where the largest one lies a thread knows only up to the chunk; the threads that have it look there again.
#include "device/cuda/check.h"
#include "kernels/cross_entropy/row_stream.cuh"
#include "kernels/cuda/bind.h"
#include "kernels/cuda/halt.cuh"

namespace pleat::kernels {
namespace {

using namespace cuda;

constexpr int kNone = 0x7fffffff;

// The lowest column of `value` at `place`, which look_at_row named to this thread.
template <int kThreads, class T>
__device__ int find(const RowUnits<T>& row, int place, float value) {
  if (place < 0) return ~place;
  Wide<T> chunk[kChunk];
  load_chunk<kThreads>(row.unit(place), row.units - place, chunk);
  int column = kNone;
#pragma unroll
  for (int i = kChunk - 1; i >= 0; --i) {
    float a[kWide<T>];
    chunk[i].get(a);
#pragma unroll
    for (int j = kWide<T> - 1; j >= 0; --j)
      if (a[j] == value) column = row.head + (place + i * kThreads) * kWide<T> + j;
  }
  return column;
}

// The lowest column of -inf that this thread meets: in a row that has nothing larger.
template <int kThreads, class T>
__device__ int find_lowest(const RowUnits<T>& row) {
  for (int c = static_cast<int>(threadIdx.x); c < row.columns; c += kThreads)
    if (to_float(row.row[c]) == lowest()) return c;
  return kNone;
}

template <class T, int kThreads>
__global__ void __launch_bounds__(kThreads, kStreamThreads / kThreads)
    score(const T* logits, const int32_t* labels, const uint8_t* mask, int vocabulary, double* log_prob,
          int32_t* best) {
  const int64_t t = blockIdx.x;
  if (!mask[t]) {
    if (threadIdx.x == 0) log_prob[t] = 0, best[t] = -1;
    return;
  }
  const RowUnits<T> row(logits + t * vocabulary, vocabulary);
  int place = 0;
  const OnlineSum<T> mine = look_at_row<kThreads>(row, [&](int at) { place = at; });
  float at_label = 0;  // on its way while the parts are put together
  if (threadIdx.x == 0) {
    const int label = labels[t];
    PLEAT_HALT_UNLESS(label >= 0 && label < vocabulary,
                      "[token_score] the label of a row is outside the vocabulary");
    at_label = to_float(row.row[label]);
  }
  const RowPart whole = combine_parts<T, kThreads / 32>(block_parts<kThreads>(mine));
  int id = kNone;
  if (whole.top == lowest())
    id = find_lowest<kThreads>(row);
  else if (mine.top == whole.top)
    id = find<kThreads>(row, place, whole.top);
  id = __reduce_min_sync(0xffffffffu, id);
  __shared__ int of_warp[kThreads / 32];
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = id;
  __syncthreads();
  if (threadIdx.x != 0) return;
#pragma unroll
  for (int w = 1; w < kThreads / 32; ++w) id = min(id, of_warp[w]);
  log_prob[t] = static_cast<double>(at_label) - static_cast<double>(whole.top) - log(whole.sum);
  best[t] = id == kNone ? -1 : id;
}

template <class T>
CudaLaunch launch(const Invocation& call, device::cuda::Lane& lane) {
  const signature::token_score::Forward<Arg> args(call.args);
  const T* logits = args.logits.as<T>();
  const int32_t* labels = args.labels.as<int32_t>();
  const uint8_t* mask = args.mask.as<uint8_t>();
  double* log_prob = args.log_prob.as<double>();
  int32_t* best = args.best.as<int32_t>();
  const int64_t rows = args.logits.dim(0), vocabulary = args.logits.dim(1);
  return [=, stream = lane.stream()] {
    if (rows == 0) return;
    with_stream_threads(rows, [&](auto threads) {
      score<T, threads()><<<static_cast<unsigned>(rows), threads(), 0, stream>>>(
          logits, labels, mask, static_cast<int>(vocabulary), log_prob, best);
      PLEAT_CUDA_LAUNCHED();
    });
  };
}

CudaLaunch prepare(const Invocation& call, device::cuda::Lane& lane) {
  CudaLaunch out;
  with_float(signature::token_score::Forward(call.args).logits.dtype,
             [&](auto zero) { out = launch<decltype(zero)>(call, lane); });
  return out;
}

constexpr CudaBinding kTable[] = {
    row<signature::token_score::Forward>(prepare),
};

}  // namespace

std::span<const CudaBinding> token_score_cuda_bindings() { return kTable; }

}  // namespace pleat::kernels
