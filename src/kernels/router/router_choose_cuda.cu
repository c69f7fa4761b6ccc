// Choice of experts on the GPU. Here a warp per token, the token's experts in registers, for every kind of
// router; what most models do has kernels of its own (choose_team.cuh).
#include "device/cuda/check.h"
#include "kernels/cuda/bind.h"
#include "kernels/cuda/counters.cuh"
#include "kernels/cuda/halt.cuh"
#include "kernels/cuda/shared_limit.cuh"
#include "kernels/router/choose_team.cuh"
#include "kernels/router/router_scratch.h"
#include "kernels/router/sinkhorn.cuh"

namespace pleat::kernels {
namespace {

using namespace cuda;

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int64_t kMaxBlocks = kMaxChoiceBlocks;
constexpr int64_t kFewBlocks = 132;  // one per multiprocessor

enum class Key : uint8_t { Logit, Softmax, Sigmoid, Point, Matrix, Given };

struct Choice {
  int experts, top_k;
  Key key;
  Score score, point;
  Weighting weighting;
  bool divides;
  float scale;
  int groups, group_topk, group_score_topk;  // groups 0: off

  Choice(const ChooseSettings& set, bool given)
      : experts(static_cast<int>(set.experts)),
        top_k(static_cast<int>(set.top_k)),
        score(set.score),
        point(set.point()),
        weighting(set.weighting()),
        divides(set.divides()),
        scale(static_cast<float>(set.scale)),
        groups(set.grouped() ? static_cast<int>(set.groups) : 0),
        group_topk(static_cast<int>(set.group_topk)),
        group_score_topk(static_cast<int>(set.group_score_topk)) {
    if (given)
      key = Key::Given;
    else if (set.balances_keys())
      key = Key::Matrix;
    else if (set.chooses_by_logit())
      key = Key::Logit;
    else if (set.sinkhorn && set.top_k == 1)
      key = Key::Sigmoid;
    else
      key = set.score == Score::Softmax ? Key::Softmax : Key::Point;
  }

