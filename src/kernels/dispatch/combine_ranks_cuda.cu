// Sums of rows that came back from several ranks, on the GPU. A warp takes a run of columns of one token: it
// puts the token's rows into the order they are summed in, then has several of them on the way at a time.
// Sums over the slots of a part in float, rounded to the type of the rows; over parts in double, of bf16 rows in
// float: what a rank could have sent as one row, and what a reduction over ranks would give.
#include "device/cuda/check.h"
#include "kernels/contract.h"
#include "kernels/cuda/bind.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/team.cuh"
#include "program/limits.h"

namespace pleat::kernels {
namespace {

using namespace cuda;

constexpr int kThreads = 128, kWarps = kThreads / 32;
constexpr int64_t kMaxSlots = program::kMaxGpuChoices;
constexpr unsigned kAll = 0xffffffffu;
constexpr int kNoRank = 0x7fffffff;

// Where the rows of the local plan lie among those that came back.
struct Returned {
  const int32_t* offsets;
  int experts_per_rank, num_ranks, copies;

  __device__ int begin(int expert_rank) const { return offsets[expert_rank * experts_per_rank]; }
  __device__ int count(int expert_rank) const { return begin(expert_rank + 1) - begin(expert_rank); }
  __device__ int rank_of(int row) const {
    int low = 0, high = num_ranks - 1;  // the last rank that begins at or before the row
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (begin(middle) <= row)
        low = middle;
      else
        high = middle - 1;
    }
    return low;
  }
  // Of copy 0; copy c lies c * count(expert_rank) further.
  __device__ int place_of(int row, int expert_rank) const { return row + (copies - 1) * begin(expert_rank); }
};

// The rows of a token in the order of their sum: by part, that is by (rank, copy), then by slot. Held by a
// warp; before the constructor's end lane s is slot s, afterwards lane p is the p-th slot by (rank, slot).
struct RowList {
  int copies, length;
  int place, stride;   // of copy 0; to the next copy
  int first, of_part;  // the first slot of the same rank; how many it has

  __device__ RowList(const Returned& returned, int slot_place, int rank, int top_k)
      : copies(returned.copies) {
    const int lane = threadIdx.x % 32;
    const unsigned same = __match_any_sync(kAll, rank);
    int position = 0, slot = 0;
    for (int s = 0; s < top_k; ++s) {
      const int other = __shfl_sync(kAll, rank, s);
      position += other < rank || (other == rank && s < lane) ? 1 : 0;
    }
    for (int s = 0; s < top_k; ++s)
      if (__shfl_sync(kAll, position, s) == lane) slot = s;
    length = __popc(__ballot_sync(kAll, rank != kNoRank)) * copies;
    place = __shfl_sync(kAll, slot_place, slot);
    first = __shfl_sync(kAll, position - __popc(same & ((1u << lane) - 1)), slot);
    of_part = __shfl_sync(kAll, __popc(same), slot);
    const int its_rank = __shfl_sync(kAll, rank, slot);
    stride = copies > 1 && its_rank != kNoRank ? returned.count(its_rank) : 0;
  }

