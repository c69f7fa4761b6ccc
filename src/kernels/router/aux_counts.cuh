// What auxiliary losses count: tokens and choices of the microbatch, and of each document at its first token.
// Experts are chosen by logit alone, without bias or groups.
#pragma once

#include "kernels/router/aux_settings.h"
#include "kernels/router/router_scratch.h"
#include "kernels/router/token_team.cuh"

namespace pleat::kernels::cuda::aux {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kBlocksPerSm = 2;
constexpr int64_t kMaxBlocks = kMaxAuxBlocks;

using namespace kernels::aux;

constexpr int kNumPartials = static_cast<int>(kNumAuxPartials);

// Those of the microbatch are Counters. Those of documents are scratch, cleared before each use, and stand at
// the document's first token.
struct Counts {
  int *arrived, *tokens, *experts;  // [1], [1], [E]
  int *doc_tokens, *doc_experts;    // [T], [T,E], with a sequence loss only
};

// The first token of t's document. doc_start never decreases, so going back from start to start ends there.
__device__ inline int first_token(const int32_t* doc_start, int64_t t) {
  int at = static_cast<int>(t);
  while (doc_start[at] != at) at = doc_start[at];
  return at;
}

template <int P>
__global__ void __launch_bounds__(kThreads) count(Settings set, const float* logits, const uint8_t* valid,
                                                  const int32_t* doc_start, int64_t num_tokens, Counts to) {
  extern __shared__ int mine[];  // [experts]
  const int lane = threadIdx.x % 32, E = set.experts;
  for (int e = threadIdx.x; e < E; e += kThreads) mine[e] = 0;
  __syncthreads();
  int seen = 0;
  for (int64_t t = blockIdx.x * kWarps + threadIdx.x / 32; t < num_tokens; t += gridDim.x * kWarps) {
    if (!valid[t]) continue;
    ++seen;
    float x[P];
    bool chosen[P];
    load_row(logits + t * E, E, lane, x);
    choose_by_logit(x, E, set.top_k, lane, chosen);
    PLEAT_EACH(j, P) if (chosen[j]) atomicAdd(&mine[lane + 32 * j], 1);
    if (set.coef[kSequence] == 0) continue;
    const int64_t doc = first_token(doc_start, t);
    PLEAT_EACH(j, P) if (chosen[j]) atomicAdd(&to.doc_experts[doc * E + lane + 32 * j], 1);
    if (lane == 0) atomicAdd(&to.doc_tokens[doc], 1);
  }
  __syncthreads();
  for (int e = threadIdx.x; e < E; e += kThreads)
    if (mine[e]) atomicAdd(&to.experts[e], mine[e]);
  if (lane == 0 && seen) atomicAdd(to.tokens, seen);
}

// The same with several tokens per warp.
template <class T>
__global__ void __launch_bounds__(kThreads)
    count_in_teams(Settings set, bool wide, const float* logits, const uint8_t* valid,
                   const int32_t* doc_start, int64_t num_tokens, Counts to) {
  constexpr int P = T::kElements;
  extern __shared__ int mine[];  // [experts]
  __shared__ TeamRoom<T> rooms[kWarps];
  const int E = set.experts;
  for (int e = threadIdx.x; e < E; e += kThreads) mine[e] = 0;
  __syncthreads();
  int seen = 0;
  for (int64_t first = (blockIdx.x * kWarps + threadIdx.x / 32) * static_cast<int64_t>(T::kTokens);
       first < num_tokens; first += static_cast<int64_t>(gridDim.x) * kWarps * T::kTokens) {
    const int64_t t = first + T::token();
    const bool there = t < num_tokens, counted = there && valid[t] != 0;
    float x[P];
    load_row<T>(logits + t * E, E, wide, there, x);
    uint32_t rank[P];
    PLEAT_EACH(j, P) rank[j] = rank_of_logit(x[j]);
    const Taken taken = team_choose<T>(rank, set.top_k);
    const int expert = taken_expert<T>(rank, taken, set.top_k, rooms[threadIdx.x / 32]);
    if (counted) {
      seen += T::lane() == 0;
      if (expert >= 0) atomicAdd(&mine[expert], 1);
      if (set.coef[kSequence] != 0) {
        const int64_t doc = first_token(doc_start, t);
        if (expert >= 0) atomicAdd(&to.doc_experts[doc * E + expert], 1);
        if (T::lane() == 0) atomicAdd(&to.doc_tokens[doc], 1);
      }
    }
  }
  __syncthreads();
  for (int e = threadIdx.x; e < E; e += kThreads)
    if (mine[e]) atomicAdd(&to.experts[e], mine[e]);
  seen = __reduce_add_sync(kAll, seen);
  if (threadIdx.x % 32 == 0 && seen) atomicAdd(to.tokens, seen);
}

}  // namespace pleat::kernels::cuda::aux
