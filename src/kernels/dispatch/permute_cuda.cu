// Rows to experts and back on the GPU. A warp takes a run of columns of one token: it reads them once and
// writes them to the token's rows (scatter), or reads them from the token's rows and writes the sum
// (sum_slots). So a token's row crosses the memory bus once, whatever the number of slots.
#include "device/cuda/check.h"
#include "kernels/contract.h"
#include "kernels/cuda/bind.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/team.cuh"

namespace pleat::kernels {
namespace {

using namespace cuda;

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kScatterVecs = 4;  // vectors a lane loads before it stores the first

template <class T>
struct Scatter {
  const T* from;
  const float* probs;  // null: no row_probs
  const int32_t *token_row, *row_token, *num_rows;
  T* to;
  float* row_probs;
  int num_tokens, width, pieces, top_k;
  unsigned filler_blocks;
};

// Rows of the plan that belong to no token become zero; a warp looks at 32 of them.
template <class T, int N>
__device__ void zero_fillers(const Scatter<T>& a) {
  const int lane = threadIdx.x % 32;
  const int64_t first = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x - lane, r = first + lane;
  const bool filler = r < *a.num_rows && a.row_token[r] < 0;
  if (filler && a.row_probs) a.row_probs[r] = 0;
  for (unsigned left = __ballot_sync(0xffffffffu, filler); left != 0; left &= left - 1) {
    T* row = a.to + (first + __ffs(static_cast<int>(left)) - 1) * a.width;
    for (int column = lane * N; column < a.width; column += 32 * N)
      store_streaming(Pack<T, N>::zero(), row + column);
  }
}

// to[token_row[t, slot]] = from[t], row_probs[token_row[t, slot]] = probs[t, slot] for all slots that have a
// row; the first filler_blocks blocks see to the fillers.
template <class T, int N>
__global__ void __launch_bounds__(kThreads) scatter(Scatter<T> a) {
  if (blockIdx.x < a.filler_blocks) return zero_fillers<T, N>(a);
  const unsigned unit = (blockIdx.x - a.filler_blocks) * kWarps + threadIdx.x / 32;
  const int64_t t = unit / a.pieces;
  if (t >= a.num_tokens) return;
  const int lane = threadIdx.x % 32, piece = static_cast<int>(unit - static_cast<unsigned>(t) * a.pieces);
  const int first = (piece * kScatterVecs * 32 + lane) * N;
  Pack<T, N> held[kScatterVecs];
#pragma unroll
  for (int i = 0; i < kScatterVecs; ++i) {
    const int column = first + i * 32 * N;
    if (column < a.width) held[i] = Pack<T, N>::load(a.from + t * a.width + column);
  }
  for (int begin = 0; begin < a.top_k; begin += 32) {
    const int64_t choice = t * a.top_k + begin + lane;
    const int32_t mine = begin + lane < a.top_k ? a.token_row[choice] : -1;
    if (a.row_probs && piece == 0 && mine >= 0) a.row_probs[mine] = a.probs[choice];
    const int slots = min(32, a.top_k - begin);
    for (int s = 0; s < slots; ++s) {
      const int64_t row = __shfl_sync(0xffffffffu, mine, s);
      if (row < 0) continue;
#pragma unroll
      for (int i = 0; i < kScatterVecs; ++i) {
        const int column = first + i * 32 * N;
        if (column < a.width) store_streaming(held[i], a.to + row * a.width + column);
      }
    }
  }
}

template <class T>
struct Sum {
  const T* rows;
  const int32_t* token_row;
  const T *shared, *residual;  // may be null
  T* y;
  const float* drow_probs;
  float* dprobs;  // null: no gradient of probabilities
  int num_tokens, width, top_k;
  int pieces, steps;  // of a token's columns; steps of U * 32 vectors a piece
  bool add;
};

// y[t] = [y[t] +] sum over slots, ascending, of rows[token_row[t, slot]] [+ shared[t]] [+ residual[t]].
// A step loads U vectors of each of K slots at a time; K is at least the number of slots, or 8.
template <class T, int N, int K, int U>
__global__ void __launch_bounds__(kThreads, 2) sum_slots(Sum<T> a) {
  using V = Pack<T, N>;
  constexpr int kStep = U * 32 * N;
  const unsigned unit = blockIdx.x * kWarps + threadIdx.x / 32;
  const int64_t t = unit / a.pieces;
  if (t >= a.num_tokens) return;
  const int lane = threadIdx.x % 32, piece = static_cast<int>(unit - static_cast<unsigned>(t) * a.pieces);
  const int32_t* row_of = a.token_row + t * a.top_k;
  const int64_t at = t * a.width;
  const int groups = K < 8 ? 1 : static_cast<int>((a.top_k + K - 1) / K);
  int row[K];
  const auto take_slots = [&](int slot) {
#pragma unroll
    for (int s = 0; s < K; ++s) row[s] = slot + s < a.top_k ? row_of[slot + s] : -1;
  };
  take_slots(0);
  const int begin = piece * a.steps * kStep, end = min(a.width, begin + a.steps * kStep);
#pragma unroll 1
  for (int first = begin + lane * N; first - lane * N < end; first += kStep) {
    // Asked for before the rows, so that all loads of a step are in flight together.
    V more[U], last[U];
#pragma unroll
    for (int u = 0; u < U; ++u) {
      const int column = first + u * 32 * N;
      more[u] = a.shared && column < end ? V::load(a.shared + at + column) : V::zero();
      const T* other = a.add ? a.y : a.residual;
      last[u] = other && column < end ? V::load(other + at + column) : V::zero();
    }
    float sum[U][N] = {};
    for (int group = 0; group < groups; ++group) {
      if (groups > 1) take_slots(group * K);
      V held[K][U];
#pragma unroll
      for (int s = 0; s < K; ++s) {
        const T* from = a.rows + static_cast<int64_t>(row[s]) * a.width;
#pragma unroll
        for (int u = 0; u < U; ++u) {
          const int column = first + u * 32 * N;
          held[s][u] = row[s] >= 0 && column < end ? load_streaming<V>(from + column) : V::zero();
        }
      }
#pragma unroll
      for (int u = 0; u < U; ++u) {
#pragma unroll
        for (int s = 0; s < K; ++s) {
          float x[N];
          held[s][u].get(x);
#pragma unroll
          for (int j = 0; j < N; ++j) sum[u][j] += x[j];
        }
      }
    }
#pragma unroll
    for (int u = 0; u < U; ++u) {
      const int column = first + u * 32 * N;
      if (column >= end) continue;
      float x[N];
      if (a.shared) {
        more[u].get(x);
#pragma unroll
        for (int j = 0; j < N; ++j) sum[u][j] += x[j];
      }
      if (a.residual || a.add) {
        last[u].get(x);
#pragma unroll
        for (int j = 0; j < N; ++j) sum[u][j] += x[j];
      }
      V out;
      out.set(sum[u]);
      out.store(a.y + at + column);
    }
  }
  if (a.dprobs && piece == 0)
    for (int s = lane; s < a.top_k; s += 32)
      a.dprobs[t * a.top_k + s] = row_of[s] < 0 ? 0.0f : a.drow_probs[row_of[s]];
}

// Warps, one per piece of a token: the grid must hold them.
unsigned grid_of(const Arg& of, int64_t tokens, int64_t pieces) {
  if (tokens * pieces > std::numeric_limits<int32_t>::max())
    refuse(of, "{} tokens in {} pieces each are too many for one launch", tokens, pieces);
  return static_cast<unsigned>(ceil_div(tokens * pieces, kWarps));
}

struct ScatterArgs {
  const Arg &from, &probs, &offsets, &row_token, &token_row, &to, &row_probs;
};

template <class T, int N>
CudaLaunch launch_scatter(const ScatterArgs& args, device::cuda::Lane& lane) {
  const int64_t tokens = args.from.dim(0), width = args.from.dim(1), rows = args.to.dim(0);
  const int64_t pieces = std::max<int64_t>(1, ceil_div(width, 32 * N * kScatterVecs));
  const Scatter<T> a{args.from.as<T>(),
                     args.probs.as<float>(),
                     args.token_row.as<int32_t>(),
                     args.row_token.as<int32_t>(),
                     args.offsets.as<int32_t>() + args.offsets.dim(0) - 1,
                     args.to.as<T>(),
                     args.row_probs.as<float>(),
                     static_cast<int>(tokens),
                     static_cast<int>(width),
                     static_cast<int>(pieces),
                     static_cast<int>(args.token_row.dim(1)),
                     static_cast<unsigned>(ceil_div(rows, kThreads))};
  const unsigned blocks = a.filler_blocks + grid_of(args.from, tokens, pieces);
  return [=, stream = lane.stream()] {
    if (blocks == 0) return;
    scatter<T, N><<<blocks, kThreads, 0, stream>>>(a);
    PLEAT_CUDA_LAUNCHED();
  };
}

struct SumArgs {
  const Arg &rows, &token_row, &shared, &residual, &y, &drow_probs, &dprobs;
};

template <class T, int N, int K, int U>
CudaLaunch launch_sum(const SumArgs& args, device::cuda::Lane& lane) {
  const int64_t tokens = args.y.dim(0), width = args.y.dim(1),
                row_steps = std::max<int64_t>(1, ceil_div(width, 32 * N * U));
  // Long enough that a token's slots are looked up rarely, short enough that every multiprocessor gets many.
  const int64_t steps = std::clamp<int64_t>(tokens * row_steps / (num_sms() * 64), 1, 4),
                pieces = ceil_div(row_steps, steps);
  const Sum<T> a{args.rows.as<T>(),
                 args.token_row.as<int32_t>(),
                 args.shared.as<T>(),
                 args.residual.as<T>(),
                 args.y.as<T>(),
                 args.drow_probs.as<float>(),
                 args.dprobs.as<float>(),
                 static_cast<int>(tokens),
                 static_cast<int>(width),
                 static_cast<int>(args.token_row.dim(1)),
                 static_cast<int>(pieces),
                 static_cast<int>(steps),
                 args.y.into() == Into::Accumulate};
  const unsigned blocks = grid_of(args.rows, tokens, pieces);
  return [=, stream = lane.stream()] {
    if (blocks == 0) return;
    sum_slots<T, N, K, U><<<blocks, kThreads, 0, stream>>>(a);
    PLEAT_CUDA_LAUNCHED();
  };
}

template <class T, int N>
CudaLaunch pick_sum(const SumArgs& args, device::cuda::Lane& lane) {
  const int64_t k = args.token_row.dim(1);
  if (k <= 2) return launch_sum<T, N, 2, 4>(args, lane);
  if (k <= 4) return launch_sum<T, N, 4, 2>(args, lane);
  return launch_sum<T, N, 8, 1>(args, lane);
}

CudaLaunch prepare_sum(const SumArgs& args, device::cuda::Lane& lane) {
  CudaLaunch out;
  with_float(args.rows.dtype, [&](auto zero) {
    using T = decltype(zero);
    const bool wide = args.y.dim(1) % kWide<T> == 0 &&
                      all_aligned({args.rows.data, args.shared.data, args.residual.data, args.y.data});
    out = wide ? pick_sum<T, kWide<T>>(args, lane) : pick_sum<T, 1>(args, lane);
  });
  return out;
}

CudaLaunch prepare_scatter(const ScatterArgs& args, device::cuda::Lane& lane) {
  CudaLaunch out;
  with_float(args.from.dtype, [&](auto zero) {
    using T = decltype(zero);
    const bool wide = args.from.dim(1) % kWide<T> == 0 && all_aligned({args.from.data, args.to.data});
    out = wide ? launch_scatter<T, kWide<T>>(args, lane) : launch_scatter<T, 1>(args, lane);
  });
  return out;
}

const Arg kAbsent{};

CudaLaunch prepare_permute_forward(const Invocation& call, device::cuda::Lane& lane) {
  const signature::permute::Forward<Arg> args(call.args);
  if (args.probs.dtype != tensor::Dtype::F32) return {};
  return prepare_scatter(
      {args.x, args.probs, args.offsets, args.row_token, args.token_row, args.rows, args.row_probs}, lane);
}

CudaLaunch prepare_permute_backward_input(const Invocation& call, device::cuda::Lane& lane) {
  const signature::permute::BackwardInput<Arg> args(call.args);
  if (args.drow_probs.dtype != tensor::Dtype::F32) return {};
  return prepare_sum({args.drows, args.token_row, kAbsent, kAbsent, args.dx, args.drow_probs, args.dprobs},
                     lane);
}

CudaLaunch prepare_combine_forward(const Invocation& call, device::cuda::Lane& lane) {
  const signature::combine::Forward<Arg> args(call.args);
  return prepare_sum({args.rows, args.token_row, args.shared, args.residual, args.y, kAbsent, kAbsent}, lane);
}

CudaLaunch prepare_combine_backward_input(const Invocation& call, device::cuda::Lane& lane) {
  const signature::combine::BackwardInput<Arg> args(call.args);
  return prepare_scatter(
      {args.dy, kAbsent, args.offsets, args.row_token, args.token_row, args.drows, kAbsent}, lane);
}

constexpr CudaBinding kTable[] = {
    row<signature::permute::Forward>(prepare_permute_forward),
    row<signature::permute::BackwardInput>(prepare_permute_backward_input),
    row<signature::combine::Forward>(prepare_combine_forward),
    row<signature::combine::BackwardInput>(prepare_combine_backward_input),
};

}  // namespace

std::span<const CudaBinding> permute_cuda_bindings() { return kTable; }

}  // namespace pleat::kernels