  // Row of entry i, whether it ends a part. For the whole warp, i may differ; behind the last entry a row of
  // the list all the same, so that loads need no condition. Not for an empty list.
  __device__ int row(int i, bool& ends) const {
    const int near = min(i / copies, length / copies - 1);  // a slot of the same rank
    const int begin = __shfl_sync(kAll, first, near), count = __shfl_sync(kAll, of_part, near),
              inside = i - begin * copies, copy = min(inside / count, copies - 1),
              slot = min(inside - copy * count, count - 1);
    const int at = __shfl_sync(kAll, place, begin + slot) + copy * __shfl_sync(kAll, stride, begin + slot);
    ends = slot == count - 1;
    return at;
  }
};

template <class T>
struct RankSum {
  Returned returned;
  const T* rows;
  const int32_t* token_row;
  T* y;
  const float* drow_probs;
  float* dprobs;  // null: no gradient of probabilities
  int num_tokens, width, top_k;
  int pieces, steps;  // of a token's columns; steps of U * 32 vectors a piece
  bool add;
};

// y[t] = [y[t] +] sum of the token's rows. A step loads U vectors of each of K rows at a time; a list is no
// longer than K unless U is 1.
template <class T, int N, int K, int U>
__global__ void __launch_bounds__(kThreads, 5) sum_ranks(RankSum<T> a) {
  static_assert(32 % K == 0);
  using Carry = std::conditional_t<std::is_same_v<T, float>, double, float>;
  using V = Pack<T, N>;
  constexpr int kStep = U * 32 * N;
  const unsigned unit = blockIdx.x * kWarps + threadIdx.x / 32;
  const int64_t t = unit / a.pieces;
  if (t >= a.num_tokens) return;
  const int lane = threadIdx.x % 32, piece = static_cast<int>(unit - static_cast<unsigned>(t) * a.pieces);
  const int row = lane < a.top_k ? a.token_row[t * a.top_k + lane] : -1;
  const int rank = row < 0 ? kNoRank : a.returned.rank_of(row);
  const int place = row < 0 ? 0 : a.returned.place_of(row, rank);
  const bool has_chance = a.dprobs && piece == 0 && row >= 0;
  const float chance = has_chance ? a.drow_probs[place] : 0.0f;  // asked for before the rows
  const RowList list(a.returned, place, rank, a.top_k);
  int from;       // lane i: row of entry i of those at hand
  unsigned ends;  // bit i: it is the last of its part
  const auto take = [&](int first) {
    bool last;
    from = list.row(first + lane, last);
    ends = __ballot_sync(kAll, last);
  };
  if (list.length > 0) take(0);
  const int begin = piece * a.steps * kStep, end = min(a.width, begin + a.steps * kStep);
#pragma unroll 1
  for (int first = begin + lane * N; first - lane * N < end; first += kStep) {
    T* to = a.y + t * a.width + first;
    int column[U];  // lanes behind the end load what is there for sure, and store nothing
#pragma unroll
    for (int u = 0; u < U; ++u) column[u] = first + u * 32 * N < end ? first + u * 32 * N : 0;
    V old[U];
#pragma unroll
    for (int u = 0; u < U; ++u)
      if (a.add) old[u] = V::load(a.y + t * a.width + column[u]);
    Carry total[N] = {};
    float part[N] = {};
    V held[K][U];
    const auto fetch = [&](int entry) {
#pragma unroll
      for (int s = 0; s < K; ++s) {
        const T* its = a.rows + static_cast<int64_t>(__shfl_sync(kAll, from, (entry + s) % 32)) * a.width;
#pragma unroll
        for (int u = 0; u < U; ++u) held[s][u] = load_streaming<V>(its + column[u]);
      }
    };
    const auto add_up = [&](int entry, int u) {
#pragma unroll
      for (int s = 0; s < K; ++s) {
        if (entry + s >= list.length) break;
        float x[N];
        held[s][u].get(x);
#pragma unroll
        for (int j = 0; j < N; ++j) part[j] += x[j];
        if ((ends >> (entry + s) % 32 & 1) == 0) continue;
#pragma unroll
        for (int j = 0; j < N; ++j) {
          total[j] += static_cast<Carry>(to_float(from_float<T>(part[j])));
          part[j] = 0;
        }
      }
    };
    const auto leave = [&](int u) {
      if (first + u * 32 * N >= end) return;
      float sum[N], before[N];
#pragma unroll
      for (int j = 0; j < N; ++j) {
        sum[j] = static_cast<float>(total[j]);
        total[j] = 0;
      }
      if (a.add) {
        old[u].get(before);
#pragma unroll
        for (int j = 0; j < N; ++j) sum[j] += before[j];
      }
      V out;
      out.set(sum);
      out.store(to + u * 32 * N);
    };
    if constexpr (U == 1) {
      for (int entry = 0; entry < list.length; entry += K) {
        if (list.length > 32 && entry % 32 == 0) take(entry);
        fetch(entry);
        add_up(entry, 0);
      }
      leave(0);
    } else {
      if (list.length > 0) fetch(0);
#pragma unroll
      for (int u = 0; u < U; ++u) {
        add_up(0, u);
        leave(u);
      }
    }
  }
  if (!a.dprobs || piece != 0 || lane >= a.top_k) return;
  double sum = chance;
  if (row >= 0)
    for (int copy = 1; copy < a.returned.copies; ++copy)
      sum += static_cast<double>(a.drow_probs[place + copy * a.returned.count(rank)]);
  a.dprobs[t * a.top_k + lane] = static_cast<float>(sum);
}

template <class T, int N, int K, int U>
CudaLaunch launch(const Arg& rows, RankSum<T> a, device::cuda::Lane& lane) {
  const int64_t row_steps = std::max<int64_t>(1, ceil_div(a.width, 32 * N * U));
  // Long enough that a token's list is made rarely, short enough that every multiprocessor gets many.
  const int64_t steps = std::clamp<int64_t>(a.num_tokens * row_steps / (num_sms() * 64), 1, 4),
                pieces = ceil_div(row_steps, steps);
  if (a.num_tokens * pieces > std::numeric_limits<int32_t>::max())
    refuse(rows, "{} tokens of {} are too many for one launch", a.num_tokens, a.width);
  a.pieces = static_cast<int>(pieces), a.steps = static_cast<int>(steps);
  const auto blocks = static_cast<unsigned>(ceil_div(a.num_tokens * pieces, kWarps));
  return [=, stream = lane.stream()] {
    if (blocks == 0) return;
    sum_ranks<T, N, K, U><<<blocks, kThreads, 0, stream>>>(a);
    PLEAT_CUDA_LAUNCHED();
  };
}

template <int N, class T>
CudaLaunch pick(const Arg& rows, const RankSum<T>& a, device::cuda::Lane& lane) {
  const int64_t most = static_cast<int64_t>(a.top_k) * a.returned.copies;
  if (most <= 2) return launch<T, N, 2, 4>(rows, a, lane);
  if (most <= 4) return launch<T, N, 4, 2>(rows, a, lane);
  return launch<T, N, 8, 1>(rows, a, lane);
}

CudaLaunch prepare(const Invocation& call, const Arg& rows, const Arg& token_row, const Arg& offsets,
                   const Arg& y, const Arg& drow_probs, const Arg& dprobs, device::cuda::Lane& lane) {
  if (token_row.dim(1) > kMaxSlots)
    refuse(token_row, "{} choices per token, needed at most {} on the GPU", token_row.dim(1), kMaxSlots);
  const int64_t El = call.integer("experts_per_rank"), copies = call.integer("copies");
  const Returned returned{offsets.as<int32_t>(), static_cast<int>(El),
                          static_cast<int>((offsets.dim(0) - 1) / El), static_cast<int>(copies)};
  CudaLaunch out;
  with_float(rows.dtype, [&](auto zero) {
    using T = decltype(zero);
    const RankSum<T> a{returned,
                       rows.as<T>(),
                       token_row.as<int32_t>(),
                       y.as<T>(),
                       drow_probs.as<float>(),
                       dprobs.as<float>(),
                       static_cast<int>(y.dim(0)),
                       static_cast<int>(y.dim(1)),
                       static_cast<int>(token_row.dim(1)),
                       0,
                       0,
                       y.into() == Into::Accumulate};
    const bool wide = y.dim(1) % kWide<T> == 0 && all_aligned({rows.data, y.data});
    out = wide ? pick<kWide<T>>(rows, a, lane) : pick<1>(rows, a, lane);
  });
  return out;
}

const Arg kAbsent{};

CudaLaunch prepare_combine_ranks(const Invocation& call, device::cuda::Lane& lane) {
  const signature::combine_ranks::Forward<Arg> args(call.args);
  return prepare(call, args.rows, args.token_row, args.offsets, args.y, kAbsent, kAbsent, lane);
}

CudaLaunch prepare_permute_ranks(const Invocation& call, device::cuda::Lane& lane) {
  const signature::permute_ranks::BackwardInput<Arg> args(call.args);
  if (args.drow_probs.dtype != tensor::Dtype::F32) return {};
  return prepare(call, args.drows, args.token_row, args.offsets, args.dx, args.drow_probs, args.dprobs, lane);
}

constexpr CudaBinding kTable[] = {
    row<signature::combine_ranks::Forward>(prepare_combine_ranks),
    row<signature::permute_ranks::BackwardInput>(prepare_permute_ranks),
};

}  // namespace

std::span<const CudaBinding> combine_ranks_cuda_bindings() { return kTable; }

}  // namespace pleat::kernels
