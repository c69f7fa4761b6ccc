// Cross entropy from the statistics of all pieces of a cut vocabulary, on the GPU. The gradient needs no sum
// over a row any more: a pure stream.
#include "kernels/cross_entropy/loss_rows.cuh"
#include "kernels/cross_entropy/loss_rows.h"
#include "kernels/cuda/column_sum.cuh"
#include "kernels/cuda/team.cuh"
#include "kernels/math/coords.h"

namespace pleat::kernels {
namespace {

using namespace cuda;

struct WholeRow {
  double top, sum, label_logit;
  __device__ double loss() const { return top + log(sum) - label_logit; }
};

// Over ascending ranks, so every rank gets the same bits.
__device__ WholeRow combine(const double* all_stats, int num_ranks, int64_t rows, int64_t t) {
  const auto of = [&](int rank) { return all_stats + (rank * rows + t) * 3; };
  WholeRow row{of(0)[0], 0, 0};
  for (int rank = 1; rank < num_ranks; ++rank) row.top = of(rank)[0] > row.top ? of(rank)[0] : row.top;
  for (int rank = 0; rank < num_ranks; ++rank) {
    row.sum += of(rank)[1] * exp(of(rank)[0] - row.top);
    row.label_logit += of(rank)[2];
  }
  return row;
}

__global__ void losses(const double* all_stats, int num_ranks, const uint8_t* mask, int64_t rows,
                       double* row_loss) {
  const int64_t t = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (t < rows) row_loss[t] = mask[t] ? combine(all_stats, num_ranks, rows, t).loss() : 0.0;
}

constexpr int kThreads = 256;

template <class T, int N>
__global__ void __launch_bounds__(kThreads, 5)
    gradient(LossArgs<T> p, const double* all_stats, int num_ranks, const double* norm, double* row_loss) {
  constexpr int kAhead = 4;  // vectors on the way
  __shared__ float common[2];
  const int64_t row = blockIdx.x, first = p.first();
  const int columns = static_cast<int>(p.columns);
  T* logits = p.logits + row * p.columns;
  const bool counted = p.mask[row];
  const int real = counted ? static_cast<int>(p.real()) : 0;
  const auto column_of = [](int begin, int i) { return begin + i * kThreads * N; };
  Pack<T, N> held[kAhead];
  const auto load = [&](int begin) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
      held[i] =
          column_of(begin, i) < real ? Pack<T, N>::load(logits + column_of(begin, i)) : Pack<T, N>::zero();
  };
  int begin = static_cast<int>(threadIdx.x) * N;
  load(begin);  // on the way while the pieces' statistics are put together
  WholeRow whole{};
  if (threadIdx.x == 0 && counted) {
    whole = combine(all_stats, num_ranks, gridDim.x, row);
    common[0] = static_cast<float>(whole.top);
    common[1] = static_cast<float>(*norm / whole.sum);
  }
  const float weight = static_cast<float>(*norm);
  const int64_t in_piece = p.labels[row] - first;
  const int label = in_piece >= 0 && in_piece < real ? static_cast<int>(in_piece) : -1;
  __syncthreads();
  const float top = common[0], scale = common[1];
  while (begin < columns) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int column = column_of(begin, i);
      if (column >= columns) continue;
      if (column < real) {
        float a[N];
        held[i].get(a);
        to_gradient<T>(a, column, label, top, scale, weight);
        if (column + N > real) {
#pragma unroll
          for (int j = 0; j < N; ++j)
            if (column + j >= real) a[j] = 0;  // padding, whatever is there
        }
        held[i].set(a);
      }
      held[i].store(logits + column);
    }
    begin = column_of(begin, kAhead);
    load(begin);
  }
  if (threadIdx.x == 0) row_loss[row] = !counted ? 0.0 : p.label_ok(row) ? whole.loss() : not_a_number();
}

