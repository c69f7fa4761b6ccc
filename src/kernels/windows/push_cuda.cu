// Stores into other ranks' windows. A warp takes a run of columns of one token: it reads them once and stores them at
// every rank the token goes to; or it reads them from the token's rows and stores their sum where the token came from.
#include "device/cuda/check.h"
#include "kernels/cuda/bind.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/windows/peers.cuh"

namespace pleat::kernels {
namespace {

using namespace cuda;

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kVecs = 4;  // vectors a lane holds
constexpr unsigned kAll = 0xffffffffu;

template <class T>
struct PushRows {
  Peers peers;
  GroupTokens tokens;
  const T* x;
  const int32_t* token_slot;
  T* rows;
  int num_tokens, width, pieces;
  int64_t most_rows;
  // Of the forward alone; null otherwise.
  const int32_t *idx = nullptr, *token_row = nullptr, *offsets = nullptr, *row_base = nullptr,
                *row_token = nullptr;
  const float* probs = nullptr;
  int32_t *source_row = nullptr, *token_rows = nullptr;
  float* row_probs = nullptr;
  int top_k = 0, experts_per_rank = 0, listed = 0, num_experts = 0;
  int64_t most_expert_rows = 0;
};

// What the ranks are told of token t beside its row. Lane s is slot s.
template <class T>
__device__ void tell(const PushRows<T>& a, const int* first_there, int t) {
  const int lane = threadIdx.x % 32;
  const int64_t choice = static_cast<int64_t>(t) * a.top_k + lane;
  const int row = lane < a.top_k ? a.token_row[choice] : -1;
  const int expert = row >= 0 ? a.idx[choice] : 0;
  const int p = row >= 0 ? expert / a.experts_per_rank : -1;
  const unsigned same = __match_any_sync(kAll, p);
  if (row < 0) return;
  const int there = a.row_base[expert] + row - a.offsets[expert];
  const int token = first_there[p] + a.token_slot[static_cast<int64_t>(t) * a.tokens.expert_ranks + p];
  PLEAT_HALT_UNLESS(there >= 0 && there < a.most_expert_rows && token < a.most_rows,
                    "[push_rows] a row lies outside the window");
  const int before = __popc(same & ((1u << lane) - 1)), all = __popc(same);
  for (int c = 0; c < a.tokens.copies; ++c) {
    const int rank = p * a.tokens.copies + c;
    a.peers.there(a.source_row, rank)[there] = token;
    a.peers.there(a.row_probs, rank)[there] = a.probs[choice];
    int32_t* list = a.peers.there(a.token_rows, rank) + static_cast<int64_t>(token) * a.listed;
    list[before] = there;
    if (before == all - 1)
      for (int j = all; j < a.listed; ++j) list[j] = -1;
  }
}

// Rows of the plan that belong to no token, a thread each.
template <class T>
__device__ void tell_fillers(const PushRows<T>& a) {
  const int rows = a.offsets[a.num_experts];
  for (int r = static_cast<int>(blockIdx.x * kThreads + threadIdx.x); r < rows;
       r += static_cast<int>(gridDim.x) * kThreads) {
    if (a.row_token[r] >= 0) continue;
    int low = 0, high = a.num_experts - 1;  // the last expert that begins at or before the row
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (a.offsets[middle] <= r)
        low = middle;
      else
        high = middle - 1;
    }
    const int there = a.row_base[low] + r - a.offsets[low], p = low / a.experts_per_rank;
    for (int c = 0; c < a.tokens.copies; ++c) {
      a.peers.there(a.source_row, p * a.tokens.copies + c)[there] = -1;
      a.peers.there(a.row_probs, p * a.tokens.copies + c)[there] = 0;
    }
  }
}

template <class T, int N>
__global__ void __launch_bounds__(kThreads) push_rows(const __grid_constant__ PushRows<T> a) {
  __shared__ int first_there[windows::kMaxRanks];
  const int me = a.tokens.me(), lane = threadIdx.x % 32;
  for (int p = threadIdx.x; p < a.tokens.expert_ranks; p += kThreads) {
    int first = 0;
    for (int s = 0; s < me; ++s) first += a.tokens.count(s, p);
    first_there[p] = first;
  }
  __syncthreads();
  if (a.source_row) tell_fillers(a);
  const int64_t units = static_cast<int64_t>(a.num_tokens) * a.pieces,
                stride = static_cast<int64_t>(gridDim.x) * kWarps;
  for (int64_t unit = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32; unit < units;
       unit += stride) {
    const int t = static_cast<int>(unit / a.pieces),
              piece = static_cast<int>(unit - static_cast<int64_t>(t) * a.pieces);
    const int begin = (piece * kVecs * 32 + lane) * N;
    Pack<T, N> held[kVecs];
#pragma unroll
    for (int i = 0; i < kVecs; ++i) {
      const int column = begin + i * 32 * N;
      if (column < a.width)
        held[i] = load_streaming<Pack<T, N>>(a.x + static_cast<int64_t>(t) * a.width + column);
    }
    if (a.source_row && piece == 0) tell(a, first_there, t);
    for (int from = 0; from < a.tokens.expert_ranks; from += 32) {
      const int p = from + lane;
      const int mine =
          p < a.tokens.expert_ranks ? a.token_slot[static_cast<int64_t>(t) * a.tokens.expert_ranks + p] : -1;
      for (unsigned left = __ballot_sync(kAll, mine >= 0); left != 0; left &= left - 1) {
        const int at = __ffs(static_cast<int>(left)) - 1, to = from + at;
        const int64_t row = first_there[to] + __shfl_sync(kAll, mine, at);
        PLEAT_HALT_UNLESS(row < a.most_rows, "[push_rows] a token lies outside the window");
        for (int c = 0; c < a.tokens.copies; ++c) {
          T* out = a.peers.there(a.rows, to * a.tokens.copies + c) + row * a.width;
#pragma unroll
          for (int i = 0; i < kVecs; ++i) {
            const int column = begin + i * 32 * N;
            if (column < a.width) held[i].store(out + column);
          }
        }
      }
    }
  }
  __threadfence_system();
}

template <class T>
struct PushSums {
  Peers peers;
  GroupTokens tokens;
  const T* rows;
  const int32_t* token_rows;
  T* sums;
  const float* row_probs;  // null: forward
  float* prob_sums;
  int width, pieces, listed, num_rows;
  int64_t most_rows;
};

template <class T, int N>
__global__ void __launch_bounds__(kThreads) push_sums(const __grid_constant__ PushSums<T> a) {
  __shared__ int begins[windows::kMaxRanks + 1];  // of each source's tokens among those that came
  const int me = a.tokens.me(), own = me / a.tokens.copies, copy = me % a.tokens.copies,
            lane = threadIdx.x % 32;
  for (int s = threadIdx.x; s <= a.tokens.ranks; s += kThreads) {
    int begin = 0;
    for (int i = 0; i < s; ++i) begin += a.tokens.count(i, own);
    begins[s] = begin;
  }
  __syncthreads();
  const int64_t units = static_cast<int64_t>(begins[a.tokens.ranks]) * a.pieces,
                stride = static_cast<int64_t>(gridDim.x) * kWarps;
  for (int64_t unit = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32; unit < units;
       unit += stride) {
    const int q = static_cast<int>(unit / a.pieces),
              piece = static_cast<int>(unit - static_cast<int64_t>(q) * a.pieces);
    int low = 0, high = a.tokens.ranks - 1;  // the last source that begins at or before the token
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (begins[middle] <= q)
        low = middle;
      else
        high = middle - 1;
    }
    const int64_t to = static_cast<int64_t>(a.tokens.copies) * a.tokens.first(low, own) +
                       static_cast<int64_t>(copy) * a.tokens.count(low, own) + (q - begins[low]);
    PLEAT_HALT_UNLESS(to < a.most_rows, "[push_sums] a sum lies outside the window");
    const int32_t* list = a.token_rows + static_cast<int64_t>(q) * a.listed;
    T* out = a.peers.there(a.sums, low) + to * a.width;
    const int begin = (piece * kVecs * 32 + lane) * N;
    float sum[kVecs][N] = {};
    for (int j = 0; j < a.listed; ++j) {
      const int row = list[j];
      if (row < 0 || row >= a.num_rows)
        break;  // the latter where ranks did not meet: what was sent is not there
#pragma unroll
      for (int i = 0; i < kVecs; ++i) {
        const int column = begin + i * 32 * N;
        if (column >= a.width) continue;
        float x[N];
        load_streaming<Pack<T, N>>(a.rows + static_cast<int64_t>(row) * a.width + column).get(x);
#pragma unroll
        for (int e = 0; e < N; ++e) sum[i][e] += x[e];
      }
    }
#pragma unroll
    for (int i = 0; i < kVecs; ++i) {
      const int column = begin + i * 32 * N;
      if (column >= a.width) continue;
      Pack<T, N> pack;
      pack.set(sum[i]);
      pack.store(out + column);
    }
    if (a.row_probs && piece == 0)
      for (int j = lane; j < a.listed; j += 32)
        a.peers.there(a.prob_sums, low)[to * a.listed + j] =
            list[j] < 0 || list[j] >= a.num_rows ? 0.0f : a.row_probs[list[j]];
  }
  __threadfence_system();
}

