// Sums of rows that came back from several ranks, on the GPU. A warp takes one piece of one token; lane s
// knows the row and the rank of slot s. Sums over the slots of a rank in float, over ranks in double.
#include "device/cuda/check.h"
#include "kernels/cuda/types.cuh"
#include "kernels/dispatch/dispatch_cuda.h"
#include "kernels/dispatch/dispatch_rows.h"
#include "kernels/math/require.h"

namespace pleat::kernels {
namespace {

using namespace cuda;
using namespace dispatch;

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int64_t kMaxSlots = 32;
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
  __device__ int64_t place_of(int row, int expert_rank) const {
    return row + static_cast<int64_t>(copies - 1) * begin(expert_rank);
  }
};

template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    sum_ranks(Returned returned, const T* rows, const int32_t* token_row, int num_tokens, int width,
              int pieces, int top_k, bool add, T* y, const float* drow_probs, float* dprobs) {
  const unsigned unit = blockIdx.x * kWarps + threadIdx.x / 32;
  const unsigned t = unit / pieces;
  if (t >= num_tokens) return;
  const int lane = threadIdx.x % 32, piece = unit - t * pieces;
  const int column = (piece * 32 + lane) * N;
  const int row = lane < top_k ? token_row[static_cast<int64_t>(t) * top_k + lane] : -1;
  const int rank = row < 0 ? kNoRank : returned.rank_of(row);
  const int64_t place = row < 0 ? 0 : returned.place_of(row, rank);
  double total[N] = {};
  for (int previous = -1;;) {
    const int lowest = __reduce_min_sync(kAll, rank > previous ? rank : kNoRank);
    if (lowest == kNoRank) break;
    const unsigned slots = __ballot_sync(kAll, rank == lowest);
    for (int copy = 0; copy < returned.copies; ++copy) {
      const int64_t further = static_cast<int64_t>(copy) * returned.count(lowest);
      float part[N] = {};
      for (unsigned left = slots; left; left &= left - 1) {
        const int64_t at = __shfl_sync(kAll, place, __ffs(static_cast<int>(left)) - 1) + further;
        if (column >= width) continue;
        const auto v = Vec<T, N>::load(rows + at * width + column);
#pragma unroll
        for (int j = 0; j < N; ++j) part[j] += to_float(v.at[j]);
      }
#pragma unroll
      for (int j = 0; j < N; ++j) total[j] += static_cast<double>(part[j]);
    }
    previous = lowest;
  }
  if (column < width) {
    T* to = y + static_cast<int64_t>(t) * width + column;
    Vec<T, N> out;
    if (add) out = Vec<T, N>::load(to);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float sum = static_cast<float>(total[j]);
      out.at[j] = from_float<T>(add ? to_float(out.at[j]) + sum : sum);
    }
    out.store(to);
  }
  if (!dprobs || piece != 0 || lane >= top_k) return;
  double sum = 0;
  if (row >= 0)
    for (int copy = 0; copy < returned.copies; ++copy)
      sum += static_cast<double>(drow_probs[place + static_cast<int64_t>(copy) * returned.count(rank)]);
  dprobs[static_cast<int64_t>(t) * top_k + lane] = static_cast<float>(sum);
}

template <class T, int N>
CudaLaunch launch(std::string_view kernel, const Invocation& call, const Arg& rows, const Arg& token_row,
                  const Arg& offsets, const Arg& y, const Arg& drow_probs, const Arg& dprobs,
                  device::cuda::Lane& lane) {
  const int64_t El = call.integer("experts_per_rank"), width = y.dim(1), tokens = y.dim(0);
  const Returned returned{offsets.as<int32_t>(), static_cast<int>(El),
                          static_cast<int>((offsets.dim(0) - 1) / El),
                          static_cast<int>(call.integer("copies"))};
  const int64_t pieces = std::max<int64_t>(1, ceil_div(width, 32 * N));
  if (tokens * pieces > std::numeric_limits<int32_t>::max())
    base::fail("[{}] {} tokens of {} are too many for one launch", kernel, tokens, width);
  const T* from = rows.as<T>();
  const int32_t* row_of = token_row.as<int32_t>();
  T* to = y.as<T>();
  const float* chances = drow_probs.as<float>();
  float* token_chances = dprobs.as<float>();
  const int top_k = static_cast<int>(token_row.dim(1));
  const bool add = y.into() == Into::Accumulate;
  return [=, stream = lane.stream()] {
    if (tokens == 0) return;
    sum_ranks<T, N><<<static_cast<unsigned>(ceil_div(tokens * pieces, kWarps)), kThreads, 0, stream>>>(
        returned, from, row_of, static_cast<int>(tokens), static_cast<int>(width), static_cast<int>(pieces),
        top_k, add, to, chances, token_chances);
    PLEAT_CUDA_LAUNCHED();
  };
}

CudaLaunch prepare(std::string_view kernel, const Invocation& call, const Arg& rows, const Arg& token_row,
                   const Arg& offsets, const Arg& y, const Arg& drow_probs, const Arg& dprobs,
                   device::cuda::Lane& lane) {
  check_rank(kernel, "rows", rows, 2);
  check_rank(kernel, "token_row", token_row, 2);
  require_dtype(kernel, "token_row", token_row, tensor::Dtype::I32);
  check_offsets(kernel, offsets);
  const int64_t El = call.integer("experts_per_rank"), copies = call.integer("copies");
  if (copies < 1) base::fail("[{}] copies is {}, needed 1 or more", kernel, copies);
  if (El < 1 || (offsets.dim(0) - 1) % El != 0)
    base::fail("[{}] {} experts with {} per rank: needed a multiple", kernel, offsets.dim(0) - 1, El);
  if (token_row.dim(1) > kMaxSlots)
    base::fail("[{}] {} choices per token, needed at most {} on the GPU", kernel, token_row.dim(1),
               kMaxSlots);
  check_index_range(kernel, token_row.size(), rows.dim(0));
  require_dtype(kernel, "y", y, rows.dtype);
  require_shape(kernel, "y", y, {token_row.dim(0), rows.dim(1)});
  CudaLaunch out;
  with_float(rows.dtype, [&](auto zero) {
    using T = decltype(zero);
    out = rows.dim(1) % kWide<T> == 0
              ? launch<T, kWide<T>>(kernel, call, rows, token_row, offsets, y, drow_probs, dprobs, lane)
              : launch<T, 1>(kernel, call, rows, token_row, offsets, y, drow_probs, dprobs, lane);
  });
  return out;
}

const Arg kAbsent{};

}  // namespace

CudaLaunch prepare_combine_ranks(const Invocation& call, device::cuda::Lane& lane) {
  if (call[3].into() != Into::Overwrite) base::fail("[combine_ranks] output 'y' can only be overwritten");
  return prepare("combine_ranks", call, call[0], call[1], call[2], call[3], kAbsent, kAbsent, lane);
}

CudaLaunch prepare_permute_ranks(const Invocation& call, device::cuda::Lane& lane) {
  constexpr std::string_view kName = "permute_ranks";
  require_shape(kName, "drow_probs", call[1], {call[0].dim(0)});
  require_dtype(kName, "drow_probs", call[1], tensor::Dtype::F32);
  require_dtype(kName, "dprobs", call[5], tensor::Dtype::F32);
  require_shape(kName, "dprobs", call[5], {call[2].dim(0), call[2].dim(1)});
  return prepare(kName, call, call[0], call[2], call[3], call[4], call[1], call[5], lane);
}

}  // namespace pleat::kernels
