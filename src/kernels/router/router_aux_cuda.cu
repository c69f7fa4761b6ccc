// Auxiliary losses on the GPU. Counts first (of the microbatch, and of each document at its first token),
// then teams of lanes, one per token, make scores, losses and gradients in one pass; its last block adds the
// losses of all.
#include "device/cuda/check.h"
#include "kernels/cuda/counters.cuh"
#include "kernels/cuda/halt.cuh"
#include "kernels/cuda/shared_limit.cuh"
#include "kernels/math/require.h"
#include "kernels/router/router.h"
#include "kernels/router/router_cuda.h"
#include "kernels/router/token_team.cuh"

namespace pleat::kernels {
namespace {

using namespace cuda;

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kBlocksPerSm = 2;
constexpr int64_t kMaxBlocks = 132 * kBlocksPerSm;  // mostly all there at once

enum Loss { kMicro = 0, kSequence = 1, kGlobal = 2, kZ = 3, kNumLosses = 4 };
constexpr int kNumPartials = kNumLosses + 1;  // and the tokens: a double holds their number

struct Settings {
  int experts, top_k;
  int64_t num_layers;
  Score score;
  bool hf;
  double coef[kNumLosses];

  explicit Settings(const Invocation& call)
      : experts(static_cast<int>(call.integer("experts"))),
        top_k(static_cast<int>(call.integer("top_k"))),
        num_layers(call.integer("num_layers")),
        score(static_cast<Score>(call.integer("score"))),
        hf(call.integer("hf") != 0),
        coef{call.attr("micro_coef"), call.attr("seq_coef"), call.attr("global_coef"), call.attr("z_coef")} {}

