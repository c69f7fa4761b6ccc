// What cross entropy over a whole vocabulary and over pieces of it share on the GPU: a row's arguments, its
// exponentials, and the sum of the rows' losses in an order fixed by their number.
//
// A label outside the vocabulary, which the CPU kernels throw at, gives a loss of NaN: such a step is not
// committed.
#pragma once

#include "device/cuda/check.h"
#include "kernels/cuda/bind.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/reduce.cuh"

namespace pleat::kernels::cuda {

constexpr int kLossThreads = 512;

__device__ inline double not_a_number() { return __longlong_as_double(0x7ff8000000000000LL); }
__device__ inline float lowest() { return __int_as_float(0xff800000); }

// bf16 logits carry 8 bits: the fast exponential is exact enough for them.
template <class T>
__device__ inline float exp_of(float x) {
  if constexpr (sizeof(T) == 2)
    return __expf(x);
  else
    return expf(x);
}

template <class T>
struct LossArgs {
  T* logits;  // [rows, columns]
  const int32_t* labels;
  const uint8_t* mask;
  const int64_t* place;  // this rank's number when the vocabulary is cut, else null
  int64_t columns, vocabulary;

  __device__ int64_t first() const { return place ? *place * columns : 0; }
  // Columns in the vocabulary; the rest is padding.
  __device__ int64_t real() const {
    const int64_t left = vocabulary - first();
    return left < 0 ? 0 : left < columns ? left : columns;
  }
  __device__ bool label_ok(int64_t row) const { return labels[row] >= 0 && labels[row] < vocabulary; }
};

// What is asked of a row.
enum class Ask { Loss, Gradient, Stats };

// One row, seen by its thread 0: maximum, sum of exponentials, the label's logit (0 when it is elsewhere).
struct RowSums {
  double top, sum, label_logit;
};

// What thread 0 of the row's first block leaves behind. row_loss for Loss and Gradient, stats for Stats.
template <Ask kAsk, class T>
__device__ inline void leave(const LossArgs<T>& p, int64_t row, const RowSums& r, double* out) {
  const double label = p.label_ok(row) ? r.label_logit : not_a_number();
  if constexpr (kAsk == Ask::Stats) {
    out[row * 3] = r.top;
    out[row * 3 + 1] = r.sum;
    out[row * 3 + 2] = label;
  } else {
    out[row] = r.top + log(r.sum) - label;
  }
}

template <Ask kAsk, class T>
__device__ inline void leave_nothing(int64_t row, double* out) {
  if constexpr (kAsk == Ask::Stats) {
    out[row * 3] = 0, out[row * 3 + 1] = 0, out[row * 3 + 2] = 0;
  } else {
    out[row] = 0;
  }
}

// N logits from `column` on; those from `real` on, which are padding, count as -inf.
template <class T, int N>
__device__ inline Pack<T, N> load_or_lowest(const T* row, int64_t column, int64_t real) {
  if (column + N <= real) return Pack<T, N>::load(row + column);
  float a[N];
#pragma unroll
  for (int j = 0; j < N; ++j) a[j] = column + j < real ? to_float(row[column + j]) : lowest();
  Pack<T, N> pack;
  pack.set(a);
  return pack;
}

// Logits of one row, from `column` on, to their gradient. scale: norm / sum of exponentials; weight: norm.
template <class T, int N>
__device__ inline void to_gradient(float (&a)[N], int64_t column, int64_t label, float top, float scale,
                                   float weight) {
#pragma unroll
  for (int j = 0; j < N; ++j) a[j] = exp_of<T>(a[j] - top) * scale;
  if (label < column || label >= column + N) return;
#pragma unroll
  for (int j = 0; j < N; ++j)
    if (column + j == label) a[j] -= weight;
}

// loss (+)= {sum of row_loss, rows counted}. One block.
template <class L>
__global__ void __launch_bounds__(1024) sum_losses(const double* row_loss, const uint8_t* mask, int64_t rows,
                                                   double* loss, bool accumulate, L* token_loss) {
  double sum = 0, count = 0;
#pragma unroll 4
  for (int64_t t = threadIdx.x; t < rows; t += 1024) {
    const double value = row_loss[t];  // 0 where the mask is
    sum += value;
    count += mask[t] != 0;
    if (token_loss) token_loss[t] = from_float<L>(static_cast<float>(value));
  }
  sum = block_sum<1024>(sum);
  count = block_sum<1024>(count);
  if (threadIdx.x != 0) return;
  loss[0] = accumulate ? loss[0] + sum : sum;
  loss[1] = accumulate ? loss[1] + count : count;
}

// Where losses go, in numbers that outlive the invocation.
struct LossTarget {
  const uint8_t* mask;
  int64_t rows;
  double* loss;
  bool accumulate;
  void* token_loss = nullptr;
  tensor::Dtype token_dtype = tensor::Dtype::F32;
};

inline void launch_sum_losses(CUstream_st* stream, const double* row_loss, const LossTarget& to) {
  with_float(to.token_dtype, [&](auto zero) {
    using L = decltype(zero);
    sum_losses<L><<<1, 1024, 0, stream>>>(row_loss, to.mask, to.rows, to.loss, to.accumulate,
                                          static_cast<L*>(to.token_loss));
    PLEAT_CUDA_LAUNCHED();
  });
}

}  // namespace pleat::kernels::cuda

namespace pleat::kernels {

// The kernels of vocab_loss_cuda.cu; cross_entropy_cuda_bindings() lists them with the others.
CudaLaunch prepare_vocab_loss_forward(const Invocation& call, device::cuda::Lane& lane);
CudaLaunch prepare_vocab_loss_backward_input(const Invocation& call, device::cuda::Lane& lane);

}  // namespace pleat::kernels
