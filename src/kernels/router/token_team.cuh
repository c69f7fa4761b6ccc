// Several tokens per warp: a team of L lanes holds one token's experts, P of them per lane, in runs of up to
// four neighbours so that rows are read and written 16 bytes at a time. Against a whole warp per token, the
// steps between lanes are fewer and serve several tokens at once.
//
// Experts beyond the last hold -inf, the least of all keys. They come after all others, so that among equals
// they are never chosen.
#pragma once

#include "kernels/router/token.cuh"

namespace pleat::kernels::cuda {

constexpr int kMaxTeamChoices = 8;    // experts of a token that team_choose finds
constexpr int kMaxTeamExperts = 512;  // what teams hold in registers

template <int L, int P>
struct TokenTeam {
  static constexpr int kLanes = L, kElements = P;
  static constexpr int kTokens = 32 / L;      // of a warp
  static constexpr int kRun = P < 4 ? P : 4;  // neighbours in a lane
  static constexpr int kRuns = P / kRun;
  static_assert(P % kRun == 0 && (kRun == 1 || kRun == 4));

  static __device__ int lane() { return threadIdx.x % L; }
  static __device__ int token() { return threadIdx.x % 32 / L; }  // within the warp
  static __device__ int expert(int j) { return kRun * (L * (j / kRun) + lane()) + j % kRun; }
};

template <int L, class T>
__device__ inline T team_sum(T x) {
#pragma unroll
  for (int step = L / 2; step > 0; step /= 2) x += __shfl_xor_sync(kAll, x, step);
  return x;
}

// NaN is passed over.
template <int L>
__device__ inline float team_max(float x) {
#pragma unroll
  for (int step = L / 2; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(kAll, x, step));
  return x;
}

// Whether rows of E floats from `at` on can be accessed in runs.
inline bool rows_are_wide(const void* at, int64_t experts) {
  return experts % 4 == 0 && reinterpret_cast<uintptr_t>(at) % 16 == 0;
}

// x[e] for the token's experts, -inf beyond the last and everywhere unless `there`. `wide`: rows_are_wide.
template <class T>
__device__ inline void load_row(const float* row, int num_experts, bool wide, bool there,
                                float (&x)[T::kElements]) {
  constexpr int P = T::kRuns;
  PLEAT_EACH(r, P) {
    const int first = T::expert(r * T::kRun);
    if (T::kRun == 4 && wide) {
      float4 run = {-kInfinity, -kInfinity, -kInfinity, -kInfinity};
      if (there && first < num_experts) run = *reinterpret_cast<const float4*>(row + first);
      x[4 * r] = run.x, x[4 * r + 1] = run.y, x[4 * r + 2] = run.z, x[4 * r + 3] = run.w;
    } else {
#pragma unroll
      for (int i = 0; i < T::kRun; ++i)
        x[T::kRun * r + i] = there && first + i < num_experts ? row[first + i] : -kInfinity;
    }
  }
}

template <class T>
__device__ inline void store_row(float* row, int num_experts, bool wide, const float (&x)[T::kElements]) {
  constexpr int P = T::kRuns;
  PLEAT_EACH(r, P) {
    const int first = T::expert(r * T::kRun);
    if (T::kRun == 4 && wide) {
      if (first < num_experts)
        *reinterpret_cast<float4*>(row + first) = {x[4 * r], x[4 * r + 1], x[4 * r + 2], x[4 * r + 3]};
    } else {
#pragma unroll
      for (int i = 0; i < T::kRun; ++i)
        if (first + i < num_experts) row[first + i] = x[T::kRun * r + i];
    }
  }
}

// router_exp, bit by bit, for what is not positive.
__device__ inline float router_exp_below(float x) {
  const float y = router_exp_inside(x);
  float otherwise;  // 0, or NaN of NaN
  asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(otherwise) : "f"(x));
  return x >= -0x1.5d589ep6f ? y : otherwise;
}

// float(1 / sum) for a sum between 1 and kMaxExperts, or NaN: an approximation and two steps that double its
// digits, up to one rounding of a double what the division gives.
__device__ inline float inverse_of_sum(double sum) {
  float guess;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(guess) : "f"(static_cast<float>(sum)));
  double inverse = guess;
  inverse = fma(inverse, fma(-sum, inverse, 1.0), inverse);
  inverse = fma(inverse, fma(-sum, inverse, 1.0), inverse);
  return static_cast<float>(inverse);
}

