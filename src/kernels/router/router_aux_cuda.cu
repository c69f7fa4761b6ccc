// Auxiliary losses on the GPU. Counts first (of the microbatch, and of each document at its first token),
// then a warp per token makes scores, losses and gradients in one pass; its last block adds the losses of
// all.
#include "device/cuda/check.h"
#include "kernels/cuda/counters.cuh"
#include "kernels/cuda/halt.cuh"
#include "kernels/cuda/shared_limit.cuh"
#include "kernels/math/require.h"
#include "kernels/router/router.h"
#include "kernels/router/router_cuda.h"
#include "kernels/router/token.cuh"

namespace pleat::kernels {
namespace {

using namespace cuda;

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kBlocksPerSm = 4;
constexpr int64_t kMaxBlocks = 132 * kBlocksPerSm;  // all there at once, while experts fit into registers

enum Loss { kMicro = 0, kSequence = 1, kGlobal = 2, kZ = 3, kNumLosses = 4 };

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

struct Partial {
  double losses[kNumLosses];
  int64_t tokens;
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

// weights [2, E]: micro, global, before coefficients.
__device__ void make_weights(const Settings& set, const double* norm, const int64_t* given_counts,
                             const int64_t* given_tokens, const Counts& own, double* weights) {
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
  for (int e = threadIdx.x; e < set.experts; e += kThreads) {
    const double count = set.coef[kMicro] == 0 ? 0.0
                         : set.hf              ? static_cast<double>(given_counts[e])
                                               : static_cast<double>(own.experts[e]);
    weights[e] = micro * count;
    weights[set.experts + e] = set.coef[kGlobal] != 0 ? global * static_cast<double>(given_counts[e]) : 0.0;
  }
}

// By the last block, when the losses of all are there and none needs the counts any more.
__device__ void finish(const Settings& set, const Partial* partial, const int64_t* given_tokens,
                       const Counts& own, double* losses, bool add) {
  if (threadIdx.x == 0) *own.tokens = 0;
  for (int e = threadIdx.x; e < set.experts; e += kThreads) own.experts[e] = 0;
  Partial mine{};
  for (int b = threadIdx.x; b < static_cast<int>(gridDim.x); b += kThreads) {
    for (int i = 0; i < kNumLosses; ++i) mine.losses[i] += __ldcg(&partial[b].losses[i]);
    mine.tokens += __ldcg(reinterpret_cast<const long long*>(&partial[b].tokens));
  }
  for (int i = 0; i < kNumLosses; ++i) mine.losses[i] = block_sum<kThreads>(mine.losses[i]);
  mine.tokens = block_sum<kThreads>(mine.tokens);
  if (threadIdx.x != 0) return;
  if (set.hf && set.coef[kMicro] != 0)
    PLEAT_HALT_UNLESS(given_tokens[0] == set.num_layers * mine.tokens,
                      "[router_aux] the given counts do not cover num_layers times this microbatch's tokens");
  for (int i = 0; i < kNumLosses; ++i) losses[i] = (add ? losses[i] : 0.0) + mine.losses[i];
}

template <int P>
__global__ void __launch_bounds__(kThreads, P <= 4 ? kBlocksPerSm : 1)
    losses_and_gradients(Settings set, const float* logits, const uint8_t* valid, const int32_t* doc_start,
                         const double* norm, const int64_t* given_counts, const int64_t* given_tokens,
                         Counts own, int64_t num_tokens, float* dlogits, bool add, Partial* partial,
                         double* losses, bool add_losses) {
  extern __shared__ double weights[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, E = set.experts;
  // A token's logits are asked for while the one before is worked on, the first's while weights are made.
  const int64_t first = blockIdx.x * kWarps + warp, stride = gridDim.x * kWarps;
  float next[P];
  if (first < num_tokens) load_row(logits + first * E, E, lane, next);
  make_weights(set, norm, given_counts, given_tokens, own, weights);
  __syncthreads();
  const double *micro = weights, *global = weights + E;
  bool in[P];
  PLEAT_EACH(j, P) in[j] = lane + 32 * j < E;
  Partial mine{};
  int seen = 0;
  for (int64_t t = first; t < num_tokens; t += stride) {
    float* out = dlogits + t * E;
    float x[P], s[P], d[P];
    PLEAT_EACH(j, P) x[j] = next[j];
    if (t + stride < num_tokens) load_row(logits + (t + stride) * E, E, lane, next);
    if (!valid[t]) {
      if (!add) {
        PLEAT_EACH(j, P) if (in[j]) out[lane + 32 * j] = 0.0f;
      }
      continue;
    }
    ++seen;
    PLEAT_EACH(j, P) d[j] = 0.0f;
    if (set.coef[kZ] != 0) {
      const double lse = warp_softmax(x, in, s);
      mine.losses[kZ] += norm[3] * lse * lse;
      const float slope = static_cast<float>(2 * set.coef[kZ] * norm[3] * lse);
      PLEAT_EACH(j, P) d[j] = slope * s[j];
    }
    if (set.balances()) {
      const bool softmax = set.score == Score::Softmax;
      double sum = 1;
      if (softmax) {
        if (set.coef[kZ] == 0) warp_softmax(x, in, s);
      } else {
        sum = 0;
        PLEAT_EACH(j, P) {
          s[j] = in[j] ? point_value(set.score, x[j]) : 0.0f;
          sum += static_cast<double>(s[j]);
        }
        sum = warp_sum(sum) + 1e-20;
      }
      double document = 0;
      const int* counts = nullptr;
      if (set.coef[kSequence] != 0) {
        const int64_t doc = first_token(doc_start, t);
        const double tokens = own.doc_tokens[doc];
        document = norm[2] * E / (set.top_k * tokens * tokens);  // t itself is one of them
        counts = own.doc_experts + doc * E;
      }
      double by_micro = 0, by_global = 0, by_document = 0;
      float weight[P];
      PLEAT_EACH(j, P) if (in[j]) {
        const int e = lane + 32 * j;
        const double share = softmax ? s[j] : static_cast<float>(static_cast<double>(s[j]) / sum);
        const double of_document = counts ? document * counts[e] : 0.0;
        by_micro += micro[e] * share;
        by_global += global[e] * share;
        by_document += of_document * share;
        weight[j] = static_cast<float>(set.coef[kMicro] * micro[e] + set.coef[kGlobal] * global[e] +
                                       set.coef[kSequence] * of_document);
      }
      if (set.coef[kMicro] != 0) by_micro = warp_sum(by_micro);
      if (set.coef[kGlobal] != 0) by_global = warp_sum(by_global);
      if (set.coef[kSequence] != 0) by_document = warp_sum(by_document);
      mine.losses[kMicro] += by_micro;
      mine.losses[kGlobal] += by_global;
      mine.losses[kSequence] += by_document;
      const float mean = static_cast<float>(set.coef[kMicro] * by_micro + set.coef[kGlobal] * by_global +
                                            set.coef[kSequence] * by_document);
      const float inverse = static_cast<float>(1 / sum);
      PLEAT_EACH(j, P) if (in[j]) {
        d[j] += (weight[j] - mean) * (softmax ? s[j] : inverse * point_derivative(set.score, x[j], s[j]));
      }
    }
    PLEAT_EACH(j, P) if (in[j]) {
      float& to = out[lane + 32 * j];
      to = add ? to + d[j] : d[j];
    }
  }

  __shared__ Partial of_warp[kWarps];
  mine.tokens = seen;
  if (lane == 0) of_warp[warp] = mine;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int w = 1; w < kWarps; ++w) {
      for (int i = 0; i < kNumLosses; ++i) mine.losses[i] += of_warp[w].losses[i];
      mine.tokens += of_warp[w].tokens;
    }
    partial[blockIdx.x] = mine;
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
  const int64_t blocks = std::max<int64_t>(1, std::min(kMaxBlocks, ceil_div(T, kWarps)));
  const int64_t document_bytes = by_document ? 4 * (T + T * E) : 0;
  lane.need_scratch(blocks * static_cast<int64_t>(sizeof(Partial)) + document_bytes);
  const Counters counters(lane, 2 + E);
  const float* logits = call[0].as<float>();
  const uint8_t* valid = call[1].as<uint8_t>();
  const int32_t* doc_start = call[2].as<int32_t>();
  const double* norm = call[3].as<double>();
  const int64_t *given_counts = call[4].as<int64_t>(), *given_tokens = call[5].as<int64_t>();
  float* dlogits = call[6].as<float>();
  double* losses = call[7].as<double>();
  const bool add = call[6].into() == Into::Accumulate, add_losses = call[7].into() == Into::Accumulate;
  CudaLaunch out;
  with_elements_per_lane(E, [&](auto per_lane) {
    constexpr int P = per_lane();
    const size_t shared = static_cast<size_t>(E) * 16;
    allow_shared(reinterpret_cast<const void*>(&losses_and_gradients<P>), static_cast<int64_t>(shared),
                 fmt::format("[router_aux] {} experts", E));
    out = [=, &lane] {
      Partial* partial = reinterpret_cast<Partial*>(lane.scratch());
      Counts counts{};
      counts.arrived = counters.data();
      counts.tokens = counts.arrived + 1;
      counts.experts = counts.tokens + 1;
      counts.doc_tokens = reinterpret_cast<int*>(partial + blocks);
      counts.doc_experts = counts.doc_tokens + T;
      const unsigned grid = static_cast<unsigned>(blocks);
      if (by_document) lane.fill(counts.doc_tokens, 0, document_bytes);
      if (own) {
        count<P><<<grid, kThreads, static_cast<size_t>(E) * 4, lane.stream()>>>(set, logits, valid, doc_start,
                                                                                T, counts);
        PLEAT_CUDA_LAUNCHED();
      }
      losses_and_gradients<P><<<grid, kThreads, shared, lane.stream()>>>(
          set, logits, valid, doc_start, norm, given_counts, given_tokens, counts, T, dlogits, add, partial,
          losses, add_losses);
      PLEAT_CUDA_LAUNCHED();
    };
  });
  return out;
}

}  // namespace pleat::kernels