  bool in_teams() const {
    return (key == Key::Logit || key == Key::Softmax) && groups == 0 && top_k <= kMaxTeamChoices &&
           experts <= kMaxTeamExperts;
  }
};

template <int P>
__device__ void make_keys(const Choice& c, const float (&x)[P], const bool (&in)[P], const float* bias,
                          const float* matrix, int lane, float (&key)[P]) {
  switch (c.key) {
    case Key::Softmax:
      warp_softmax(x, in, key);
      break;
    case Key::Matrix:
      load_row(matrix, c.experts, lane, key);
      break;
    case Key::Logit:
      PLEAT_EACH(j, P) key[j] = x[j];
      break;
    default:
      PLEAT_EACH(j, P) {
        key[j] = in[j] ? point_value(c.key == Key::Sigmoid ? Score::Sigmoid : c.score, x[j]) : 0.0f;
        if (bias && in[j]) key[j] = __fadd_rn(key[j], bias[lane + 32 * j]);
      }
  }
}

// Sum of the group_score_topk largest keys of group `lane`, for lanes below groups. `room` [experts] is this
// warp's own.
template <int P>
__device__ double group_score(const Choice& c, const uint32_t (&rank)[P], int lane, uint32_t* room) {
  const int size = c.experts / c.groups;
  if (c.group_score_topk > 2) {
    double mine = 0;
    for (int g = 0; g < c.groups; ++g) {
      uint32_t left[P];
      PLEAT_EACH(j, P) left[j] = (lane + 32 * j) / size == g ? rank[j] : 0;
      double sum = 0;
      for (int i = 0; i < c.group_score_topk; ++i) {
        uint32_t top;
        const int best = warp_best(left, lane, top);
        sum += static_cast<double>(key_of_rank(top));
        PLEAT_EACH(j, P) if (best == lane + 32 * j) left[j] = 0;
      }
      if (lane == g) mine = sum;
    }
    return mine;
  }
  // Few lanes per group look for its two largest, then the first of them asks the others.
  PLEAT_EACH(j, P) if (lane + 32 * j < c.experts) room[lane + 32 * j] = rank[j];
  __syncwarp();
  const int lanes = 32 / c.groups, group = lane / lanes;
  uint32_t first = 0, second = 0;
  if (group < c.groups)
    for (int i = lane % lanes; i < size; i += lanes) {
      const uint32_t r = room[group * size + i];
      second = max(second, min(first, r));
      first = max(first, r);
    }
  uint32_t all_first = first, all_second = second;
  for (int i = 1; i < lanes; ++i) {
    const uint32_t other_first = __shfl_down_sync(kAll, first, i);
    const uint32_t other_second = __shfl_down_sync(kAll, second, i);
    all_second = max(max(all_second, other_second), min(all_first, other_first));
    all_first = max(all_first, other_first);
  }
  __syncwarp();
  double sum = static_cast<double>(key_of_rank(all_first));
  if (c.group_score_topk == 2) sum += static_cast<double>(key_of_rank(all_second));
  return __shfl_sync(kAll, sum, lane * lanes % 32);
}

// Takes the experts of all but the best groups out of the choice.
template <int P>
__device__ void keep_best_groups(const Choice& c, uint32_t (&rank)[P], int lane, uint32_t* room) {
  double score = group_score(c, rank, lane, room);
  if (!(score == score)) score = -static_cast<double>(kInfinity);
  bool open = lane < c.groups;
  unsigned kept = 0;
  for (int i = 0; i < c.group_topk; ++i) {
    const double top = warp_max(open ? score : -static_cast<double>(kInfinity));
    const int best = __ffs(static_cast<int>(__ballot_sync(kAll, open && score == top))) - 1;
    kept |= 1u << best;
    open = open && lane != best;
  }
  const int size = c.experts / c.groups;
  PLEAT_EACH(j, P) {
    const int expert = lane + 32 * j;
    if (expert >= c.experts || !(kept >> expert / size & 1)) rank[j] = 0;
  }
}

template <int P>
__device__ void weigh(const Choice& c, const float (&x)[P], const bool (&in)[P], const bool (&chosen)[P],
                      float (&prob)[P]) {
  if (c.weighting == Weighting::ChosenSoftmax) {
    warp_softmax(x, chosen, prob);
  } else if (c.weighting == Weighting::FullSoftmax) {
    warp_softmax(x, in, prob);
  } else {
    double sum = 0;
    PLEAT_EACH(j, P) {
      prob[j] = chosen[j] ? point_value(c.point, x[j]) : 0.0f;
      sum += static_cast<double>(prob[j]);
    }
    if (c.divides) {
      sum = warp_sum(sum) + 1e-20;
      PLEAT_EACH(j, P) prob[j] = static_cast<float>(static_cast<double>(prob[j]) / sum);
    }
  }
  PLEAT_EACH(j, P) prob[j] *= c.scale;
}

template <int P>
__global__ void __launch_bounds__(kThreads)
    forward(Choice c, const float* logits, const float* bias, const uint8_t* valid, const int32_t* given,
            const float* matrix, int num_tokens, int32_t* idx, float* probs, ChoiceTotals to) {
  extern __shared__ uint32_t shared[];
  int* mine = reinterpret_cast<int*>(shared);  // [experts]
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint32_t* room = shared + c.experts + warp * c.experts;  // with groups only
  for (int e = threadIdx.x; e < c.experts; e += kThreads) mine[e] = 0;
  __syncthreads();

  ChoicePartial total{};
  bool in[P];
  PLEAT_EACH(j, P) in[j] = lane + 32 * j < c.experts;
  for (int64_t t = blockIdx.x * kWarps + warp; t < num_tokens; t += gridDim.x * kWarps) {
    float x[P], work[P];
    bool chosen[P];
    load_row(logits + t * c.experts, c.experts, lane, x);
    if (c.key == Key::Given) {
      for (int i = lane; i < c.top_k; i += 32) {
        const int32_t expert = given[t * c.top_k + i];
        PLEAT_HALT_UNLESS(
            expert >= 0 && expert < c.experts && (i == 0 || expert > given[t * c.top_k + i - 1]),
            "[router_choose] stored routing of a token is not a list of ascending experts");
      }
      mark_chosen(given + t * c.top_k, c.top_k, lane, chosen);
    } else {
      make_keys(c, x, in, bias, matrix + t * c.experts, lane, work);
      uint32_t rank[P];
      PLEAT_EACH(j, P) rank[j] = in[j] ? rank_of_key(work[j]) : 0;
      if (c.groups) keep_best_groups(c, rank, lane, room);
      warp_choose(rank, c.top_k, lane, chosen);
    }
    weigh(c, x, in, chosen, work);
    const bool counted = valid[t] != 0;
    for_each_chosen(chosen, lane, [&](int j, int slot) {
      idx[t * c.top_k + slot] = lane + 32 * j;
      probs[t * c.top_k + slot] = work[j];
      if (counted) atomicAdd(&mine[lane + 32 * j], 1);
    });
    if (!counted) continue;
    total.tokens += lane == 0;
    PLEAT_EACH(j, P) if (in[j]) {
      total.largest = fmaxf(total.largest, fabsf(x[j]));
      total.squares += static_cast<double>(x[j]) * static_cast<double>(x[j]);
    }
  }
  add_to_totals(to, c.experts, mine, total);
}

template <int P>
__global__ void __launch_bounds__(kThreads)
    backward(Choice c, double scale, const float* dprobs, const float* logits, const int32_t* idx,
             int num_tokens, float* dlogits, bool add) {
  const int lane = threadIdx.x % 32;
  const int64_t t = blockIdx.x * static_cast<int64_t>(kWarps) + threadIdx.x / 32;
  if (t >= num_tokens) return;
  float x[P], dp[P], d[P];
  bool in[P], chosen[P];
  load_row(logits + t * c.experts, c.experts, lane, x);
  PLEAT_EACH(j, P) {
    in[j] = lane + 32 * j < c.experts;
    chosen[j] = false;
    dp[j] = 0;
  }
  for (int i = 0; i < c.top_k; ++i) {
    const int expert = idx[t * c.top_k + i];
    const float gradient = dprobs[t * c.top_k + i];
    PLEAT_EACH(j, P) if (expert == lane + 32 * j) {
      chosen[j] = true;
      dp[j] = gradient;
    }
  }
  double dot = 0;
  if (c.weighting == Weighting::Point) {
    double sum = 0;
    PLEAT_EACH(j, P) {
      d[j] = chosen[j] ? point_value(c.point, x[j]) : 0.0f;
      sum += static_cast<double>(d[j]);
      dot += static_cast<double>(dp[j]) * static_cast<double>(d[j]);
    }
    sum = warp_sum(sum) + 1e-20;
    dot = warp_sum(dot);
    PLEAT_EACH(j, P) if (chosen[j]) {
      const double through = c.divides ? (static_cast<double>(dp[j]) - dot / sum) / sum : dp[j];
      d[j] = static_cast<float>(scale * through * static_cast<double>(point_derivative(c.point, x[j], d[j])));
    }
  } else {
    if (c.weighting == Weighting::ChosenSoftmax)
      warp_softmax(x, chosen, d);
    else
      warp_softmax(x, in, d);
    PLEAT_EACH(j, P) if (chosen[j]) dot += static_cast<double>(dp[j]) * static_cast<double>(d[j]);
    dot = warp_sum(dot);
    // Over all experts, those not chosen have dp = 0.
    PLEAT_EACH(j, P)
    d[j] = static_cast<float>(scale * static_cast<double>(d[j]) * (static_cast<double>(dp[j]) - dot));
  }
  const bool every = c.weighting == Weighting::FullSoftmax;
  float* out = dlogits + t * c.experts;
  PLEAT_EACH(j, P) if (in[j]) {
    const float value = every || chosen[j] ? d[j] : 0.0f;
    const int expert = lane + 32 * j;
    if (!add)
      out[expert] = value;
    else if (every || chosen[j])
      out[expert] += value;
  }
}

CudaLaunch prepare_router_choose_forward(const Invocation& call, device::cuda::Lane& lane) {
  const signature::router_choose::Forward<Arg> args(call.args);
  const ChooseSettings set(call);
  if (set.grouped() && set.groups > program::kMaxGpuGroups)
    base::fail("[router_choose] {} groups, needed at most {} on the GPU", set.groups, program::kMaxGpuGroups);
  if (args.logits.dtype != tensor::Dtype::F32) return {};
  const int64_t T = args.logits.dim(0), E = set.experts;
  const Choice choice(set, args.given.present);
  const CudaLaunch balance = choice.key == Key::Matrix
                                 ? prepare_sinkhorn(args.logits.as<float>(), args.valid.as<uint8_t>(), T, E,
                                                    args.scratch.as<float>(), call, lane)
                                 : CudaLaunch{};
  const bool in_teams = choice.in_teams();
  int64_t warps = T;
  if (in_teams) with_token_team(E, [&](auto team) { warps = ceil_div(T, team.kTokens); });
  // Few blocks end sooner than many, since each of them counts in memory; but every multiprocessor gets one.
  const int threads = in_teams && warps > kFewBlocks * kWarps ? kMaxChoiceThreads : kThreads;
  const int64_t blocks =
      std::clamp<int64_t>(ceil_div(warps, threads / 32), 1, in_teams ? 2 * kFewBlocks : kMaxBlocks);
  static_assert(sizeof(ChoicePartial) == kChoicePartialBytes && 2 * kFewBlocks <= kMaxChoiceBlocks);
  auto* const partial = reinterpret_cast<ChoicePartial*>(call.scratch_for(blocks * kChoicePartialBytes));
  const Counters counters(lane, 1 + E);
  const float *logits = args.logits.as<float>(), *bias = args.expert_bias.as<float>(),
              *matrix = args.scratch.as<float>();
  const uint8_t* valid = args.valid.as<uint8_t>();
  const int32_t* given = args.given.as<int32_t>();
  int32_t* idx = args.idx.as<int32_t>();
  float* probs = args.probs.as<float>();
  int64_t* load = args.load.as<int64_t>();
  double* stats = args.stats.as<double>();
  const bool add_load = args.load.into() == Into::Accumulate,
             add_stats = args.stats.into() == Into::Accumulate;
  const auto totals = [=] {
    return ChoiceTotals{counters.data(), counters.data() + 1, partial, load, stats, add_load, add_stats};
  };
  CudaLaunch out;
  if (in_teams) {
    const TeamChoice simple{choice.experts,           choice.top_k,
                            choice.key == Key::Logit, choice.weighting == Weighting::FullSoftmax,
                            rows_are_wide(logits, E), choice.scale};
    with_token_team(E, [&](auto team) {
      out = [=, &lane] {
        choose_in_teams<decltype(team)>
            <<<static_cast<unsigned>(blocks), threads, static_cast<size_t>(E) * 4, lane.stream()>>>(
                simple, logits, valid, static_cast<int>(T), idx, probs, totals());
        PLEAT_CUDA_LAUNCHED();
      };
    });
    return out;
  }
  const size_t shared = static_cast<size_t>(E * (choice.groups ? 1 + kWarps : 1) * 4);
  with_elements_per_lane(E, [&](auto per_lane) {
    constexpr int P = per_lane();
    allow_shared(reinterpret_cast<const void*>(&forward<P>), static_cast<int64_t>(shared),
                 fmt::format("[router_choose] {} experts", E));
    out = [=, &lane] {
      if (balance) balance();
      forward<P><<<static_cast<unsigned>(blocks), kThreads, shared, lane.stream()>>>(
          choice, logits, bias, valid, given, matrix, static_cast<int>(T), idx, probs, totals());
      PLEAT_CUDA_LAUNCHED();
    };
  });
  return out;
}

CudaLaunch prepare_router_choose_backward_input(const Invocation& call, device::cuda::Lane& lane) {
  const signature::router_choose::BackwardInput<Arg> args(call.args);
  if (args.logits.dtype != tensor::Dtype::F32) return {};
  const ChooseSettings set(call);
  const int64_t T = args.logits.dim(0);
  const Choice choice(set, false);
  const float *dprobs = args.dprobs.as<float>(), *logits = args.logits.as<float>();
  const int32_t* idx = args.idx.as<int32_t>();
  float* dlogits = args.dlogits.as<float>();
  const bool add = args.dlogits.into() == Into::Accumulate;
  CudaLaunch out;
  if (T == 0) return [] {};
  const auto blocks_of = [T](int lanes) { return static_cast<unsigned>(ceil_div(T * lanes, kTeamThreads)); };
  const bool wide = rows_are_wide(logits, set.experts) && rows_are_wide(dlogits, set.experts);
  const bool all = choice.weighting == Weighting::FullSoftmax;
  if (!all && choice.top_k <= 32) {
    const auto with_lanes = [&](auto lanes) {
      constexpr int L = lanes();
      out = [=, scale = set.scale, stream = lane.stream()] {
        choice_gradient<L><<<blocks_of(L), kTeamThreads, 0, stream>>>(
            choice.weighting, choice.point, choice.divides, choice.experts, choice.top_k, wide, scale, dprobs,
            logits, idx, static_cast<int>(T), dlogits, add);
        PLEAT_CUDA_LAUNCHED();
      };
    };
    if (choice.top_k <= 8)
      with_lanes(std::integral_constant<int, 8>{});
    else
      with_lanes(std::integral_constant<int, 32>{});
    return out;
  }
  if (all && choice.top_k <= kMaxTeamChoices && choice.experts <= kMaxTeamExperts) {
    with_token_team(set.experts, [&](auto team) {
      out = [=, scale = set.scale, stream = lane.stream()] {
        softmax_gradient<decltype(team)><<<blocks_of(team.kLanes), kTeamThreads, 0, stream>>>(
            choice.experts, choice.top_k, wide, scale, dprobs, logits, idx, static_cast<int>(T), dlogits,
            add);
        PLEAT_CUDA_LAUNCHED();
      };
    });
    return out;
  }
  const int64_t blocks = ceil_div(T, kWarps);
  with_elements_per_lane(set.experts, [&](auto per_lane) {
    constexpr int P = per_lane();
    out = [=, scale = set.scale, stream = lane.stream()] {
      backward<P><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(choice, scale, dprobs, logits, idx,
                                                                          static_cast<int>(T), dlogits, add);
      PLEAT_CUDA_LAUNCHED();
    };
  });
  return out;
}

constexpr CudaBinding kTable[] = {
    row<signature::router_choose::Forward>(prepare_router_choose_forward),
    row<signature::router_choose::BackwardInput>(prepare_router_choose_backward_input),
};

}  // namespace

std::span<const CudaBinding> router_choose_cuda_bindings() { return kTable; }

}  // namespace pleat::kernels
