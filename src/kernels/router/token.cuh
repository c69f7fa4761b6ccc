// One token's experts spread over a warp: expert e is element e / 32 of lane e % 32. What the router's GPU
// kernels share: scores, the choice of the largest keys, and how many elements a lane holds.
//
// Element arithmetic repeats score.h and exp.h operation by operation, so that keys that decide a choice have
// the bits of the CPU's f32 kernels (sqrt(softplus) up to log1p's last bit); sums run in double over a tree.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/types.cuh"
#include "kernels/router/score.h"

namespace pleat::kernels::cuda {

constexpr unsigned kAll = 0xffffffffu;
constexpr float kInfinity = __builtin_huge_valf();

// Loops over a lane's elements are unrolled while they can live in registers.
#define PLEAT_EACH(j, P) _Pragma("unroll(P <= 32 ? P : 1)") for (int j = 0; j < P; ++j)

// exp.h's fast_exp where it neither overflows nor underflows.
__device__ inline float router_exp_inside(float x) {
  constexpr float kShift = 0x1.8p23f, kInverseLn2 = 0x1.715476p0f;
  constexpr float kLn2High = 0x1.62e4p-1f, kLn2Low = 1.4286068203094172e-6f;
  const float shifted = __fmaf_rn(x, kInverseLn2, kShift);
  const float n = __fsub_rn(shifted, kShift);
  float r = __fmaf_rn(n, -kLn2High, x);
  r = __fmaf_rn(n, -kLn2Low, r);
  float q = 0.0013926213466332444f;
  q = __fmaf_rn(q, r, 0.008363202971575855f);
  q = __fmaf_rn(q, r, 0.04166655443768594f);
  q = __fmaf_rn(q, r, 0.16666576845993977f);
  q = __fmaf_rn(q, r, 0.5f);
  const float p = __fadd_rn(__fmaf_rn(__fmul_rn(r, r), q, r), 1.0f);
  return __uint_as_float(__float_as_uint(p) + (__float_as_uint(shifted) << 23));
}

// exp.h's fast_exp.
__device__ inline float router_exp(float x) {
  float y = router_exp_inside(x);
  y = x > 0x1.62e42ep6f ? kInfinity : y;
  y = x < -0x1.5d589ep6f ? 0.0f : y;
  return x == x ? y : x;
}

__device__ inline float router_sigmoid(float x) { return __fdiv_rn(1.0f, __fadd_rn(1.0f, router_exp(-x))); }

__device__ inline float point_value(Score score, float x) {
  if (score == Score::Sigmoid) return router_sigmoid(x);
  return __fsqrt_rn(__fadd_rn(x > 0.0f ? x : 0.0f, log1pf(router_exp(-fabsf(x)))));
}

__device__ inline float point_derivative(Score score, float x, float s) {
  if (score == Score::Sigmoid) return s * (1.0f - s);
  return s == 0.0f ? 0.0f : router_sigmoid(x) / (2.0f * s);
}

// x[e] for the token's experts, -inf beyond the last.
template <int P>
__device__ inline void load_row(const float* row, int num_experts, int lane, float (&x)[P]) {
  PLEAT_EACH(j, P) x[j] = lane + 32 * j < num_experts ? row[lane + 32 * j] : -kInfinity;
}

// s = softmax of the x that `in` names (0 elsewhere); returns log(sum exp(x)). A NaN among them makes all
// NaN.
template <int P>
__device__ inline double warp_softmax(const float (&x)[P], const bool (&in)[P], float (&s)[P]) {
  float largest = -kInfinity;
  PLEAT_EACH(j, P) largest = in[j] && x[j] > largest ? x[j] : largest;
  largest = warp_max(largest);
  double sum = 0;
  PLEAT_EACH(j, P) {
    s[j] = in[j] ? router_exp(__fsub_rn(x[j], largest)) : 0.0f;
    sum += s[j];
  }
  sum = warp_sum(sum);
  const float inverse = static_cast<float>(1.0 / sum);
  PLEAT_EACH(j, P) s[j] = in[j] ? s[j] * inverse : 0.0f;
  return static_cast<double>(largest) + log(sum);
}

// Order-preserving: a larger key has a larger rank; NaN ranks as -inf, and 0 is below every key.
__device__ inline uint32_t rank_of_key(float key) {
  if (!(key == key)) key = -kInfinity;
  const uint32_t bits = __float_as_uint(key + 0.0f);  // -0 and 0 are equal keys
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ inline float key_of_rank(uint32_t rank) {
  return __uint_as_float(rank & 0x80000000u ? rank & 0x7fffffffu : ~rank);
}

// The position of the largest rank, of equal ones the lowest; the rank itself goes to `top`.
template <int P>
__device__ inline int warp_best(const uint32_t (&rank)[P], int lane, uint32_t& top) {
  uint32_t mine = 0;
  PLEAT_EACH(j, P) mine = max(mine, rank[j]);
  top = __reduce_max_sync(kAll, mine);
  unsigned at = 0xffffffffu;
  PLEAT_EACH(i, P) {
    const int j = P - 1 - i;
    if (rank[j] == top) at = static_cast<unsigned>(lane + 32 * j);
  }
  return static_cast<int>(__reduce_min_sync(kAll, at));
}

// Marks the k largest ranks, of equal ones the lowest experts. Ranks of 0 are never chosen; there must be k
// others. Destroys rank. A lane keeps its largest at hand: mostly one lane holds the next, and only it works.
template <int P>
__device__ inline void warp_choose(uint32_t (&rank)[P], int k, int lane, bool (&chosen)[P]) {
  uint32_t mine = 0;
  PLEAT_EACH(j, P) {
    chosen[j] = false;
    mine = max(mine, rank[j]);
  }
  for (int i = 0; i < k; ++i) {
    const uint32_t top = __reduce_max_sync(kAll, mine);
    unsigned holders = __ballot_sync(kAll, mine == top);
    if (holders & (holders - 1)) {  // several lanes: those with the lowest element, of them the first
      unsigned element = P;
      PLEAT_EACH(j, P) if (element == P && rank[j] == top) element = static_cast<unsigned>(j);
      holders = __ballot_sync(kAll, element == __reduce_min_sync(kAll, element));
    }
    if (lane == __ffs(static_cast<int>(holders)) - 1) {
      bool open = true;
      mine = 0;
      PLEAT_EACH(j, P) {
        if (open && rank[j] == top) {
          open = false;
          chosen[j] = true;
          rank[j] = 0;
        }
        mine = max(mine, rank[j]);
      }
    }
    __syncwarp();
  }
}

// Marks the k largest logits: the choice without bias or groups that losses count.
template <int P>
__device__ inline void choose_by_logit(const float (&x)[P], int num_experts, int k, int lane,
                                       bool (&chosen)[P]) {
  uint32_t rank[P];
  PLEAT_EACH(j, P) rank[j] = lane + 32 * j < num_experts ? rank_of_key(x[j]) : 0;
  warp_choose(rank, k, lane, chosen);
}

// Marks the experts a list of k names.
template <int P>
__device__ inline void mark_chosen(const int32_t* list, int k, int lane, bool (&chosen)[P]) {
  PLEAT_EACH(j, P) chosen[j] = false;
  for (int i = 0; i < k; ++i) {
    const int expert = list[i];
    PLEAT_EACH(j, P) chosen[j] = chosen[j] || expert == lane + 32 * j;
  }
}

// Calls f(j, slot) for this lane's chosen elements; slots number the chosen experts in ascending order.
template <int P, class F>
__device__ inline void for_each_chosen(const bool (&chosen)[P], int lane, F&& f) {
  int before = 0;
  PLEAT_EACH(j, P) {
    const unsigned at = __ballot_sync(kAll, chosen[j]);
    if (chosen[j]) f(j, before + __popc(at & ((1u << lane) - 1)));
    before += __popc(at);
  }
}

// Calls f with a std::integral_constant: the number of elements per lane for E experts.
template <class F>
void with_elements_per_lane(int64_t experts, F&& f) {
  if (experts <= 32)
    f(std::integral_constant<int, 1>{});
  else if (experts <= 64)
    f(std::integral_constant<int, 2>{});
  else if (experts <= 128)
    f(std::integral_constant<int, 4>{});
  else if (experts <= 256)
    f(std::integral_constant<int, 8>{});
  else if (experts <= 512)
    f(std::integral_constant<int, 16>{});
  else
    f(std::integral_constant<int, 128>{});
}

}  // namespace pleat::kernels::cuda