struct SoftmaxOf {
  float largest, inverse;
  double sum;
  __device__ float operator()(float x) const { return router_exp_below(__fsub_rn(x, largest)) * inverse; }
  __device__ double log_sum() const { return static_cast<double>(largest) + log(sum); }
};

// s = softmax of the team's x, in place if s is x; a NaN makes all NaN.
template <class T>
__device__ inline SoftmaxOf team_softmax(const float (&x)[T::kElements], float (&s)[T::kElements]) {
  constexpr int P = T::kElements;
  SoftmaxOf of;
  of.largest = x[0];
  PLEAT_EACH(j, P) of.largest = fmaxf(of.largest, x[j]);
  of.largest = team_max<T::kLanes>(of.largest);
  double sum = 0;
  PLEAT_EACH(j, P) {
    s[j] = router_exp_below(__fsub_rn(x[j], of.largest));
    sum += static_cast<double>(s[j]);
  }
  of.sum = team_sum<T::kLanes>(sum);
  of.inverse = inverse_of_sum(of.sum);
  PLEAT_EACH(j, P) s[j] *= of.inverse;
  return of;
}

// rank_of_key in fewer steps.
__device__ inline uint32_t rank_of_logit(float x) {
  const int bits = __float_as_int(fmaxf(x, -kInfinity) + 0.0f);
  return static_cast<uint32_t>(bits) ^ (static_cast<uint32_t>(bits >> 31) | 0x80000000u);
}
// For keys that are not negative. NaN ranks above all: those of a softmax are NaN together.
__device__ inline uint32_t rank_of_share(float x) { return __float_as_uint(x) | 0x80000000u; }

__device__ inline void put_larger_first(uint32_t& a, uint32_t& b) {
  const uint32_t larger = max(a, b);
  b = min(a, b);
  a = larger;
}

// Descending order of eight, by a network of 19 comparisons.
__device__ inline void sort_eight(uint32_t (&a)[8]) {
  constexpr int kPairs[19][2] = {{0, 2}, {1, 3}, {4, 6}, {5, 7}, {0, 4}, {1, 5}, {2, 6},
                                 {3, 7}, {0, 1}, {2, 3}, {4, 5}, {6, 7}, {2, 4}, {3, 5},
                                 {1, 4}, {3, 6}, {1, 2}, {3, 4}, {5, 6}};
#pragma unroll
  for (int i = 0; i < 19; ++i) put_larger_first(a[kPairs[i][0]], a[kPairs[i][1]]);
}

// a: the eight largest of a and b, which are in descending order, in that order. The larger ones of a and b
// turned round rise and fall; three rounds sort such a list.
__device__ inline void keep_larger(uint32_t (&a)[8], const uint32_t (&b)[8]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) a[i] = max(a[i], b[7 - i]);
#pragma unroll
  for (int step = 4; step > 0; step /= 2)
#pragma unroll
    for (int i = 0; i < 8; ++i)
      if (!(i & step)) put_larger_first(a[i], a[i + step]);
}

// The k-th largest rank of the team, k at most 8.
template <class T>
__device__ inline uint32_t team_kth_largest(const uint32_t (&rank)[T::kElements], int k) {
  constexpr int P = T::kElements;
  uint32_t top[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) top[i] = i < P ? rank[i < P ? i : 0] : 0;
  if (P > 1) sort_eight(top);
#pragma unroll
  for (int first = 8; first < P; first += 8) {
    uint32_t more[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) more[i] = rank[first + i < P ? first + i : 0];
    sort_eight(more);
    keep_larger(top, more);
  }
#pragma unroll
  for (int step = 1; step < T::kLanes; step *= 2) {
    uint32_t other[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) other[i] = __shfl_xor_sync(kAll, top[i], step);
    keep_larger(top, other);
  }
  uint32_t kth = top[0];
#pragma unroll
  for (int i = 1; i < 8; ++i) kth = k > i ? top[i] : kth;
  return kth;
}

