// Both gradients of the gate, rows of whole 16 bytes: a team of warps holds its row in registers between the
// dot products and what is made of them, so every array is read or written once, and has its next row on the
// way meanwhile. The weight comes from the nearest cache.
#pragma once

#include "device/cuda/check.h"
#include "kernels/cuda/bind.h"
#include "kernels/cuda/column_sum.cuh"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/team.cuh"

namespace pleat::kernels::cuda {

template <class T>
struct GateArgs {
  const T *dout, *x, *w, *y;
  T *out, *dx, *dy;     // out: forward; dy may be dout
  float* coefficients;  // of backward_weight
  bool accumulate;      // into dx
  int64_t rows, width;
};

__device__ inline float gate_of(float x) { return 1.0f / (1.0f + expf(-x)); }

// With kWeights every team leaves its sums of c x in parts[team]; else dx and dy are written.
template <class T, int kPer, class Team, bool kWeights>
__global__ void __launch_bounds__(Team::kThreads, blocks_for(kWeights ? 640 : 768, Team::kThreads))
    gate_backward_held(GateArgs<T> a, int vecs, float* parts) {
  using V = Wide<T>;
  constexpr bool kAhead = kPer <= 2;  // more would not leave registers for a row on the way
  struct Row {
    V dout[kPer], x[kPer], y[kPer];
  };
  const auto fetch = [&](int64_t row) {
    Row out;
    const int64_t at = row * a.width;
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      const int v = Team::lane() + i * Team::kLanes;
      const bool inside = v < vecs && row < a.rows;
      out.x[i] = inside ? V::load(a.x + at + v * V::kSize) : V::zero();
      out.dout[i] = inside ? V::load(a.dout + at + v * V::kSize) : V::zero();
      out.y[i] = inside ? V::load(a.y + at + v * V::kSize) : V::zero();
    }
    return out;
  };
  const auto weight = [&](int v, float(&w)[V::kSize]) {
    (v < vecs ? V::load(a.w + v * V::kSize) : V::zero()).get(w);
  };
  float sums[kWeights ? kPer : 1][V::kSize] = {};
  Row next;
  if constexpr (kAhead) next = fetch(Team::index());
  for (int64_t row = Team::index(); row < a.rows; row += Team::count()) {
    Row now;
    if constexpr (kAhead) {
      now = next;
      next = fetch(row + Team::count());
    } else {
      now = fetch(row);
    }
    V old[kPer];  // of dx, on the way during the dot products
    if constexpr (!kWeights) {
#pragma unroll
      for (int i = 0; i < kPer; ++i) {
        const int v = Team::lane() + i * Team::kLanes;
        old[i] = a.accumulate && v < vecs ? V::load(a.dx + row * a.width + v * V::kSize) : V::zero();
      }
    }
    float logit = 0, product = 0;
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      float x[V::kSize], w[V::kSize], d[V::kSize], y[V::kSize];
      now.x[i].get(x);
      weight(Team::lane() + i * Team::kLanes, w);
      now.dout[i].get(d);
      now.y[i].get(y);
#pragma unroll
      for (int j = 0; j < V::kSize; ++j) {
        logit += x[j] * w[j];
        product += d[j] * y[j];
      }
      now.x[i].forget();
      now.dout[i].forget();
    }
    const float gate = gate_of(Team::sum(logit, 0)), slope = Team::sum(product, 1) * gate * (1.0f - gate);
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      const int v = Team::lane() + i * Team::kLanes;
      if constexpr (kWeights) {
        float x[V::kSize];
        now.x[i].get(x);
#pragma unroll
        for (int j = 0; j < V::kSize; ++j) sums[i][j] += slope * x[j];
      } else {
        if (v >= vecs) continue;
        float w[V::kSize], d[V::kSize], o[V::kSize];
        weight(v, w);
        now.dout[i].get(d);
        old[i].get(o);
#pragma unroll
        for (int j = 0; j < V::kSize; ++j) {
          w[j] = o[j] + slope * w[j];
          d[j] = gate * d[j];
        }
        now.x[i].set(w);
        now.x[i].store(a.dx + row * a.width + v * V::kSize);
        now.dout[i].set(d);
        now.dout[i].store(a.dy + row * a.width + v * V::kSize);
      }
    }
  }
  if constexpr (kWeights) {
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      const int v = Team::lane() + i * Team::kLanes;
      if (v >= vecs) continue;
      float* to = parts + Team::index() * a.width + v * V::kSize;
#pragma unroll
      for (int j = 0; j < V::kSize; j += 4)
        *reinterpret_cast<float4*>(to + j) =
            make_float4(sums[i][j], sums[i][j + 1], sums[i][j + 2], sums[i][j + 3]);
    }
  }
}

// No launch where a row is too wide to hold.
template <class T>
CudaLaunch gate_backward_input_held(const GateArgs<T>& a, device::cuda::Lane& lane) {
  CudaLaunch out;
  with_team<2>(a.width / kWide<T>, [&](auto per, auto team) {
    using Team = decltype(team);
    const auto kernel = gate_backward_held<T, decltype(per)::value, Team, false>;
    const unsigned blocks = resident_blocks(kernel, Team::kThreads, ceil_div(a.rows, Team::kPerBlock));
    out = [=, stream = lane.stream()] {
      if (blocks == 0) return;
      kernel<<<blocks, Team::kThreads, 0, stream>>>(a, static_cast<int>(a.width / kWide<T>), nullptr);
      PLEAT_CUDA_LAUNCHED();
    };
  });
  return out;
}

// No launch where a row is too wide to hold, or there is none.
template <class T>
CudaLaunch gate_backward_weight_held(const GateArgs<T>& a, const SumTarget& to, const Invocation& call,
                                     device::cuda::Lane& lane) {
  CudaLaunch out;
  if (a.rows == 0) return out;
  with_team<2>(a.width / kWide<T>, [&](auto per, auto team) {
    using Team = decltype(team);
    const auto kernel = gate_backward_held<T, decltype(per)::value, Team, true>;
    const unsigned blocks = resident_blocks(kernel, Team::kThreads, ceil_div(a.rows, Team::kPerBlock));
    const int teams = static_cast<int>(blocks) * Team::kPerBlock;
    auto* const parts =
        reinterpret_cast<float*>(call.scratch_for(teams * a.width * static_cast<int64_t>(sizeof(float))));
    out = [=, stream = lane.stream()] {
      kernel<<<blocks, Team::kThreads, 0, stream>>>(a, static_cast<int>(a.width / kWide<T>), parts);
      PLEAT_CUDA_LAUNCHED();
      launch_reduce_parts(stream, parts, teams, a.width, to);
    };
  });
  return out;
}

}  // namespace pleat::kernels::cuda
