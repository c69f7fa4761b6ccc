// Cross entropy on the GPU. The loss alone and the statistics need a row once: it streams through registers
// (row_stream.cuh). For the gradient a row stays on the multiprocessor between its sum and its gradient, so
// it is read once and written once: short rows in registers, long ones in shared memory (loss_ring.cuh). Rows
// that are not whole 16-byte units, or longer than a cluster of blocks holds, are read twice for it.
#include "kernels/cross_entropy/contract.h"
#include "kernels/cross_entropy/loss_ring.cuh"
#include "kernels/cross_entropy/loss_rows.cuh"
#include "kernels/cross_entropy/row_stream.cuh"
#include "kernels/cuda/column_sum.cuh"
#include "kernels/cuda/team.cuh"

namespace pleat::kernels {
namespace {

using namespace cuda;

// ---- The loss, or the statistics, of a row.

template <class T, int kThreads, bool kStats>
__global__ void __launch_bounds__(kThreads, kStreamThreads / kThreads) row_sums(LossArgs<T> p, double* out) {
  const int64_t row = blockIdx.x;
  const bool counts = p.mask[row];
  const int64_t first = p.first(), real = p.real(), label = p.labels[row] - first;
  if (!counts) {
    if (threadIdx.x < (kStats ? 3 : 1)) out[row * (kStats ? 3 : 1) + threadIdx.x] = 0;
    return;
  }
  const T* logits = p.logits + row * p.columns;
  const auto mine = look_at_row<kThreads>(RowUnits<T>(logits, static_cast<int>(real)), [](int) {});
  // On its way while the parts are put together.
  float at_label = 0;
  if (threadIdx.x == 0 && label >= 0 && label < real) at_label = to_float(logits[label]);
  const RowPart* parts = block_parts<kThreads>(mine);
  if (threadIdx.x >= 32) return;
  RowPart whole = combine_parts<T, kThreads / 32>(parts);
  if (threadIdx.x != 0) return;
  whole.label_logit = at_label;
  if constexpr (kStats) {
    out[row * 3] = static_cast<double>(whole.top);
    out[row * 3 + 1] = whole.sum;
    out[row * 3 + 2] = p.label_ok(row) ? static_cast<double>(whole.label_logit) : not_a_number();
  } else {
    out[row] = loss_of(p, row, whole);
  }
}

template <bool kStats, class T>
void launch_sums(CUstream_st* stream, const LossArgs<T>& p, int64_t rows, double* out) {
  if (rows == 0) return;
  with_stream_threads(rows, [&](auto threads) {
    row_sums<T, threads(), kStats><<<static_cast<unsigned>(rows), threads(), 0, stream>>>(p, out);
    PLEAT_CUDA_LAUNCHED();
  });
}

// ---- The loss and the gradient of a row.

constexpr int kGradientThreads = 512;

// Rows of at most kPer units a thread, in registers.
template <class T, int kPer>
__global__ void __launch_bounds__(kGradientThreads, 2)
    held_gradient(LossArgs<T> p, const double* norm, double* row_loss) {
  using V = Wide<T>;
  const int64_t row = blockIdx.x;
  const int units = static_cast<int>(p.columns) / V::kSize, label = p.labels[row];
  T* logits = p.logits + row * p.columns;
  const auto unit_of = [](int i) { return i * kGradientThreads + static_cast<int>(threadIdx.x); };
  if (!p.mask[row]) {
    if (threadIdx.x == 0) row_loss[row] = 0;
#pragma unroll
    for (int i = 0; i < kPer; ++i)
      if (unit_of(i) < units) V::zero().store(logits + unit_of(i) * V::kSize);
    return;
  }
  V held[kPer];
#pragma unroll
  for (int i = 0; i < kPer; ++i)
    held[i] = unit_of(i) < units ? V::load(logits + unit_of(i) * V::kSize) : lowest_unit<T>();
  // Before the barriers below, behind which some thread overwrites it.
  const float at_label = threadIdx.x == 0 && p.label_ok(row) ? to_float(logits[label]) : 0.0f;
  float top = lowest();
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    float a[V::kSize];
    held[i].get(a);
#pragma unroll
    for (int j = 0; j < V::kSize; ++j) top = fmaxf(top, a[j]);
    held[i].forget();
  }
  top = block_max<kGradientThreads>(top);
  const float shift = shift_of(top);
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    float a[V::kSize];
    held[i].get(a);
#pragma unroll
    for (int j = 0; j < V::kSize; ++j) sum += exp_of<T>(a[j] - shift);
    held[i].forget();
  }
  const double total = block_sum<kGradientThreads>(static_cast<double>(sum));
  if (threadIdx.x == 0) row_loss[row] = loss_of(p, row, {top, at_label, total});
  const float scale = static_cast<float>(*norm / total), weight = static_cast<float>(*norm);
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    if (unit_of(i) >= units) continue;
    float a[V::kSize];
    held[i].get(a);
    to_gradient<T>(a, unit_of(i) * V::kSize, label, shift, scale, weight);
    held[i].set(a);
    held[i].store(logits + unit_of(i) * V::kSize);
  }
}

