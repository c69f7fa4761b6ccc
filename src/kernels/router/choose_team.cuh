// The choice and its gradient with several tokens per warp (token_team.cuh), for what most models do: keys
// are logits or their softmax, few experts per token, no groups.
#pragma once

#include "kernels/router/choose.h"
#include "kernels/router/choose_totals.cuh"
#include "kernels/router/token_team.cuh"

namespace pleat::kernels::cuda {

constexpr int kTeamThreads = 256;
constexpr int kMaxChoiceThreads = 512;

struct TeamChoice {
  int experts, top_k;
  bool by_logit;  // keys; otherwise the softmax
  bool all;       // weights: softmax over all experts, otherwise over the chosen ones
  bool wide;      // rows_are_wide
  float scale;
};

// A lane per slot then weighs the chosen. It asks for their logits once more, which are at hand in L1: kept
// through the choice, they would cost registers that hide latency better as warps.
template <class T>
__global__ void __launch_bounds__(kMaxChoiceThreads, 2)
    choose_in_teams(TeamChoice c, const float* logits, const uint8_t* valid, int num_tokens, int32_t* idx,
                    float* probs, ChoiceTotals to) {
  constexpr int P = T::kElements;
  extern __shared__ int mine[];  // [experts]
  __shared__ TeamRoom<T> rooms[kMaxChoiceThreads / 32];
  const int warp = threadIdx.x / 32, lane = T::lane();
  for (int e = threadIdx.x; e < c.experts; e += blockDim.x) mine[e] = 0;
  __syncthreads();

  ChoicePartial total{};
  const int64_t tokens_per_block = blockDim.x / 32 * T::kTokens;
  for (int64_t first = blockIdx.x * tokens_per_block + warp * T::kTokens; first < num_tokens;
       first += gridDim.x * tokens_per_block) {
    const int64_t t = first + T::token();
    const bool there = t < num_tokens, counted = there && valid[t] != 0;
    const float* row = logits + t * c.experts;
    float x[P];
    load_row<T>(row, c.experts, c.wide, there, x);
    if (counted) {
      total.tokens += lane == 0;
      PLEAT_EACH(j, P) if (T::expert(j) < c.experts) {
        total.largest = fmaxf(total.largest, fabsf(x[j]));
        total.squares += static_cast<double>(x[j]) * static_cast<double>(x[j]);
      }
    }
    uint32_t rank[P];
    SoftmaxOf softmax{};
    if (c.by_logit) {
      PLEAT_EACH(j, P) rank[j] = rank_of_logit(x[j]);
    } else {
      softmax = team_softmax<T>(x, x);
      PLEAT_EACH(j, P) rank[j] = rank_of_share(x[j]);
    }
    const Taken taken = team_choose<T>(rank, c.top_k);
    const int expert = taken_expert<T>(rank, taken, c.top_k, rooms[warp]);
    const bool has_slot = there && expert >= 0;
    const float logit = has_slot ? row[expert] : -kInfinity;
    float prob;
    if (c.all) {
      prob = softmax(logit);
    } else {
      const float largest = team_max<8>(logit);
      prob = has_slot ? router_exp_below(__fsub_rn(logit, largest)) : 0.0f;
      prob *= inverse_of_sum(team_sum<8>(static_cast<double>(prob)));
    }
    if (has_slot) {
      idx[t * c.top_k + lane] = expert;
      probs[t * c.top_k + lane] = prob * c.scale;
      if (counted) atomicAdd(&mine[expert], 1);
    }
  }
  add_to_totals(to, c.experts, mine, total);
}

// Gradients that reach the chosen logits only: a lane per choice, L of them per token. Rows of other logits
// are neither read nor, when adding, written.
template <int L>
__global__ void __launch_bounds__(kTeamThreads)
    choice_gradient(Weighting weighting, Score point, bool divides, int experts, int top_k, bool wide,
                    double scale, const float* dprobs, const float* logits, const int32_t* idx,
                    int num_tokens, float* dlogits, bool add) {
  const int lane = threadIdx.x % L;
  const int64_t t = (blockIdx.x * static_cast<int64_t>(kTeamThreads) + threadIdx.x) / L;
  const bool there = t < num_tokens, has_slot = there && lane < top_k;
  const int expert = has_slot ? idx[t * top_k + lane] : 0;
  const float dp = has_slot ? dprobs[t * top_k + lane] : 0.0f;
  float* out = dlogits + t * experts;
  if (!add && there) {
    if (wide)
      for (int e = 4 * lane; e < experts; e += 4 * L) *reinterpret_cast<float4*>(out + e) = {0, 0, 0, 0};
    else
      for (int e = lane; e < experts; e += L) out[e] = 0.0f;
  }
  const float x = has_slot ? logits[t * experts + expert] : -kInfinity;
  const float before = has_slot && add ? out[expert] : 0.0f;
  float d = 0;
  if (weighting == Weighting::Point) {
    const float s = has_slot ? point_value(point, x) : 0.0f;
    const double sum = team_sum<L>(static_cast<double>(s)) + 1e-20;
    const double dot = team_sum<L>(static_cast<double>(dp) * static_cast<double>(s));
    const double through = divides ? (static_cast<double>(dp) - dot / sum) / sum : static_cast<double>(dp);
    d = static_cast<float>(scale * through * static_cast<double>(point_derivative(point, x, s)));
  } else {
    const float largest = team_max<L>(x);
    float s = has_slot ? router_exp_below(__fsub_rn(x, largest)) : 0.0f;
    s *= inverse_of_sum(team_sum<L>(static_cast<double>(s)));
    const double dot = team_sum<L>(static_cast<double>(dp) * static_cast<double>(s));
    d = static_cast<float>(scale * static_cast<double>(s) * (static_cast<double>(dp) - dot));
  }
  __syncwarp();  // behind the zeros
  if (has_slot) out[expert] = before + d;
}

// Gradients through the softmax over all experts, at most L choices per token.
template <class T>
__global__ void __launch_bounds__(kTeamThreads)
    softmax_gradient(int experts, int top_k, bool wide, double scale, const float* dprobs,
                     const float* logits, const int32_t* idx, int num_tokens, float* dlogits, bool add) {
  constexpr int P = T::kElements;
  const int64_t t = (blockIdx.x * static_cast<int64_t>(kTeamThreads) + threadIdx.x) / T::kLanes;
  const bool there = t < num_tokens, has_slot = there && T::lane() < top_k;
  const int expert = has_slot ? idx[t * top_k + T::lane()] : 0;
  const float dp = has_slot ? dprobs[t * top_k + T::lane()] : 0.0f;
  float* out = dlogits + t * experts;
  float x[P], d[P], before[P];
  load_row<T>(logits + t * experts, experts, wide, there, x);
  PLEAT_EACH(j, P) before[j] = 0.0f;
  if (add) load_row<T>(out, experts, wide, there, before);
  const float chosen = has_slot ? logits[t * experts + expert] : -kInfinity;
  const float before_chosen = has_slot && add ? out[expert] : 0.0f;
  const SoftmaxOf softmax = team_softmax<T>(x, d);
  const double s = has_slot ? static_cast<double>(softmax(chosen)) : 0.0;
  const double dot = team_sum<T::kLanes>(static_cast<double>(dp) * s);
  const float through_sum = static_cast<float>(-scale * dot);
  PLEAT_EACH(j, P) d[j] = before[j] + through_sum * d[j];
  __syncwarp();  // old values of the chosen are read
  if (there) store_row<T>(out, experts, wide, d);
  __syncwarp();  // behind what all experts get
  if (has_slot) out[expert] = before_chosen + static_cast<float>(scale * s * (static_cast<double>(dp) - dot));
}

}  // namespace pleat::kernels::cuda
