// Cross entropy on the GPU. A row of logits stays in registers between its maximum, its sum and its gradient,
// so it is read once and written once; long rows are shared by a cluster of two to eight blocks, which
// exchange their maxima and sums. Rows that are not whole 16-byte units, or longer than a cluster holds, are
// read three times.
#include <cooperative_groups.h>

#include "kernels/cross_entropy/loss_rows.cuh"
#include "kernels/cross_entropy/loss_rows.h"
#include "kernels/cuda/column_sum.cuh"
#include "kernels/cuda/team.cuh"
#include "kernels/math/coords.h"

namespace pleat::kernels {
namespace {

using namespace cuda;

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

template <class T>
__device__ inline double label_logit(const LossArgs<T>& p, int64_t row, int64_t first, int64_t real) {
  const int64_t label = p.labels[row] - first;
  return label >= 0 && label < real ? static_cast<double>(to_float(p.logits[row * p.columns + label])) : 0.0;
}

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

// kCluster blocks of the grid share a row: units [rank * share, (rank + 1) * share).
template <class T, int kPer, int kCluster, Ask kAsk>
__global__ void __launch_bounds__(kLossThreads, 2)
    held_row(LossArgs<T> p, int64_t units, int64_t share, const double* norm, double* out) {
  using V = Wide<T>;
  namespace cg = cooperative_groups;
  __shared__ double mine[2];
  __shared__ float common[2];
  const int64_t row = blockIdx.x / kCluster;
  const int rank = static_cast<int>(blockIdx.x % kCluster);
  const int64_t begin = rank * share, end = begin + share < units ? begin + share : units;
  T* logits = p.logits + row * p.columns;
  const auto unit_of = [&](int i) { return begin + i * kLossThreads + static_cast<int64_t>(threadIdx.x); };
  if (!p.mask[row]) {
    if (threadIdx.x == 0 && rank == 0) leave_nothing<kAsk, T>(row, out);
    if constexpr (kAsk == Ask::Gradient) {
#pragma unroll
      for (int i = 0; i < kPer; ++i)
        if (unit_of(i) < end) V::zero().store(logits + unit_of(i) * V::kSize);
    }
    return;  // all blocks of the cluster do
  }
  const int64_t first = p.first(), real = p.real();
  V held[kPer];
#pragma unroll
  for (int i = 0; i < kPer; ++i)
    held[i] = load_or_lowest<T, V::kSize>(logits, unit_of(i) * V::kSize, unit_of(i) < end ? real : 0);
  // Before the barriers below, behind which some block overwrites it.
  const double at_label = threadIdx.x == 0 && rank == 0 ? label_logit(p, row, first, real) : 0.0;
  float top = lowest();
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    float a[V::kSize];
    held[i].get(a);
#pragma unroll
    for (int j = 0; j < V::kSize; ++j) top = fmaxf(top, a[j]);
    held[i].forget();
  }
  top = block_max<kLossThreads>(top);
  const float shift = top == lowest() ? 0.0f : top;
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    float a[V::kSize];
    held[i].get(a);
#pragma unroll
    for (int j = 0; j < V::kSize; ++j) sum += exp_of<T>(a[j] - shift);
    held[i].forget();
  }
  const double total = block_sum<kLossThreads>(static_cast<double>(sum));
  if constexpr (kCluster > 1) {
    if (threadIdx.x == 0) mine[0] = top, mine[1] = total;
    cg::this_cluster().sync();
  }
  if (threadIdx.x == 0) {
    RowSums r{top, total, at_label};
    if constexpr (kCluster > 1) {
      // Twice over the others' numbers: held, they would push the row out of the registers.
      const auto of = [&](int i) { return cg::this_cluster().map_shared_rank(mine, i); };
      r.top = of(0)[0], r.sum = 0;
#pragma unroll 1
      for (int i = 1; i < kCluster; ++i) r.top = of(i)[0] > r.top ? of(i)[0] : r.top;
#pragma unroll 1
      for (int i = 0; i < kCluster; ++i)
        if (of(i)[1] != 0) r.sum += of(i)[1] * exp(of(i)[0] - r.top);  // 0: a block without columns
    }
    if (rank == 0) leave<kAsk>(p, row, r, out);
    if constexpr (kAsk == Ask::Gradient) {
      common[0] = static_cast<float>(r.top);
      common[1] = static_cast<float>(*norm / r.sum);
    }
  }
  if constexpr (kAsk == Ask::Gradient) {
    __syncthreads();
    const float whole_top = common[0], scale = common[1], weight = static_cast<float>(*norm);
    const int64_t label = p.labels[row] - first;
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      if (unit_of(i) >= end) continue;
      float a[V::kSize];
      held[i].get(a);
#pragma unroll
      for (int j = 0; j < V::kSize; ++j) a[j] = exp_of<T>(a[j] - whole_top) * scale;
      const int64_t at = label - unit_of(i) * V::kSize;
      if (at >= 0 && at < V::kSize) {
#pragma unroll
        for (int j = 0; j < V::kSize; ++j)
          if (j == at) a[j] -= weight;
      }
      held[i].set(a);
      held[i].store(logits + unit_of(i) * V::kSize);
    }
  }
  if constexpr (kCluster > 1) cg::this_cluster().sync();  // the others have read `mine`
}