  __host__ __device__ bool balances() const {
    return coef[kMicro] != 0 || coef[kSequence] != 0 || coef[kGlobal] != 0;
  }
  bool needs_given_counts() const { return (hf && coef[kMicro] != 0) || coef[kGlobal] != 0; }
  bool needs_own_counts() const { return (!hf && coef[kMicro] != 0) || coef[kSequence] != 0; }
};

// Those of the microbatch are Counters. Those of documents are scratch, cleared before each use, and stand at
// the document's first token.
struct Counts {
  int *arrived, *tokens, *experts;  // [1], [1], [E]
  int *doc_tokens, *doc_experts;    // [T], [T,E], with a sequence loss only
};

// The first token of t's document. doc_start never decreases, so going back from start to start ends there.
__device__ int first_token(const int32_t* doc_start, int64_t t) {
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

// Per expert a team can hold, in shared memory: micro and global before coefficients, and what both ask of a
// score. 0 beyond the last expert.
struct Weights {
  double *micro, *global;
  float* both;

  __device__ Weights(void* shared, int num)
      : micro(static_cast<double*>(shared)),
        global(micro + num),
        both(reinterpret_cast<float*>(global + num)) {}
  static size_t bytes(int num) { return static_cast<size_t>(num) * 20; }
};

template <class T, class V>
__device__ inline void load_run(const V* weights, int r, V (&to)[T::kRun]) {
  struct alignas(sizeof(V) * T::kRun) Run {
    V at[T::kRun];
  };
  const Run run = *reinterpret_cast<const Run*>(weights + T::expert(r * T::kRun));
#pragma unroll
  for (int i = 0; i < T::kRun; ++i) to[i] = run.at[i];
}

// The team's sum of weight times score.
template <class T>
__device__ inline double weighted(const double* weights, const float (&s)[T::kElements]) {
  constexpr int P = T::kElements;
  double sum = 0;
  PLEAT_EACH(r, T::kRuns) {
    double weight[T::kRun];
    load_run<T>(weights, r, weight);
#pragma unroll
    for (int i = 0; i < T::kRun; ++i) sum += weight[i] * static_cast<double>(s[r * T::kRun + i]);
  }
  return team_sum<T::kLanes>(sum);
}

__device__ void make_weights(const Settings& set, const double* norm, const int64_t* given_counts,
                             const int64_t* given_tokens, const Counts& own, const Weights& to, int num) {
  const double E = set.experts, k = set.top_k;
  double micro = 0, global = 0;
  const double given = given_tokens ? static_cast<double>(given_tokens[0]) : 0;
  if (set.coef[kMicro] != 0 && set.hf) {
    micro = given > 0 ? norm[1] * E / (given * given) : 0;
  } else if (set.coef[kMicro] != 0 && own.tokens[0] > 0) {
    const double tokens = own.tokens[0];
    micro = norm[1] * E / (k * tokens * tokens);
  }
  if (set.coef[kGlobal] != 0 && given > 0) global = norm[3] * E / (k * given);
  for (int e = threadIdx.x; e < num; e += kThreads) {
    const bool in = e < set.experts;
    const double count = !in || set.coef[kMicro] == 0 ? 0.0
                         : set.hf                     ? static_cast<double>(given_counts[e])
                                                      : static_cast<double>(own.experts[e]);
    const double by_micro = micro * count;
    const double by_global =
        in && set.coef[kGlobal] != 0 ? global * static_cast<double>(given_counts[e]) : 0.0;
    to.micro[e] = by_micro;
    to.global[e] = by_global;
    to.both[e] = static_cast<float>(set.coef[kMicro] * by_micro + set.coef[kGlobal] * by_global);
  }
}

// By the last block, when the losses of all are there and none needs the counts any more. A warp per loss,
// and one for the tokens.
__device__ void finish(const Settings& set, const double* partial, const int64_t* given_tokens,
                       const Counts& own, double* losses, bool add) {
  const int lane = threadIdx.x % 32, i = threadIdx.x / 32, blocks = gridDim.x;
  if (threadIdx.x == 0) *own.tokens = 0;
  for (int e = threadIdx.x; e < set.experts; e += kThreads) own.experts[e] = 0;
  if (i >= kNumPartials) return;
  const double before = i < kNumLosses && add ? losses[i] : 0.0;
  double sum = 0;
#pragma unroll 8
  for (int b = lane; b < blocks; b += 32) sum += __ldcg(partial + i * blocks + b);
  sum = warp_sum(sum);
  if (lane != 0) return;
  if (i < kNumLosses)
    losses[i] = before + sum;
  else if (set.hf && set.coef[kMicro] != 0)
    PLEAT_HALT_UNLESS(static_cast<double>(given_tokens[0]) == static_cast<double>(set.num_layers) * sum,
                      "[router_aux] the given counts do not cover num_layers times this microbatch's tokens");
}

// partial [kNumPartials, blocks]. Unless kEvery, scores are a softmax and there is no loss per document.
template <class T, bool kEvery>
__global__ void __launch_bounds__(kThreads, kEvery ? 1 : kBlocksPerSm)
    losses_and_gradients(Settings set, bool wide, const float* logits, const uint8_t* valid,
                         const int32_t* doc_start, const double* norm, const int64_t* given_counts,
                         const int64_t* given_tokens, Counts own, int64_t num_tokens, float* dlogits,
                         bool add, double* partial, double* losses, bool add_losses) {
  constexpr int P = T::kElements, L = T::kLanes;
  extern __shared__ __align__(32) double shared[];
  const int warp = threadIdx.x / 32, E = set.experts;
  // A token's logits are asked for while the one before is worked on, the first's while weights are made.
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kWarps * T::kTokens;
  int64_t first = (blockIdx.x * kWarps + warp) * static_cast<int64_t>(T::kTokens), t = first + T::token();
  float next[P];
  load_row<T>(logits + t * E, E, wide, t < num_tokens, next);
  bool next_counts = t < num_tokens && valid[t] != 0;
  const Weights weights(shared, P * L);
  make_weights(set, norm, given_counts, given_tokens, own, weights, P * L);
  const double z_norm = norm[3];
  __syncthreads();
  const bool softmax = !kEvery || set.score == Score::Softmax, balances = set.balances();
  const bool by_document = kEvery && set.coef[kSequence] != 0;
  double mine[kNumPartials] = {};
  for (; first < num_tokens; first += stride, t += stride) {
    const bool there = t < num_tokens, counted = next_counts;
    float* out = dlogits + t * E;
    float x[P], s[P], d[P];
    PLEAT_EACH(j, P) x[j] = next[j];
    load_row<T>(logits + (t + stride) * E, E, wide, t + stride < num_tokens, next);
    next_counts = t + stride < num_tokens && valid[t + stride] != 0;
    PLEAT_EACH(j, P) d[j] = 0.0f;
    if (add) load_row<T>(out, E, wide, there, d);
    if (softmax || set.coef[kZ] != 0) {
      const SoftmaxOf of = team_softmax<T>(x, s);
      if (set.coef[kZ] != 0) {
        const double lse = of.log_sum();
        const float slope = static_cast<float>(2 * set.coef[kZ] * z_norm * lse);
        if (counted) {
          mine[kZ] += z_norm * lse * lse;
          PLEAT_EACH(j, P) d[j] += slope * s[j];
        }
      }
    }
    if (balances && softmax && !by_document) {
      const double by_micro = set.coef[kMicro] != 0 ? weighted<T>(weights.micro, s) : 0.0;
      const double by_global = set.coef[kGlobal] != 0 ? weighted<T>(weights.global, s) : 0.0;
      const float mean = static_cast<float>(set.coef[kMicro] * by_micro + set.coef[kGlobal] * by_global);
      if (counted) {
        mine[kMicro] += by_micro;
        mine[kGlobal] += by_global;
        PLEAT_EACH(r, T::kRuns) {
          float weight[T::kRun];
          load_run<T>(weights.both, r, weight);
#pragma unroll
          for (int i = 0; i < T::kRun; ++i) d[r * T::kRun + i] += (weight[i] - mean) * s[r * T::kRun + i];
        }
      }
    } else if (kEvery && balances) {
      double sum = 1;
      float share[P];
      if (!softmax) {
        sum = 0;
        PLEAT_EACH(j, P) {
          s[j] = T::expert(j) < E ? point_value(set.score, x[j]) : 0.0f;
          sum += static_cast<double>(s[j]);
        }
        sum = team_sum<L>(sum) + 1e-20;
      }
      PLEAT_EACH(j, P) share[j] = softmax ? s[j] : static_cast<float>(static_cast<double>(s[j]) / sum);
      const double by_micro = set.coef[kMicro] != 0 ? weighted<T>(weights.micro, share) : 0.0;
      const double by_global = set.coef[kGlobal] != 0 ? weighted<T>(weights.global, share) : 0.0;
      double document = 0, of_document = 0;
      const int* counts = nullptr;
      if (by_document) {
        if (counted) {
          const int64_t doc = first_token(doc_start, t);
          const double tokens = own.doc_tokens[doc];
          document = norm[2] * E / (set.top_k * tokens * tokens);  // t itself is one of them
          counts = own.doc_experts + doc * E;
          PLEAT_EACH(j, P)
          if (T::expert(j) < E)
            of_document += document * counts[T::expert(j)] * static_cast<double>(share[j]);
        }
        of_document = team_sum<L>(of_document);
      }
      if (counted) {
        mine[kMicro] += by_micro;
        mine[kGlobal] += by_global;
        mine[kSequence] += of_document;
        const float mean = static_cast<float>(set.coef[kMicro] * by_micro + set.coef[kGlobal] * by_global +
                                              set.coef[kSequence] * of_document);
        const float inverse = static_cast<float>(1 / sum);
        PLEAT_EACH(j, P) if (T::expert(j) < E) {
          const int e = T::expert(j);
          float weight = weights.both[e];
          if (by_document)
            weight = static_cast<float>(set.coef[kMicro] * weights.micro[e] +
                                        set.coef[kGlobal] * weights.global[e] +
                                        set.coef[kSequence] * document * counts[e]);
          d[j] += (weight - mean) * (softmax ? s[j] : inverse * point_derivative(set.score, x[j], s[j]));
        }
      }
    }
    if (counted) mine[kNumLosses] += 1;
    if (there && (counted || !add)) store_row<T>(out, E, wide, d);
  }

  __shared__ double of_warp[kNumPartials][kWarps];
#pragma unroll
  for (int i = 0; i < kNumPartials; ++i) {
    // The lanes of a team have the same.
#pragma unroll
    for (int step = L; step < 32; step *= 2) mine[i] += __shfl_xor_sync(kAll, mine[i], step);
    if (threadIdx.x % 32 == 0) of_warp[i][warp] = mine[i];
  }
  __syncthreads();
  if (threadIdx.x < kNumPartials) {
    double sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += of_warp[threadIdx.x][w];
    partial[threadIdx.x * gridDim.x + blockIdx.x] = sum;
  }
  if (is_last_block(own.arrived)) finish(set, partial, given_tokens, own, losses, add_losses);
}

}  // namespace

CudaLaunch prepare_router_aux(const Invocation& call, device::cuda::Lane& lane) {
  constexpr std::string_view kName = "router_aux";
  using tensor::Dtype;
  const int64_t score = call.integer("score");
  if (score < 0 || score > 2) base::fail("[{}] score is {}, needed 0, 1 or 2", kName, score);
  const Settings set(call);
  const int64_t E = set.experts;
  if (E < 1 || E > kMaxExperts) base::fail("[{}] {} experts, needed 1 to {}", kName, E, kMaxExperts);
  if (set.top_k < 1 || set.top_k > E)
    base::fail("[{}] top_k is {}, needed 1 to {} (the experts)", kName, set.top_k, E);
  if (set.hf && set.coef[kMicro] != 0 && set.coef[kGlobal] != 0)
    base::fail("[{}] hf and a global loss both need the argument 'counts'; they cannot be combined", kName);
  if (set.hf && set.num_layers < 1)
    base::fail("[{}] hf needs num_layers of at least 1, got {}", kName, set.num_layers);
  if (set.needs_given_counts() && !(call[4].present && call[5].present))
    base::fail("[{}] the {} loss needs the arguments 'counts' and 'tokens'", kName,
               set.coef[kGlobal] != 0 ? "global" : "hf");
  require_rank(kName, "logits", call[0], 2);
  const int64_t T = call[0].dim(0);
  require_shape(kName, "logits", call[0], {T, E});
  require_dtype(kName, "valid", call[1], Dtype::U8);
  require_shape(kName, "valid", call[1], {T});
  require_dtype(kName, "doc_start", call[2], Dtype::I32);
  require_shape(kName, "doc_start", call[2], {T});
  require_dtype(kName, "norm", call[3], Dtype::F64);
  require_shape(kName, "norm", call[3], {4});
  require_dtype(kName, "counts", call[4], Dtype::I64);
  require_shape(kName, "counts", call[4], {E});
  require_dtype(kName, "tokens", call[5], Dtype::I64);
  require_shape(kName, "tokens", call[5], {1});
  require_dtype(kName, "dlogits", call[6], call[0].dtype);
  require_shape(kName, "dlogits", call[6], {T, E});
  require_dtype(kName, "losses", call[7], Dtype::F64);
  require_shape(kName, "losses", call[7], {4});
  if (call[0].dtype != Dtype::F32) return {};

  const bool own = set.needs_own_counts(), by_document = set.coef[kSequence] != 0;
  int64_t tokens_per_warp = 1;
  if (E <= kMaxTeamExperts) with_token_team(E, [&](auto team) { tokens_per_warp = team.kTokens; });
  const int64_t blocks = std::clamp<int64_t>(ceil_div(T, tokens_per_warp * kWarps), 1, kMaxBlocks);
  const int64_t document_bytes = by_document ? 4 * (T + T * E) : 0;
  lane.need_scratch(8 * kNumPartials * blocks + document_bytes);
  const Counters counters(lane, 2 + E);
  const float* logits = call[0].as<float>();
  const uint8_t* valid = call[1].as<uint8_t>();
  const int32_t* doc_start = call[2].as<int32_t>();
  const double* norm = call[3].as<double>();
  const int64_t *given_counts = call[4].as<int64_t>(), *given_tokens = call[5].as<int64_t>();
  float* dlogits = call[6].as<float>();
  double* losses = call[7].as<double>();
  const bool add = call[6].into() == Into::Accumulate, add_losses = call[7].into() == Into::Accumulate;
  const bool wide = rows_are_wide(logits, E) && rows_are_wide(dlogits, E);
  const bool in_teams = E <= kMaxTeamExperts && set.top_k <= kMaxTeamChoices;
  const unsigned grid = static_cast<unsigned>(blocks);
  const auto counts_of = [=, &lane] {
    Counts counts{};
    counts.arrived = counters.data();
    counts.tokens = counts.arrived + 1;
    counts.experts = counts.tokens + 1;
    counts.doc_tokens = reinterpret_cast<int*>(lane.scratch() + 8 * kNumPartials * blocks);
    counts.doc_experts = counts.doc_tokens + T;
    return counts;
  };
  CudaLaunch counting, out;
  const size_t room = static_cast<size_t>(E) * 4;
  if (own && in_teams) {
    with_token_team(E, [&](auto team) {
      counting = [=, &lane] {
        count_in_teams<decltype(team)>
            <<<grid, kThreads, room, lane.stream()>>>(set, wide, logits, valid, doc_start, T, counts_of());
        PLEAT_CUDA_LAUNCHED();
      };
    });
  } else if (own) {
    with_elements_per_lane(E, [&](auto per_lane) {
      constexpr int P = per_lane();
      counting = [=, &lane] {
        count<P><<<grid, kThreads, room, lane.stream()>>>(set, logits, valid, doc_start, T, counts_of());
        PLEAT_CUDA_LAUNCHED();
      };
    });
  }
  const auto with = [&](auto team) {
    const size_t shared = Weights::bytes(team.kLanes * team.kElements);
    using Kernel = decltype(&losses_and_gradients<decltype(team), true>);
    Kernel kernel = &losses_and_gradients<decltype(team), true>;
    if constexpr (team.kElements <= 16)
      if (set.score == Score::Softmax && !by_document) kernel = &losses_and_gradients<decltype(team), false>;
    allow_shared(reinterpret_cast<const void*>(kernel), static_cast<int64_t>(shared),
                 fmt::format("[router_aux] {} experts", E));
    out = [=, &lane] {
      if (by_document) lane.fill(counts_of().doc_tokens, 0, document_bytes);
      if (counting) counting();
      kernel<<<grid, kThreads, shared, lane.stream()>>>(
          set, wide, logits, valid, doc_start, norm, given_counts, given_tokens, counts_of(), T, dlogits, add,
          reinterpret_cast<double*>(lane.scratch()), losses, add_losses);
      PLEAT_CUDA_LAUNCHED();
    };
  };
  if (E <= kMaxTeamExperts)
    with_token_team(E, with);
  else
    with(TokenTeam<32, 128>{});
  return out;
}

}  // namespace pleat::kernels