// In 16 bytes at a time where rows allow it.
template <class T, class F>
CudaLaunch with_width(int64_t width, std::initializer_list<const void*> addresses, F&& f) {
  return width % kWide<T> == 0 && all_aligned(addresses) ? f(std::integral_constant<int, kWide<T>>{})
                                                         : f(std::integral_constant<int, 1>{});
}

template <class T>
CudaLaunch launch_rows(PushRows<T> a, int64_t sms, device::cuda::Lane& lane) {
  return with_width<T>(a.width, {a.x, a.rows}, [&](auto n) -> CudaLaunch {
    a.pieces = static_cast<int>(ceil_div(a.width, kVecs * 32 * n));
    const unsigned blocks = blocks_on(push_rows<T, n>, kThreads, sms,
                                      ceil_div(static_cast<int64_t>(a.num_tokens) * a.pieces, kWarps));
    return [=, stream = lane.stream()] {
      push_rows<T, decltype(n)::value><<<blocks, kThreads, 0, stream>>>(a);
      PLEAT_CUDA_LAUNCHED();
    };
  });
}

CudaLaunch prepare_push_rows(const Invocation& call, device::cuda::Lane& lane) {
  const signature::push_rows::Forward<Arg> args(call.args);
  if (args.probs.dtype != tensor::Dtype::F32) return {};
  if (args.idx.dim(1) > program::kMaxGpuChoices)
    refuse(args.idx, "{} choices per token, needed at most {} on the GPU", args.idx.dim(1),
           program::kMaxGpuChoices);
  CudaLaunch out;
  with_float(args.x.dtype, [&](auto zero) {
    using T = decltype(zero);
    PushRows<T> a{peers_of(call, args.x),
                  group_tokens(call, args.all_tokens, args.coords),
                  args.x.as<T>(),
                  args.token_slot.as<int32_t>(),
                  args.rows.as<T>(),
                  static_cast<int>(args.x.dim(0)),
                  static_cast<int>(args.x.dim(1)),
                  0,
                  args.rows.dim(0)};
    a.idx = args.idx.as<int32_t>(), a.token_row = args.token_row.as<int32_t>();
    a.offsets = args.offsets.as<int32_t>(), a.row_base = args.row_base.as<int32_t>();
    a.row_token = args.row_token.as<int32_t>(), a.probs = args.probs.as<float>();
    a.source_row = args.source_row.as<int32_t>(), a.token_rows = args.token_rows.as<int32_t>();
    a.row_probs = args.row_probs.as<float>();
    a.top_k = static_cast<int>(args.idx.dim(1));
    a.num_experts = static_cast<int>(args.offsets.dim(0) - 1);
    a.experts_per_rank = a.num_experts / a.tokens.expert_ranks;
    a.listed = static_cast<int>(args.token_rows.dim(1));
    a.most_expert_rows = args.row_probs.dim(0);
    out = launch_rows(a, call.integer("sms"), lane);
  });
  return out;
}