template <class T, int N, Ask kAsk>
__global__ void __launch_bounds__(kLossThreads) looped_row(LossArgs<T> p, const double* norm, double* out) {
  const int64_t row = blockIdx.x;
  T* logits = p.logits + row * p.columns;
  if (!p.mask[row]) {
    if (threadIdx.x == 0) leave_nothing<kAsk, T>(row, out);
    if constexpr (kAsk == Ask::Gradient)
      for (int64_t j = threadIdx.x; j < p.columns; j += kLossThreads) logits[j] = from_float<T>(0.0f);
    return;
  }
  const int64_t first = p.first(), real = p.real();
  const double at_label = threadIdx.x == 0 ? label_logit(p, row, first, real) : 0.0;
  const auto each = [&](auto f) {
    for (int64_t j = threadIdx.x * static_cast<int64_t>(N); j < p.columns; j += kLossThreads * N) {
      float a[N];
      load_or_lowest<T, N>(logits, j, real).get(a);
      f(j, a);
    }
  };
  float top = lowest();
  each([&](int64_t, float(&a)[N]) {
#pragma unroll
    for (int j = 0; j < N; ++j) top = fmaxf(top, a[j]);
  });
  top = block_max<kLossThreads>(top);
  const float shift = top == lowest() ? 0.0f : top;
  double sum = 0;
  each([&](int64_t, float(&a)[N]) {
    float part = 0;
#pragma unroll
    for (int j = 0; j < N; ++j) part += exp_of<T>(a[j] - shift);
    sum += static_cast<double>(part);
  });
  sum = block_sum<kLossThreads>(sum);
  if (threadIdx.x == 0) leave<kAsk>(p, row, {top, sum, at_label}, out);
  if constexpr (kAsk == Ask::Gradient) {
    const float scale = static_cast<float>(*norm / sum), weight = static_cast<float>(*norm);
    const int64_t label = p.labels[row] - first;
    each([&](int64_t column, float(&a)[N]) {
#pragma unroll
      for (int j = 0; j < N; ++j)
        a[j] = exp_of<T>(a[j] - shift) * scale - (column + j == label ? weight : 0.0f);
      Pack<T, N> pack;
      pack.set(a);
      pack.store(logits + column);
    });
  }
}

template <class T, int kPer, int kCluster, Ask kAsk>
void launch_held(CUstream_st* stream, const LossArgs<T>& p, int64_t rows, const double* norm, double* out) {
  const int64_t units = p.columns / kWide<T>, share = ceil_div(units, kCluster);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(rows * kCluster));
  config.blockDim = dim3(kLossThreads);
  config.stream = stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = kCluster;
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  config.attrs = &attribute;
  config.numAttrs = kCluster > 1 ? 1 : 0;
  PLEAT_CUDA(cudaLaunchKernelEx(&config, held_row<T, kPer, kCluster, kAsk>, p, units, share, norm, out));
}

template <Ask kAsk, class T>
void launch_rows(CUstream_st* stream, const LossArgs<T>& p, int64_t rows, const double* norm, double* out) {
  if (rows == 0) return;
  const bool wide = p.columns % kWide<T> == 0 && all_aligned({p.logits});
  const int64_t loads = wide ? ceil_div(p.columns / kWide<T>, kLossThreads) : 0;  // of a thread, alone
  if (!wide) {
    looped_row<T, 1, kAsk><<<static_cast<unsigned>(rows), kLossThreads, 0, stream>>>(p, norm, out);
    PLEAT_CUDA_LAUNCHED();
  } else if (loads <= 2) {
    launch_held<T, 2, 1, kAsk>(stream, p, rows, norm, out);
  } else if (loads <= 4) {
    launch_held<T, 4, 1, kAsk>(stream, p, rows, norm, out);
  } else if (loads <= 8) {
    launch_held<T, 8, 1, kAsk>(stream, p, rows, norm, out);
  } else if (loads <= 16) {
    launch_held<T, 8, 2, kAsk>(stream, p, rows, norm, out);
  } else if (loads <= 32) {
    launch_held<T, 8, 4, kAsk>(stream, p, rows, norm, out);
  } else if (loads <= 64) {
    launch_held<T, 8, 8, kAsk>(stream, p, rows, norm, out);
  } else {
    looped_row<T, kWide<T>, kAsk><<<static_cast<unsigned>(rows), kLossThreads, 0, stream>>>(p, norm, out);
    PLEAT_CUDA_LAUNCHED();
  }
}