int ranks_of(const Arg& all_stats, int64_t rows) {
  require_dtype("vocab_loss", "all_stats", all_stats, tensor::Dtype::F64);
  const auto shape = all_stats.shape;
  const bool fits = shape.size() == 3   ? shape[1] == rows && shape[2] == 3
                    : shape.size() == 2 ? (rows == 0 ? shape[0] == 0 : shape[0] % rows == 0) && shape[1] == 3
                                        : false;
  if (!fits || (rows > 0 && all_stats.size() == 0))
    base::fail("[vocab_loss] argument 'all_stats' has {} elements in {} dimensions, needed [ranks, {}, 3]",
               all_stats.size(), shape.size(), rows);
  return rows == 0 ? 0 : static_cast<int>(all_stats.size() / (rows * 3));
}

}  // namespace

CudaLaunch prepare_vocab_loss_forward(const Invocation& call, device::cuda::Lane& lane) {
  const signature::vocab_loss::Forward args(call.args);
  require_rank(args.mask, 1);
  const int64_t rows = args.mask.dim(0);
  require_labels("vocab_loss", {}, args.mask, args.loss, rows);
  require_shape(args.token_loss, {rows});
  const int num_ranks = ranks_of(args.all_stats, rows);
  if (args.token_loss.present && !is_stored(args.token_loss.dtype)) return {};
  LossTarget to{args.mask.as<uint8_t>(), rows, args.loss.as<double>(), args.loss.into() == Into::Accumulate};
  if (args.token_loss.present) to.token_loss = args.token_loss.data, to.token_dtype = args.token_loss.dtype;
  lane.need_scratch(rows * static_cast<int64_t>(sizeof(double)));
  return [=, &lane, all_stats = args.all_stats.as<double>()] {
    auto* row_loss = reinterpret_cast<double*>(lane.scratch());
    if (rows > 0) {
      losses<<<static_cast<unsigned>(ceil_div(rows, 256)), 256, 0, lane.stream()>>>(all_stats, num_ranks,
                                                                                    to.mask, rows, row_loss);
      PLEAT_CUDA_LAUNCHED();
    }
    launch_sum_losses(lane.stream(), row_loss, to);
  };
}

CudaLaunch prepare_vocab_loss_backward_input(const Invocation& call, device::cuda::Lane& lane) {
  const signature::vocab_loss::BackwardInput args(call.args);
  require_rank(args.logits, 2);
  const int64_t rows = args.logits.dim(0), columns = args.logits.dim(1);
  require_labels("vocab_loss", args.labels, args.mask, args.loss, rows);
  require_norm("vocab_loss", args.norm);
  require_coords("vocab_loss", call, args.coords);
  require_in_place(args.logits);
  const int num_ranks = ranks_of(args.all_stats, rows);
  CudaLaunch out;
  with_float(args.logits.dtype, [&](auto zero) {
    using T = decltype(zero);
    const LossArgs<T> p{args.logits.as<T>(),
                        args.labels.as<int32_t>(),
                        args.mask.as<uint8_t>(),
                        args.coords.as<int64_t>() + call.integer("group"),
                        columns,
                        call.integer("vocabulary")};
    const LossTarget to{p.mask, rows, args.loss.as<double>(), args.loss.into() == Into::Accumulate};
    const bool wide = columns % kWide<T> == 0 && all_aligned({p.logits});
    lane.need_scratch(rows * static_cast<int64_t>(sizeof(double)));
    out = [=, &lane, all_stats = args.all_stats.as<double>(), norm = args.norm.as<double>()] {
      auto* row_loss = reinterpret_cast<double*>(lane.scratch());
      const auto blocks = static_cast<unsigned>(rows);
      if (blocks > 0) {
        if (wide)
          gradient<T, kWide<T>>
              <<<blocks, kThreads, 0, lane.stream()>>>(p, all_stats, num_ranks, norm, row_loss);
        else
          gradient<T, 1><<<blocks, kThreads, 0, lane.stream()>>>(p, all_stats, num_ranks, norm, row_loss);
        PLEAT_CUDA_LAUNCHED();
      }
      launch_sum_losses(lane.stream(), row_loss, to);
    };
  });
  return out;
}

}  // namespace pleat::kernels
