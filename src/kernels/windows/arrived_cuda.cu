// What others have stored into this rank's window, on the GPU: rows into the order of experts, sums into tokens.
#include "device/cuda/check.h"
#include "kernels/cuda/bind.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/team.cuh"
#include "kernels/rows/gather.cuh"
#include "kernels/windows/contract.h"

namespace pleat::kernels {
namespace {

using namespace cuda;

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr unsigned kAll = 0xffffffffu;

// Rows of experts among those that were sent; all of them bad where the ranks did not meet.
struct Sent {
  const int32_t *source_row, *num_rows;
  const uint8_t* met;
  int64_t sent, most;

  __device__ int64_t rows() const { return min(static_cast<int64_t>(*num_rows), most); }
  __device__ int64_t of(int64_t row) const {
    if (*met == 0) return kBadRow;
    const int64_t from = source_row[row];
    return from < 0 ? kZeroRow : from < sent ? from : kBadRow;
  }
};

// The small numbers beside the rows, kept for the backward.
struct Kept {
  const float* sent_probs;
  const int32_t *sent_source, *sent_lists, *num_rows;
  float* row_probs;
  int32_t *source_row, *token_rows;
  int64_t num_lists;
};
__global__ void __launch_bounds__(kThreads) keep(Kept a) {
  const int64_t first = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x,
                stride = gridDim.x * static_cast<int64_t>(kThreads);
  for (int64_t i = first; i < *a.num_rows; i += stride) {
    a.row_probs[i] = a.sent_probs[i];
    a.source_row[i] = a.sent_source[i];
  }
  for (int64_t i = first; i < a.num_lists; i += stride) a.token_rows[i] = a.sent_lists[i];
}

template <class Args>
CudaLaunch place(const Args& args, const Arg& source_row, device::cuda::Lane& lane) {
  const Sent sent{source_row.as<int32_t>(), args.offsets.template as<int32_t>() + args.offsets.dim(0) - 1,
                  args.met.template as<uint8_t>(), args.sent.dim(0), args.rows.dim(0)};
  const int64_t rows = args.rows.dim(0), bytes = args.rows.dim(1) * tensor::size_of(args.rows.dtype);
  return [=, from = static_cast<const void*>(args.sent.data), to = args.rows.data,
          unit = common_unit({bytes}, {args.sent.data, args.rows.data}),
          stream = lane.stream()] { launch_gather(stream, from, to, rows, bytes, unit, sent); };
}

CudaLaunch prepare_place_rows(const Invocation& call, device::cuda::Lane& lane) {
  const signature::place_rows::Forward<Arg> args(call.args);
  if (args.sent_probs.dtype != tensor::Dtype::F32) return {};
  const Kept kept{args.sent_probs.as<float>(),   args.sent_source.as<int32_t>(),
                  args.sent_lists.as<int32_t>(), args.offsets.as<int32_t>() + args.offsets.dim(0) - 1,
                  args.row_probs.as<float>(),    args.source_row.as<int32_t>(),
                  args.token_rows.as<int32_t>(), args.token_rows.size()};
  const auto blocks = static_cast<unsigned>(std::clamp<int64_t>(
      ceil_div(std::max(args.rows.dim(0), args.token_rows.size()), kThreads * 4), 1, 264));
  return [=, placed = place(args, args.sent_source, lane), stream = lane.stream()] {
    keep<<<blocks, kThreads, 0, stream>>>(kept);
    PLEAT_CUDA_LAUNCHED();
    placed();
  };
}

CudaLaunch prepare_place_gradients(const Invocation& call, device::cuda::Lane& lane) {
  const signature::place_rows::BackwardInput<Arg> args(call.args);
  return place(args, args.source_row, lane);
}

// Sums over ranks of float rows are carried in double, of bf16 rows in float, as reductions are (comm/communicator.h).
template <class T>
struct CarryOf {
  using type = float;
};
template <>
struct CarryOf<float> {
  using type = double;
};

template <class T>
struct AddSums {
  const T* sums;
  const int32_t *token_slot, *token_offsets;
  const uint8_t* met;
  T* y;
  const float* prob_sums;  // null: forward
  const int32_t *idx, *token_row;
  float* dprobs;
  int num_tokens, width, pieces, expert_ranks, copies, top_k, listed, experts_per_rank;
  bool add;
};

template <class T, int N>
__global__ void __launch_bounds__(kThreads) add_sums(AddSums<T> a) {
  using Carry = typename CarryOf<T>::type;
  constexpr int kVecs = 2;
  const int64_t unit = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int64_t t = unit / a.pieces;
  if (t >= a.num_tokens) return;
  const int lane = threadIdx.x % 32, piece = static_cast<int>(unit - t * a.pieces),
            begin = (piece * kVecs * 32 + lane) * N;
  const bool met = *a.met != 0;
  Carry total[kVecs][N] = {};
  for (int from = 0; from < a.expert_ranks; from += 32) {
    const int p = from + lane;
    const int mine = p < a.expert_ranks ? a.token_slot[t * a.expert_ranks + p] : -1;
    for (unsigned left = __ballot_sync(kAll, mine >= 0); left != 0; left &= left - 1) {
      const int at = __ffs(static_cast<int>(left)) - 1, first = a.token_offsets[from + at],
                count = a.token_offsets[from + at + 1] - first;
      const int64_t row = static_cast<int64_t>(a.copies) * first + __shfl_sync(kAll, mine, at);
      for (int c = 0; c < a.copies; ++c) {
        const T* its = a.sums + (row + static_cast<int64_t>(c) * count) * a.width;
#pragma unroll
        for (int i = 0; i < kVecs; ++i) {
          const int column = begin + i * 32 * N;
          if (column >= a.width) continue;
          float x[N];
          load_streaming<Pack<T, N>>(its + column).get(x);
#pragma unroll
          for (int e = 0; e < N; ++e) total[i][e] += static_cast<Carry>(x[e]);
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kVecs; ++i) {
    const int column = begin + i * 32 * N;
    if (column >= a.width) continue;
    T* to = a.y + t * a.width + column;
    float out[N], before[N];
#pragma unroll
    for (int e = 0; e < N; ++e) out[e] = met ? static_cast<float>(total[i][e]) : __int_as_float(0x7fffffff);
    if (a.add) {
      Pack<T, N>::load(to).get(before);
#pragma unroll
      for (int e = 0; e < N; ++e) out[e] += before[e];
    }
    Pack<T, N> pack;
    pack.set(out);
    pack.store(to);
  }
  if (!a.prob_sums || piece != 0) return;
  const int64_t choice = t * a.top_k + lane;
  const int row = lane < a.top_k ? a.token_row[choice] : -1;
  const int p = row >= 0 ? a.idx[choice] / a.experts_per_rank : -1;
  const unsigned same = __match_any_sync(kAll, p);
  if (lane >= a.top_k) return;
  double sum = 0;
  if (row >= 0) {
    const int first = a.token_offsets[p], count = a.token_offsets[p + 1] - first;
    const int64_t at = static_cast<int64_t>(a.copies) * first + a.token_slot[t * a.expert_ranks + p];
    for (int c = 0; c < a.copies; ++c)
      sum += static_cast<double>(
          a.prob_sums[(at + static_cast<int64_t>(c) * count) * a.listed + __popc(same & ((1u << lane) - 1))]);
  }
  a.dprobs[choice] = met ? static_cast<float>(sum) : __int_as_float(0x7fffffff);
}

template <class T>
CudaLaunch launch_add(AddSums<T> a, device::cuda::Lane& lane) {
  const auto with = [&](auto n) -> CudaLaunch {
    a.pieces = static_cast<int>(ceil_div(a.width, 2 * 32 * n));
    const auto blocks =
        static_cast<unsigned>(ceil_div(static_cast<int64_t>(a.num_tokens) * a.pieces, kWarps));
    return [=, stream = lane.stream()] {
      if (blocks == 0) return;
      add_sums<T, decltype(n)::value><<<blocks, kThreads, 0, stream>>>(a);
      PLEAT_CUDA_LAUNCHED();
    };
  };
  return a.width % kWide<T> == 0 && all_aligned({a.sums, a.y}) ? with(std::integral_constant<int, kWide<T>>{})
                                                               : with(std::integral_constant<int, 1>{});
}

template <class T, class Args>
AddSums<T> add_of(const Args& args, const Arg& y, const Invocation& call) {
  AddSums<T> a{};
  a.sums = args.sums.template as<T>(), a.y = y.as<T>(), a.met = args.met.template as<uint8_t>();
  a.token_slot = args.token_slot.template as<int32_t>(),
  a.token_offsets = args.token_offsets.template as<int32_t>();
  a.num_tokens = static_cast<int>(y.dim(0)), a.width = static_cast<int>(y.dim(1));
  a.expert_ranks = static_cast<int>(args.token_slot.dim(1)),
  a.copies = static_cast<int>(call.integer("copies"));
  a.add = y.into() == Into::Accumulate;
  return a;
}

CudaLaunch prepare_add_sums(const Invocation& call, device::cuda::Lane& lane) {
  const signature::add_sums::Forward<Arg> args(call.args);
  CudaLaunch out;
  with_float(args.sums.dtype,
             [&](auto zero) { out = launch_add(add_of<decltype(zero)>(args, args.y, call), lane); });
  return out;
}

CudaLaunch prepare_add_gradients(const Invocation& call, device::cuda::Lane& lane) {
  const signature::add_sums::BackwardInput<Arg> args(call.args);
  if (args.prob_sums.dtype != tensor::Dtype::F32) return {};
  if (args.idx.dim(1) > program::kMaxGpuChoices)
    refuse(args.idx, "{} choices per token, needed at most {} on the GPU", args.idx.dim(1),
           program::kMaxGpuChoices);
  CudaLaunch out;
  with_float(args.sums.dtype, [&](auto zero) {
    using T = decltype(zero);
    AddSums<T> a = add_of<T>(args, args.dx, call);
    a.prob_sums = args.prob_sums.as<float>(), a.dprobs = args.dprobs.as<float>();
    a.idx = args.idx.as<int32_t>(), a.token_row = args.token_row.as<int32_t>();
    a.top_k = static_cast<int>(args.idx.dim(1)), a.listed = static_cast<int>(args.prob_sums.dim(1));
    a.experts_per_rank = static_cast<int>(call.integer("experts_per_rank"));
    out = launch_add(a, lane);
  });
  return out;
}

constexpr CudaBinding kTable[] = {
    row<signature::place_rows::Forward>(prepare_place_rows),
    row<signature::place_rows::BackwardInput>(prepare_place_gradients),
    row<signature::add_sums::Forward>(prepare_add_sums),
    row<signature::add_sums::BackwardInput>(prepare_add_gradients),
};

}  // namespace

std::span<const CudaBinding> arrived_cuda_bindings() { return kTable; }

}  // namespace pleat::kernels
