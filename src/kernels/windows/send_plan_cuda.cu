// Which token goes to which rank, on the GPU: tokens of a chunk counted per expert rank, then numbered by ascending token.
#include "device/cuda/check.h"
#include "kernels/cuda/bind.h"
#include "kernels/cuda/halt.cuh"
#include "kernels/cuda/types.cuh"
#include "kernels/windows/contract.h"

namespace pleat::kernels {
namespace {

using namespace cuda;

constexpr int kThreads = static_cast<int>(kSendChunk);  // a token each

struct SendPlan {
  const int32_t *token_row, *idx, *all_offsets;
  const int64_t* place;
  int32_t *token_offsets, *token_slot, *row_base, *expert_offsets;
  int* counts;  // [chunk, expert rank]
  int num_tokens, top_k, expert_ranks, experts_per_rank, copies, ranks, chunks;
};

// Whether token t goes to p.
__device__ bool goes(const SendPlan& a, int t, int p) {
  for (int s = 0; s < a.top_k; ++s) {
    const int64_t at = static_cast<int64_t>(t) * a.top_k + s;
    if (a.token_row[at] >= 0 && a.idx[at] / a.experts_per_rank == p) return true;
  }
  return false;
}

// token_slot holds the number inside the chunk for now.
__global__ void __launch_bounds__(kThreads) count_tokens(SendPlan a) {
  __shared__ int of_warp[kThreads / 32];
  const int t = static_cast<int>(blockIdx.x * kThreads + threadIdx.x), lane = threadIdx.x % 32,
            warp = threadIdx.x / 32;
  for (int p = 0; p < a.expert_ranks; ++p) {
    const bool mine = t < a.num_tokens && goes(a, t, p);
    const unsigned votes = __ballot_sync(0xffffffffu, mine);
    if (lane == 0) of_warp[warp] = __popc(votes);
    __syncthreads();
    int before = __popc(votes & ((1u << lane) - 1)), all = 0;
    for (int w = 0; w < kThreads / 32; ++w) {
      if (w < warp) before += of_warp[w];
      all += of_warp[w];
    }
    if (t < a.num_tokens) a.token_slot[static_cast<int64_t>(t) * a.expert_ranks + p] = mine ? before : -1;
    if (threadIdx.x == 0) a.counts[blockIdx.x * a.expert_ranks + p] = all;
    __syncthreads();
  }
}

__device__ int rows_of(const SendPlan& a, int source, int expert) {
  const int32_t* at =
      a.all_offsets + static_cast<int64_t>(source) * (a.expert_ranks * a.experts_per_rank + 1) + expert;
  return at[1] - at[0];
}

// Block b < chunks: tokens of chunk b get their numbers. Then a thread per expert: where this rank's rows begin there.
__global__ void __launch_bounds__(kThreads) number_tokens(SendPlan a) {
  const int me = static_cast<int>(*a.place), own = me / a.copies;
  PLEAT_HALT_UNLESS(me >= 0 && me < a.ranks, "[send_plan] this rank is not in its group");
  const int b = static_cast<int>(blockIdx.x);
  if (b < a.chunks) {
    const int t = b * kThreads + static_cast<int>(threadIdx.x);
    for (int p = 0; p < a.expert_ranks; ++p) {
      int before = 0;
      for (int c = 0; c < b; ++c) before += a.counts[c * a.expert_ranks + p];
      if (t >= a.num_tokens) continue;
      int32_t& slot = a.token_slot[static_cast<int64_t>(t) * a.expert_ranks + p];
      if (slot >= 0) slot += before;
    }
    return;
  }
  if (b == a.chunks && threadIdx.x == 0) {
    int sum = 0;
    for (int p = 0; p < a.expert_ranks; ++p) {
      a.token_offsets[p] = sum;
      for (int c = 0; c < a.chunks; ++c) sum += a.counts[c * a.expert_ranks + p];
    }
    a.token_offsets[a.expert_ranks] = sum;
  }
  const int expert = (b - a.chunks) * kThreads + static_cast<int>(threadIdx.x);
  if (expert >= a.expert_ranks * a.experts_per_rank) return;
  const int first = expert / a.experts_per_rank * a.experts_per_rank;
  int row = 0, base = 0, end = 0;
  for (int e = first; e <= expert; ++e)
    for (int s = 0; s < a.ranks; ++s) {
      if (e == expert && s == 0) end = row;  // the beginning of this expert
      if (e == expert && s == me) base = row;
      row += rows_of(a, s, e);
    }
  a.row_base[expert] = base;
  if (expert / a.experts_per_rank != own) return;
  a.expert_offsets[expert - first] = end;
  if (expert == first + a.experts_per_rank - 1) a.expert_offsets[a.experts_per_rank] = row;
}

CudaLaunch prepare_send_plan(const Invocation& call, device::cuda::Lane& lane) {
  const signature::send_plan::Forward<Arg> args(call.args);
  SendPlan a{};
  a.token_row = args.token_row.as<int32_t>();
  a.idx = args.idx.as<int32_t>();
  a.all_offsets = args.all_offsets.as<int32_t>();
  a.place = args.coords.as<int64_t>() + static_cast<size_t>(program::Group::Dispatch);
  a.token_offsets = args.token_offsets.as<int32_t>();
  a.token_slot = args.token_slot.as<int32_t>();
  a.row_base = args.row_base.as<int32_t>();
  a.expert_offsets = args.expert_offsets.as<int32_t>();
  a.counts = reinterpret_cast<int*>(call.scratch_for(scratch_bytes(args, call, {})));
  a.num_tokens = static_cast<int>(args.token_row.dim(0));
  a.top_k = static_cast<int>(args.token_row.dim(1));
  a.expert_ranks = static_cast<int>(args.token_slot.dim(1));
  a.experts_per_rank = static_cast<int>(call.integer("experts_per_rank"));
  a.copies = static_cast<int>(call.integer("copies"));
  a.ranks = static_cast<int>(args.all_offsets.dim(0));
  a.chunks = static_cast<int>(ceil_div(a.num_tokens, kThreads));
  const auto expert_blocks = static_cast<int>(ceil_div(a.expert_ranks * a.experts_per_rank, kThreads));
  return [=, stream = lane.stream()] {
    if (a.chunks > 0) {
      count_tokens<<<static_cast<unsigned>(a.chunks), kThreads, 0, stream>>>(a);
      PLEAT_CUDA_LAUNCHED();
    }
    number_tokens<<<static_cast<unsigned>(a.chunks + expert_blocks), kThreads, 0, stream>>>(a);
    PLEAT_CUDA_LAUNCHED();
  };
}

constexpr CudaBinding kTable[] = {row<signature::send_plan::Forward>(prepare_send_plan)};

}  // namespace

std::span<const CudaBinding> send_plan_cuda_bindings() { return kTable; }

}  // namespace pleat::kernels