// Inclusive sums over the team's lanes.
template <class T>
__device__ inline uint32_t team_scan(uint32_t x) {
#pragma unroll
  for (int step = 1; step < T::kLanes; step *= 2) {
    const uint32_t other = __shfl_up_sync(kAll, x, step, T::kLanes);
    if (T::lane() >= step) x += other;
  }
  return x;
}

// Sets ranks equal to `kth` to 0 behind the lowest experts that make k with those above it.
template <class T>
__device__ inline void drop_last_equals(uint32_t (&rank)[T::kElements], uint32_t kth, int k) {
  int above = 0;
#pragma unroll
  for (int j = 0; j < T::kElements; ++j) above += rank[j] > kth;
  int left = k - team_sum<T::kLanes>(above);
#pragma unroll
  for (int r = 0; r < T::kRuns; ++r) {
    uint32_t equals = 0;
#pragma unroll
    for (int i = 0; i < T::kRun; ++i) equals += rank[r * T::kRun + i] == kth;
    const uint32_t upto = team_scan<T>(equals);
    int at = static_cast<int>(upto - equals);
#pragma unroll
    for (int i = 0; i < T::kRun; ++i) {
      uint32_t& mine = rank[r * T::kRun + i];
      if (mine == kth && at++ >= left) mine = 0;
    }
    left -= static_cast<int>(__shfl_sync(kAll, upto, T::kLanes - 1, T::kLanes));
  }
}

// Which experts a team takes: those of at least rank `least`. Byte r of `slots` is the place of the first
// taken of this lane's run r among all taken, in ascending order.
struct Taken {
  uint32_t least, slots;
};

// Takes the k largest ranks, of equal ones the lowest experts; k at most 8. May set ranks to 0. No rank may
// be 0 before. All lanes of the warp take part.
template <class T>
__device__ inline Taken team_choose(uint32_t (&rank)[T::kElements], int k) {
  static_assert(T::kRuns <= 4 && T::kRun * T::kLanes < 256, "counts of runs are bytes");
  Taken taken;
  taken.least = team_kth_largest<T>(rank, k);
  for (bool exact = false;; exact = true) {
    uint32_t counts = 0;
#pragma unroll
    for (int j = 0; j < T::kElements; ++j)
      if (rank[j] >= taken.least) counts += 1u << 8 * (j / T::kRun);
    const uint32_t upto = team_scan<T>(counts);
    const uint32_t all = __shfl_sync(kAll, upto, T::kLanes - 1, T::kLanes);
    taken.slots = upto - counts + all * 0x01010100u;  // and the runs before, of all lanes
    if (exact || __all_sync(kAll, __dp4a(all, 0x01010101u, 0u) == static_cast<uint32_t>(k))) return taken;
    drop_last_equals<T>(rank, taken.least, k);
  }
}

// Of a warp, in shared memory.
template <class T>
struct TeamRoom {
  int experts[T::kTokens][kMaxTeamChoices];
};

// Gives each of a team's first k lanes one of the taken experts, in ascending order; -1 to the others. All
// lanes of the warp take part.
template <class T>
__device__ inline int taken_expert(const uint32_t (&rank)[T::kElements], const Taken& taken, int k,
                                   TeamRoom<T>& room) {
  int* slots = room.experts[T::token()];
#pragma unroll
  for (int r = 0; r < T::kRuns; ++r) {
    int* slot = slots + (taken.slots >> 8 * r & 255);
#pragma unroll
    for (int j = r * T::kRun; j < (r + 1) * T::kRun; ++j)
      if (rank[j] >= taken.least) *slot++ = T::expert(j);
  }
  __syncwarp();
  const int expert = T::lane() < k ? slots[T::lane()] : -1;
  __syncwarp();  // the next tokens may write
  return expert;
}

// Calls f with a TokenTeam for E experts, at most kMaxTeamExperts.
template <class F>
void with_token_team(int64_t experts, F&& f) {
  if (experts <= 8)
    f(TokenTeam<8, 1>{});
  else if (experts <= 32)
    f(TokenTeam<8, 4>{});
  else if (experts <= 64)
    f(TokenTeam<8, 8>{});
  else if (experts <= 128)
    f(TokenTeam<8, 16>{});
  else if (experts <= 256)
    f(TokenTeam<16, 16>{});
  else
    f(TokenTeam<32, 16>{});
}

}  // namespace pleat::kernels::cuda
