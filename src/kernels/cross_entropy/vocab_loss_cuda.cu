// Cross entropy from the statistics of all pieces of a cut vocabulary, on the GPU. The gradient needs no sum
// over a row any more: a pure stream.
#include "kernels/cross_entropy/contract.h"
#include "kernels/cross_entropy/loss_rows.cuh"
#include "kernels/cuda/column_sum.cuh"
#include "kernels/cuda/team.cuh"

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

CudaLaunch prepare_vocab_loss_forward(const Invocation& call, device::cuda::Lane& lane) {
  const signature::vocab_loss::Forward<Arg> args(call.args);
  const int64_t rows = args.mask.dim(0);
  const int num_ranks = static_cast<int>(ranks_of_stats(args.all_stats, rows));
  if (args.token_loss.present && !is_stored(args.token_loss.dtype)) return {};
  const LossTarget to = loss_target(args);
  auto* const row_loss = reinterpret_cast<double*>(call.scratch_for(row_loss_bytes(rows)));
  return [=, &lane, all_stats = args.all_stats.as<double>()] {
    if (rows > 0) {
      losses<<<static_cast<unsigned>(ceil_div(rows, 256)), 256, 0, lane.stream()>>>(all_stats, num_ranks,
                                                                                    to.mask, rows, row_loss);
      PLEAT_CUDA_LAUNCHED();
    }
    launch_sum_losses(lane.stream(), row_loss, to);
  };
}

CudaLaunch prepare_vocab_loss_backward_input(const Invocation& call, device::cuda::Lane& lane) {
  const signature::vocab_loss::BackwardInput<Arg> args(call.args);
  const int64_t rows = args.logits.dim(0);
  const int num_ranks = static_cast<int>(ranks_of_stats(args.all_stats, rows));
  CudaLaunch out;
  with_float(args.logits.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto p = loss_args<T>(args, call);
    const LossTarget to = loss_target(args);
    const bool wide = p.columns % kWide<T> == 0 && all_aligned({p.logits});
    auto* const row_loss = reinterpret_cast<double*>(call.scratch_for(row_loss_bytes(rows)));
    out = [=, &lane, all_stats = args.all_stats.as<double>(), norm = args.norm.as<double>()] {
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

constexpr CudaBinding kTable[] = {
    row<signature::vocab_loss::Forward>(prepare_vocab_loss_forward),
    row<signature::vocab_loss::BackwardInput>(prepare_vocab_loss_backward_input),
};

}  // namespace

std::span<const CudaBinding> vocab_loss_cuda_bindings() { return kTable; }

}  // namespace pleat::kernels
