// What cross entropy over a whole vocabulary and over pieces of it share on the GPU: a row's arguments, its
// loss and gradient, and the sum of the rows' losses in an order fixed by their number.
//
// A label outside the vocabulary, which the CPU kernels throw at, gives a loss of NaN: such a step is not
// committed.
#pragma once

#include "device/cuda/check.h"
#include "kernels/cross_entropy/row_sum.cuh"
#include "kernels/cuda/bind.h"

namespace pleat::kernels::cuda {

__device__ inline double not_a_number() { return __longlong_as_double(0x7ff8000000000000LL); }

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

// Of a call whose logits are whole, or with coords a piece of the vocabulary.
template <class T, class Args>
LossArgs<T> loss_args(const Args& args, const Invocation& call) {
  const int64_t columns = args.logits.dim(1);
  LossArgs<T> out{args.logits.template as<T>(),
                  args.labels.template as<int32_t>(),
                  args.mask.template as<uint8_t>(),
                  nullptr,
                  columns,
                  columns};
  if constexpr (requires { args.coords; }) {
    out.place = args.coords.template as<int64_t>() + call.integer("group");
    out.vocabulary = call.integer("vocabulary");
  }
  return out;
}

// The loss of a row whose part is the whole of it.
template <class T>
__device__ inline double loss_of(const LossArgs<T>& p, int64_t row, const RowPart& whole) {
  return p.label_ok(row)
             ? static_cast<double>(whole.top) + log(whole.sum) - static_cast<double>(whole.label_logit)
             : not_a_number();
}

// Logits to their gradient where they are not the label. scale: norm / sum of exponentials.
template <class T, int N>
__device__ inline void to_softmax(float (&a)[N], float shift, float scale) {
#pragma unroll
  for (int j = 0; j < N; ++j) a[j] = exp_of<T>(a[j] - shift) * scale;
}
// Logits of one row, from `column` on, to their gradient. weight: norm. A label that is not in the row is
// negative.
template <class T, int N>
__device__ inline void to_gradient(float (&a)[N], int column, int label, float shift, float scale,
                                   float weight) {
  to_softmax<T>(a, shift, scale);
  if (static_cast<unsigned>(label) - static_cast<unsigned>(column) >= static_cast<unsigned>(N)) return;
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

template <class Args>
LossTarget loss_target(const Args& args) {
  LossTarget out{args.mask.template as<uint8_t>(), args.mask.dim(0), args.loss.template as<double>(),
                 args.loss.into() == Into::Accumulate};
  if constexpr (requires { args.token_loss; })
    if (args.token_loss.present)
      out.token_loss = args.token_loss.data, out.token_dtype = args.token_loss.dtype;
  return out;
}

inline void launch_sum_losses(CUstream_st* stream, const double* row_loss, const LossTarget& to) {
  with_float(to.token_dtype, [&](auto zero) {
    using L = decltype(zero);
    sum_losses<L><<<1, 1024, 0, stream>>>(row_loss, to.mask, to.rows, to.loss, to.accumulate,
                                          static_cast<L*>(to.token_loss));
    PLEAT_CUDA_LAUNCHED();
  });
}

}  // namespace pleat::kernels::cuda