// Rows of any width, read twice.
template <class T>
__global__ void __launch_bounds__(kGradientThreads)
    streamed_gradient(LossArgs<T> p, const double* norm, double* row_loss) {
  const int64_t row = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x), label = p.labels[row];
  T* logits = p.logits + row * p.columns;
  if (!p.mask[row]) {
    if (thread == 0) row_loss[row] = 0;
    for (int j = thread; j < p.columns; j += kGradientThreads) logits[j] = from_float<T>(0.0f);
    return;
  }
  const float at_label = thread == 0 && p.label_ok(row) ? to_float(logits[label]) : 0.0f;
  const RowUnits<T> its(logits, static_cast<int>(p.columns));
  RowPart whole = combine_parts<T, kGradientThreads / 32>(
      block_parts<kGradientThreads>(look_at_row<kGradientThreads>(its, [](int) {})));
  whole.label_logit = at_label;
  if (thread == 0) row_loss[row] = loss_of(p, row, whole);
  const float shift = shift_of(whole.top), scale = static_cast<float>(*norm / whole.sum),
              weight = static_cast<float>(*norm);
  const auto turn = [&](int column, auto pack) {
    float a[decltype(pack)::kSize];
    pack.get(a);
    to_gradient<T>(a, column, label, shift, scale, weight);
    pack.set(a);
    pack.store(logits + column);
  };
  const auto turn_one = [&](int column) { turn(column, Pack<T, 1>::load(logits + column)); };
  if (thread < its.head) turn_one(thread);
  if (thread < its.tail) turn_one(its.columns - its.tail + thread);
  int column = its.head + thread * kWide<T>;
  for_chunks<kGradientThreads>(its.unit(thread), its.units - thread, [&](const T* from, int left) {
    Wide<T> chunk[kChunk];
    load_chunk<kGradientThreads>(from, left, chunk);
#pragma unroll
    for (int i = 0; i < kChunk; ++i, column += kGradientThreads * kWide<T>)
      if (i * kGradientThreads < left) turn(column, chunk[i]);
  });
}

// Enqueues the rows' kernel: (stream, row_loss).
using LaunchRows = std::function<void(CUstream_st*, double*)>;

template <class T>
LaunchRows plan_gradient(const LossArgs<T>& p, int64_t rows, const double* norm) {
  if (rows == 0) return [](CUstream_st*, double*) {};
  const auto block_per_row = [=](auto kernel) -> LaunchRows {
    return [=](CUstream_st* stream, double* row_loss) {
      kernel<<<static_cast<unsigned>(rows), kGradientThreads, 0, stream>>>(p, norm, row_loss);
      PLEAT_CUDA_LAUNCHED();
    };
  };
  const int64_t units = p.columns / kWide<T>;
  if (p.columns % kWide<T> == 0 && all_aligned({p.logits})) {
    if (units <= 2 * kGradientThreads) return block_per_row(held_gradient<T, 2>);
    if (units <= 4 * kGradientThreads) return block_per_row(held_gradient<T, 4>);
    if (const std::optional<RingLaunch> ring = plan_ring(p, rows))
      return
          [=](CUstream_st* stream, double* row_loss) { launch_ring(stream, *ring, p, rows, norm, row_loss); };
  }
  return block_per_row(streamed_gradient<T>);
}

CudaLaunch loss_launch(LaunchRows launch_rows, const LossTarget& to, const Invocation& call,
                       device::cuda::Lane& lane) {
  auto* const row_loss = reinterpret_cast<double*>(call.scratch_for(row_loss_bytes(to.rows)));
  return [=, stream = lane.stream()] {
    launch_rows(stream, row_loss);
    launch_sum_losses(stream, row_loss, to);
  };
}

CudaLaunch prepare_forward(const Invocation& call, device::cuda::Lane& lane) {
  const signature::cross_entropy::Forward args(call.args);
  CudaLaunch out;
  if (args.token_loss.present && !is_stored(args.token_loss.dtype)) return out;
  with_float(args.logits.dtype, [&](auto zero) {
    const auto p = loss_args<decltype(zero)>(args, call);
    const LossTarget to = loss_target(args);
    out = loss_launch(
        [=](CUstream_st* stream, double* row_loss) { launch_sums<false>(stream, p, to.rows, row_loss); }, to,
        call, lane);
  });
  return out;
}

CudaLaunch prepare_backward_input(const Invocation& call, device::cuda::Lane& lane) {
  const signature::cross_entropy::BackwardInput args(call.args);
  CudaLaunch out;
  with_float(args.logits.dtype, [&](auto zero) {
    const LossTarget to = loss_target(args);
    out = loss_launch(plan_gradient(loss_args<decltype(zero)>(args, call), to.rows, args.norm.as<double>()),
                      to, call, lane);
  });
  return out;
}

CudaLaunch prepare_vocab_stats(const Invocation& call, device::cuda::Lane& lane) {
  const signature::vocab_stats::Forward args(call.args);
  CudaLaunch out;
  with_float(args.logits.dtype, [&](auto zero) {
    const auto p = loss_args<decltype(zero)>(args, call);
    out = [=, rows = args.logits.dim(0), stats = args.stats.as<double>(), stream = lane.stream()] {
      launch_sums<true>(stream, p, rows, stats);
    };
  });
  return out;
}

constexpr CudaBinding kTable[] = {
    row<signature::cross_entropy::Forward>(prepare_forward),
    row<signature::cross_entropy::BackwardInput>(prepare_backward_input),
    row<signature::vocab_stats::Forward>(prepare_vocab_stats),
};

}  // namespace

std::span<const CudaBinding> cross_entropy_cuda_bindings() { return kTable; }

}  // namespace pleat::kernels
