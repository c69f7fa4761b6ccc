// Scores, auxiliary losses and their gradients in one pass over the logits, a team of lanes per token; the
// last block adds the losses of all.
#pragma once

#include "kernels/cuda/counters.cuh"
#include "kernels/cuda/halt.cuh"
#include "kernels/router/aux_counts.cuh"

namespace pleat::kernels::cuda::aux {

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

__device__ inline void make_weights(const Settings& set, const double* norm, const int64_t* given_counts,
                                    const int64_t* given_tokens, const Counts& own, const Weights& to,
                                    int num) {
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
__device__ inline void finish(const Settings& set, const double* partial, const int64_t* given_tokens,
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

}  // namespace pleat::kernels::cuda::aux