template <Ask kAsk, class T>
CudaLaunch loss_launch(const LossArgs<T>& p, const double* norm, const LossTarget& to,
                       device::cuda::Lane& lane) {
  lane.need_scratch(to.rows * static_cast<int64_t>(sizeof(double)));
  return [=, &lane] {
    auto* row_loss = reinterpret_cast<double*>(lane.scratch());
    launch_rows<kAsk>(lane.stream(), p, to.rows, norm, row_loss);
    launch_sum_losses(lane.stream(), row_loss, to);
  };
}

CudaLaunch prepare_forward(const Invocation& call, device::cuda::Lane& lane) {
  require_rank("cross_entropy", "logits", call[0], 2);
  const int64_t rows = call[0].dim(0), columns = call[0].dim(1);
  require_labels("cross_entropy", call[1], call[2], call[3], rows);
  require_shape("cross_entropy", "token_loss", call[4], {rows});
  CudaLaunch out;
  if (call[4].present && !is_stored(call[4].dtype)) return out;
  with_float(call[0].dtype, [&](auto zero) {
    using T = decltype(zero);
    const LossArgs<T> p{call[0].as<T>(), call[1].as<int32_t>(), call[2].as<uint8_t>(), nullptr, columns,
                        columns};
    LossTarget to{p.mask, rows, call[3].as<double>(), call[3].into() == Into::Accumulate};
    if (call[4].present) to.token_loss = call[4].data, to.token_dtype = call[4].dtype;
    out = loss_launch<Ask::Loss>(p, nullptr, to, lane);
  });
  return out;
}

CudaLaunch prepare_backward_input(const Invocation& call, device::cuda::Lane& lane) {
  require_rank("cross_entropy", "logits", call[3], 2);
  const int64_t rows = call[3].dim(0), columns = call[3].dim(1);
  require_labels("cross_entropy", call[0], call[1], call[4], rows);
  require_norm("cross_entropy", call[2]);
  require_in_place("cross_entropy", "logits", call[3]);
  CudaLaunch out;
  with_float(call[3].dtype, [&](auto zero) {
    using T = decltype(zero);
    const LossArgs<T> p{call[3].as<T>(), call[0].as<int32_t>(), call[1].as<uint8_t>(), nullptr, columns,
                        columns};
    const LossTarget to{p.mask, rows, call[4].as<double>(), call[4].into() == Into::Accumulate};
    out = loss_launch<Ask::Gradient>(p, call[2].as<double>(), to, lane);
  });
  return out;
}

CudaLaunch prepare_vocab_stats(const Invocation& call, device::cuda::Lane& lane) {
  require_rank("vocab_stats", "logits", call[0], 2);
  const int64_t rows = call[0].dim(0), columns = call[0].dim(1);
  require_labels("vocab_stats", call[1], call[2], {}, rows);
  require_coords("vocab_stats", call, call[3]);
  require_shape("vocab_stats", "stats", call[4], {rows, 3});
  require_dtype("vocab_stats", "stats", call[4], tensor::Dtype::F64);
  const int64_t vocabulary = call.integer("vocabulary");
  CudaLaunch out;
  with_float(call[0].dtype, [&](auto zero) {
    using T = decltype(zero);
    const LossArgs<T> p{call[0].as<T>(),
                        call[1].as<int32_t>(),
                        call[2].as<uint8_t>(),
                        call[3].as<int64_t>() + call.integer("group"),
                        columns,
                        vocabulary};
    out = [=, stats = call[4].as<double>(), stream = lane.stream()] {
      launch_rows<Ask::Stats>(stream, p, rows, nullptr, stats);
    };
  });
  return out;
}

}  // namespace

std::span<const CudaBinding> cross_entropy_cuda_bindings() {
  using program::KernelKind;
  using program::Phase;
  static constexpr CudaBinding rows[] = {
      {KernelKind::cross_entropy, Phase::Forward, prepare_forward},
      {KernelKind::cross_entropy, Phase::BackwardInput, prepare_backward_input},
      {KernelKind::vocab_stats, Phase::Forward, prepare_vocab_stats},
      {KernelKind::vocab_loss, Phase::Forward, prepare_vocab_loss_forward},
      {KernelKind::vocab_loss, Phase::BackwardInput, prepare_vocab_loss_backward_input},
  };
  return rows;
}

}  // namespace pleat::kernels
