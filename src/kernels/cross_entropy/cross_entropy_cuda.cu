// Cross entropy on the GPU. A row of logits stays on the multiprocessor between its maximum, its sum and its
// gradient, so it is read once and written once: short rows in registers, long ones in shared memory
// (loss_ring.cuh). Rows that are not whole 16-byte units, or longer than a cluster of blocks holds, are read
// three times.
#include "kernels/cross_entropy/loss_ring.cuh"
#include "kernels/cross_entropy/loss_rows.cuh"
#include "kernels/cross_entropy/loss_rows.h"
#include "kernels/cuda/column_sum.cuh"
#include "kernels/cuda/team.cuh"
#include "kernels/math/coords.h"

namespace pleat::kernels {
namespace {

using namespace cuda;

template <class T>
__device__ inline double label_logit(const LossArgs<T>& p, int64_t row, int64_t first, int64_t real) {
  const int64_t label = p.labels[row] - first;
  return label >= 0 && label < real ? static_cast<double>(to_float(p.logits[row * p.columns + label])) : 0.0;
}

template <class T, int kPer, Ask kAsk>
__global__ void __launch_bounds__(kLossThreads, 2)
    held_row(LossArgs<T> p, int64_t units, const double* norm, double* out) {
  using V = Wide<T>;
  const int64_t row = blockIdx.x;
  T* logits = p.logits + row * p.columns;
  const auto unit_of = [&](int i) { return i * kLossThreads + static_cast<int64_t>(threadIdx.x); };
  if (!p.mask[row]) {
    if (threadIdx.x == 0) leave_nothing<kAsk, T>(row, out);
    if constexpr (kAsk == Ask::Gradient) {
#pragma unroll
      for (int i = 0; i < kPer; ++i)
        if (unit_of(i) < units) V::zero().store(logits + unit_of(i) * V::kSize);
    }
    return;
  }
  const int64_t first = p.first(), real = p.real();
  V held[kPer];
#pragma unroll
  for (int i = 0; i < kPer; ++i)
    held[i] = load_or_lowest<T, V::kSize>(logits, unit_of(i) * V::kSize, unit_of(i) < units ? real : 0);
  // Before the barriers below, behind which some thread overwrites it.
  const double at_label = threadIdx.x == 0 ? label_logit(p, row, first, real) : 0.0;
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
  if (threadIdx.x == 0) leave<kAsk>(p, row, {top, total, at_label}, out);
  if constexpr (kAsk == Ask::Gradient) {
    const float scale = static_cast<float>(*norm / total), weight = static_cast<float>(*norm);
    const int64_t label = p.labels[row] - first;
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      if (unit_of(i) >= units) continue;
      float a[V::kSize];
      held[i].get(a);
      to_gradient<T>(a, unit_of(i) * V::kSize, label, top, scale, weight);
      held[i].set(a);
      held[i].store(logits + unit_of(i) * V::kSize);
    }
  }
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
      to_gradient<T>(a, column, label, shift, scale, weight);
      Pack<T, N> pack;
      pack.set(a);
      pack.store(logits + column);
    });
  }
}

// Enqueues the rows' kernel: (stream, norm, out).
using LaunchRows = std::function<void(CUstream_st*, const double*, double*)>;

template <Ask kAsk, class T>
LaunchRows plan_rows(const LossArgs<T>& p, int64_t rows) {
  if (rows == 0) return [](CUstream_st*, const double*, double*) {};
  const auto blocks = static_cast<unsigned>(rows);
  const int64_t units = p.columns / kWide<T>;
  const auto plain = [=](auto kernel) -> LaunchRows {
    return [=](CUstream_st* stream, const double* norm, double* out) {
      kernel<<<blocks, kLossThreads, 0, stream>>>(p, norm, out);
      PLEAT_CUDA_LAUNCHED();
    };
  };
  const auto held = [=](auto kernel) -> LaunchRows {
    return [=](CUstream_st* stream, const double* norm, double* out) {
      kernel<<<blocks, kLossThreads, 0, stream>>>(p, units, norm, out);
      PLEAT_CUDA_LAUNCHED();
    };
  };
  if (p.columns % kWide<T> != 0 || !all_aligned({p.logits})) return plain(looped_row<T, 1, kAsk>);
  if (units <= 2 * kLossThreads) return held(held_row<T, 2, kAsk>);
  if (units <= 4 * kLossThreads) return held(held_row<T, 4, kAsk>);
  if (const std::optional<RingLaunch> ring = plan_ring<kAsk>(p, rows))
    return [=](CUstream_st* stream, const double* norm, double* out) {
      launch_ring<kAsk>(stream, *ring, p, rows, norm, out);
    };
  return plain(looped_row<T, kWide<T>, kAsk>);
}

template <Ask kAsk, class T>
CudaLaunch loss_launch(const LossArgs<T>& p, const double* norm, const LossTarget& to,
                       device::cuda::Lane& lane) {
  lane.need_scratch(to.rows * static_cast<int64_t>(sizeof(double)));
  return [=, &lane, launch_rows = plan_rows<kAsk>(p, to.rows)] {
    auto* row_loss = reinterpret_cast<double*>(lane.scratch());
    launch_rows(lane.stream(), norm, row_loss);
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
    out = [launch_rows = plan_rows<Ask::Stats>(p, rows), stats = call[4].as<double>(),
           stream = lane.stream()] { launch_rows(stream, nullptr, stats); };
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