CudaLaunch prepare_push_gradients(const Invocation& call, device::cuda::Lane& lane) {
  const signature::push_rows::BackwardInput<Arg> args(call.args);
  CudaLaunch out;
  with_float(args.x.dtype, [&](auto zero) {
    using T = decltype(zero);
    const PushRows<T> a{peers_of(call, args.x),
                        group_tokens(call, args.all_tokens, args.coords),
                        args.x.as<T>(),
                        args.token_slot.as<int32_t>(),
                        args.rows.as<T>(),
                        static_cast<int>(args.x.dim(0)),
                        static_cast<int>(args.x.dim(1)),
                        0,
                        args.rows.dim(0)};
    out = launch_rows(a, call.integer("sms"), lane);
  });
  return out;
}

template <class Args>
CudaLaunch launch_sums(const Args& args, const Invocation& call, const Arg& row_probs, const Arg& prob_sums,
                       device::cuda::Lane& lane) {
  CudaLaunch out;
  with_float(args.rows.dtype, [&](auto zero) {
    using T = decltype(zero);
    PushSums<T> a{peers_of(call, args.rows),
                  group_tokens(call, args.all_tokens, args.coords),
                  args.rows.template as<T>(),
                  args.token_rows.template as<int32_t>(),
                  args.sums.template as<T>(),
                  row_probs.as<float>(),
                  prob_sums.as<float>(),
                  static_cast<int>(args.rows.dim(1)),
                  0,
                  static_cast<int>(args.token_rows.dim(1)),
                  static_cast<int>(args.rows.dim(0)),
                  args.sums.dim(0)};
    out = with_width<T>(a.width, {a.rows, a.sums}, [&](auto n) -> CudaLaunch {
      a.pieces = static_cast<int>(ceil_div(a.width, kVecs * 32 * n));
      const unsigned blocks = blocks_on(push_sums<T, n>, kThreads, call.integer("sms"),
                                        ceil_div(args.token_rows.dim(0) * a.pieces, kWarps));
      return [=, stream = lane.stream()] {
        push_sums<T, decltype(n)::value><<<blocks, kThreads, 0, stream>>>(a);
        PLEAT_CUDA_LAUNCHED();
      };
    });
  });
  return out;
}

const Arg kAbsent{};

CudaLaunch prepare_push_sums(const Invocation& call, device::cuda::Lane& lane) {
  return launch_sums(signature::push_sums::Forward<Arg>(call.args), call, kAbsent, kAbsent, lane);
}
CudaLaunch prepare_push_gradient_sums(const Invocation& call, device::cuda::Lane& lane) {
  const signature::push_sums::BackwardInput<Arg> args(call.args);
  if (args.row_probs.dtype != tensor::Dtype::F32) return {};
  return launch_sums(args, call, args.row_probs, args.prob_sums, lane);
}

constexpr CudaBinding kTable[] = {
    row<signature::push_rows::Forward>(prepare_push_rows),
    row<signature::push_rows::BackwardInput>(prepare_push_gradients),
    row<signature::push_sums::Forward>(prepare_push_sums),
    row<signature::push_sums::BackwardInput>(prepare_push_gradient_sums),
};

}  // namespace

std::span<const CudaBinding> push_cuda_bindings() { return kTable; }

}  // namespace pleat::kernels
