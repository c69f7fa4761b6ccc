// Root-mean-square norm on the GPU. A team of warps holds its row in registers between the sum and the
// result, so every array is read or written once, and has its next row on the way meanwhile; the weights come
// from the nearest cache. Widths that are no multiple of 16 bytes, or too wide to hold, take a loop over the
// row twice.
#include "kernels/rmsnorm/rmsnorm_cuda.h"

#include "device/cuda/check.h"
#include "kernels/cuda/column_sum.cuh"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/team.cuh"
#include "kernels/cuda/types.cuh"

namespace pleat::kernels {
namespace {

using namespace cuda;

template <class T, int kPer, class Team>
__global__ void __launch_bounds__(Team::kThreads, blocks_for(1024, Team::kThreads))
    forward_held(const T* x, const T* w, T* y, float* rstd, int64_t rows, int vecs, float eps) {
  using V = Wide<T>;
  const int64_t width = static_cast<int64_t>(vecs) * V::kSize;
  V next[kPer];
  const auto fetch = [&](int64_t row) {
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      const int v = Team::lane() + i * Team::kLanes;
      next[i] = v < vecs && row < rows ? V::load(x + row * width + v * V::kSize) : V::zero();
    }
  };
  fetch(Team::index());
  int phase = 0;
  for (int64_t row = Team::index(); row < rows; row += Team::count(), phase ^= 1) {
    V in[kPer];
#pragma unroll
    for (int i = 0; i < kPer; ++i) in[i] = next[i];
    fetch(row + Team::count());
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      float a[V::kSize];
      in[i].get(a);
#pragma unroll
      for (int j = 0; j < V::kSize; ++j) sum += a[j] * a[j];
      in[i].forget();
    }
    const float scale = 1.0f / sqrtf(Team::sum(sum, phase) / static_cast<float>(width) + eps);
    if (Team::lane() == 0) rstd[row] = scale;
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      const int v = Team::lane() + i * Team::kLanes;
      if (v >= vecs) continue;
      float a[V::kSize], b[V::kSize];
      in[i].get(a);
      V::load(w + v * V::kSize).get(b);
#pragma unroll
      for (int j = 0; j < V::kSize; ++j) a[j] = a[j] * scale * b[j];
      in[i].set(a);
      in[i].store(y + row * width + v * V::kSize);
    }
  }
}

constexpr int kLoopThreads = 256;

template <class T>
__global__ void __launch_bounds__(kLoopThreads)
    forward_loop(const T* x, const T* w, T* y, float* rstd, int width, float eps) {
  const int64_t row = blockIdx.x;
  const T* from = x + row * width;
  float sum = 0;
  for (int j = threadIdx.x; j < width; j += kLoopThreads) sum += to_float(from[j]) * to_float(from[j]);
  const float scale = 1.0f / sqrtf(block_sum<kLoopThreads>(sum) / static_cast<float>(width) + eps);
  if (threadIdx.x == 0) rstd[row] = scale;
  for (int j = threadIdx.x; j < width; j += kLoopThreads)
    y[row * width + j] = from_float<T>(to_float(from[j]) * scale * to_float(w[j]));
}

template <class T>
struct BackwardArgs {
  const T *dy, *x, *w;
  const float* rstd;
  const T* dresidual;  // may be null, may be dx
  T* dx;
  bool accumulate;
  int64_t rows, width;
};

// With kWeights every team leaves its sums of dy x rstd in parts[team].
template <class T, int kPer, class Team, bool kWeights>
__global__ void __launch_bounds__(Team::kThreads, blocks_for(kWeights ? 512 : 640, Team::kThreads))
    backward_held(BackwardArgs<T> a, int vecs, float* parts) {
  using V = Wide<T>;
  constexpr bool kAhead = kPer <= 2;  // more would not leave registers for a row on the way
  struct Row {
    V dy[kPer], x[kPer], other[kPer];
    float scale;
  };
  float sums[kWeights ? kPer : 1][V::kSize] = {};
  // What is added to the gradient; when there are two, dx itself is read late.
  const T* others = a.dresidual ? a.dresidual : a.accumulate ? a.dx : nullptr;
  const bool both = a.dresidual && a.accumulate;
  const auto fetch = [&](int64_t row) {
    Row out;
    const int64_t at = row * a.width;
    out.scale = row < a.rows ? a.rstd[row] : 0.0f;
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      const int v = Team::lane() + i * Team::kLanes;
      const bool inside = v < vecs && row < a.rows;
      out.dy[i] = inside ? V::load(a.dy + at + v * V::kSize) : V::zero();
      out.x[i] = inside ? V::load(a.x + at + v * V::kSize) : V::zero();
      out.other[i] = inside && others ? V::load(others + at + v * V::kSize) : V::zero();
    }
    return out;
  };
  Row next;
  if constexpr (kAhead) next = fetch(Team::index());
  int phase = 0;
  for (int64_t row = Team::index(); row < a.rows; row += Team::count(), phase ^= 1) {
    Row now;
    if constexpr (kAhead) {
      now = next;
      next = fetch(row + Team::count());
    } else {
      now = fetch(row);
    }
    const int64_t at = row * a.width;
    const float scale = now.scale;
    float dot = 0;
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      const int v = Team::lane() + i * Team::kLanes;
      float d[V::kSize], b[V::kSize], w[V::kSize];
      now.dy[i].get(d);
      now.x[i].get(b);
      (v < vecs ? V::load(a.w + v * V::kSize) : V::zero()).get(w);
#pragma unroll
      for (int j = 0; j < V::kSize; ++j) {
        const float product = d[j] * b[j];
        dot += product * w[j];
        if constexpr (kWeights) sums[i][j] += product * scale;
      }
      now.dy[i].forget();
      now.x[i].forget();
    }
    const float back = scale * scale * scale * (Team::sum(dot, phase) / static_cast<float>(a.width));
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      const int v = Team::lane() + i * Team::kLanes;
      if (v >= vecs) continue;
      float d[V::kSize], b[V::kSize], w[V::kSize], o[V::kSize];
      now.dy[i].get(d);
      now.x[i].get(b);
      V::load(a.w + v * V::kSize).get(w);
      now.other[i].get(o);
#pragma unroll
      for (int j = 0; j < V::kSize; ++j) d[j] = o[j] + (d[j] * w[j] * scale - b[j] * back);
      if (both) {
        V::load(a.dx + at + v * V::kSize).get(o);
#pragma unroll
        for (int j = 0; j < V::kSize; ++j) d[j] += o[j];
      }
      now.dy[i].set(d);
      now.dy[i].store(a.dx + at + v * V::kSize);
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

template <class T>
__global__ void __launch_bounds__(kLoopThreads) backward_loop(BackwardArgs<T> a) {
  const int64_t at = blockIdx.x * a.width;
  const float scale = a.rstd[blockIdx.x];
  float dot = 0;
  for (int64_t j = threadIdx.x; j < a.width; j += kLoopThreads)
    dot += to_float(a.dy[at + j]) * to_float(a.x[at + j]) * to_float(a.w[j]);
  const float back = scale * scale * scale * (block_sum<kLoopThreads>(dot) / static_cast<float>(a.width));
  for (int64_t j = threadIdx.x; j < a.width; j += kLoopThreads) {
    float sum = to_float(a.dy[at + j]) * to_float(a.w[j]) * scale - to_float(a.x[at + j]) * back;
    if (a.dresidual) sum = to_float(a.dresidual[at + j]) + sum;
    if (a.accumulate) sum = to_float(a.dx[at + j]) + sum;
    a.dx[at + j] = from_float<T>(sum);
  }
}

// Values of the weights' gradient for launch_column_sums.
template <class T, int N>
struct WeightTerms {
  const T *dy, *x;
  const float* rstd;
  int64_t width;
  struct Raw {
    Pack<T, N> dy, x;
    float rstd;
  };
  __device__ Raw raw(int64_t row, int64_t column) const {
    return {Pack<T, N>::load(dy + row * width + column), Pack<T, N>::load(x + row * width + column),
            rstd[row]};
  }
  __device__ void add(const Raw& r, float (&sums)[N]) const {
    float d[N], b[N];
    r.dy.get(d);
    r.x.get(b);
#pragma unroll
    for (int j = 0; j < N; ++j) sums[j] += d[j] * b[j] * r.rstd;
  }
};

template <class T>
CudaLaunch forward(const Invocation& call, device::cuda::Lane& lane) {
  const signature::rmsnorm::Forward<Arg> args(call.args);
  const T *x = args.x.as<T>(), *w = args.w.as<T>();
  T* y = args.y.as<T>();
  float* rstd = args.rstd.as<float>();
  const int64_t rows = args.x.dim(0), width = args.x.dim(1);
  const auto eps = static_cast<float>(call.attr("eps"));
  CudaLaunch out;
  if (width % kWide<T> == 0 && all_aligned({x, w, y}))
    with_team<4>(width / kWide<T>, [&](auto per, auto team) {
      using Team = decltype(team);
      const auto kernel = forward_held<T, decltype(per)::value, Team>;
      const unsigned blocks = resident_blocks(kernel, Team::kThreads, ceil_div(rows, Team::kPerBlock));
      out = [=, stream = lane.stream(), vecs = static_cast<int>(width / kWide<T>)] {
        if (blocks == 0) return;
        kernel<<<blocks, Team::kThreads, 0, stream>>>(x, w, y, rstd, rows, vecs, eps);
        PLEAT_CUDA_LAUNCHED();
      };
    });
  if (!out)
    out = [=, stream = lane.stream()] {
      if (rows == 0) return;
      forward_loop<T><<<static_cast<unsigned>(rows), kLoopThreads, 0, stream>>>(x, w, y, rstd,
                                                                                static_cast<int>(width), eps);
      PLEAT_CUDA_LAUNCHED();
    };
  return out;
}

template <class T, class Args>
BackwardArgs<T> backward_args(const Args& args) {
  return {args.dy.template as<T>(),
          args.x.template as<T>(),
          args.w.template as<T>(),
          args.rstd.template as<float>(),
          args.dresidual.template as<T>(),
          args.dx.template as<T>(),
          args.dx.into() == Into::Accumulate,
          args.dy.dim(0),
          args.dy.dim(1)};
}
template <class T>
bool holds(const BackwardArgs<T>& a) {
  return a.width % kWide<T> == 0 && all_aligned({a.dy, a.x, a.w, a.dresidual, a.dx});
}

template <class T>
CudaLaunch backward_input(const BackwardArgs<T>& a, device::cuda::Lane& lane) {
  CudaLaunch out;
  if (holds(a))
    with_team<2>(a.width / kWide<T>, [&](auto per, auto team) {
      using Team = decltype(team);
      const auto kernel = backward_held<T, decltype(per)::value, Team, false>;
      const unsigned blocks = resident_blocks(kernel, Team::kThreads, ceil_div(a.rows, Team::kPerBlock));
      out = [=, stream = lane.stream()] {
        if (blocks == 0) return;
        kernel<<<blocks, Team::kThreads, 0, stream>>>(a, static_cast<int>(a.width / kWide<T>), nullptr);
        PLEAT_CUDA_LAUNCHED();
      };
    });
  if (!out)
    out = [=, stream = lane.stream()] {
      if (a.rows == 0) return;
      backward_loop<T><<<static_cast<unsigned>(a.rows), kLoopThreads, 0, stream>>>(a);
      PLEAT_CUDA_LAUNCHED();
    };
  return out;
}

template <class T, int N>
CudaLaunch backward_weight_by(const WeightTerms<T, N>& terms, int64_t rows, const Arg& dw,
                              const Invocation& call, device::cuda::Lane& lane) {
  auto* const parts = reinterpret_cast<float*>(call.scratch_for(column_sum_bytes(rows, terms.width)));
  return [=, stream = lane.stream(), to = SumTarget(dw)] {
    launch_column_sums<N>(stream, terms, rows, parts, to);
  };
}

template <class T>
CudaLaunch backward_weight(const T* dy, const T* x, const float* rstd, int64_t rows, int64_t width,
                           const Arg& dw, const Invocation& call, device::cuda::Lane& lane) {
  if (width % kWide<T> == 0 && all_aligned({dy, x}))
    return backward_weight_by(WeightTerms<T, kWide<T>>{dy, x, rstd, width}, rows, dw, call, lane);
  return backward_weight_by(WeightTerms<T, 1>{dy, x, rstd, width}, rows, dw, call, lane);
}

template <class T>
CudaLaunch backward_both(const Invocation& call, device::cuda::Lane& lane) {
  const signature::rmsnorm_back::BackwardInput<Arg> args(call.args);
  const auto a = backward_args<T>(args);
  CudaLaunch out;
  if (holds(a) && a.rows > 0)
    with_team<2>(a.width / kWide<T>, [&](auto per, auto team) {
      using Team = decltype(team);
      const auto kernel = backward_held<T, decltype(per)::value, Team, true>;
      const unsigned blocks = resident_blocks(kernel, Team::kThreads, ceil_div(a.rows, Team::kPerBlock));
      const int teams = static_cast<int>(blocks) * Team::kPerBlock;
      auto* const parts =
          reinterpret_cast<float*>(call.scratch_for(teams * a.width * static_cast<int64_t>(sizeof(float))));
      out = [=, stream = lane.stream(), dw = SumTarget(args.dw)] {
        kernel<<<blocks, Team::kThreads, 0, stream>>>(a, static_cast<int>(a.width / kWide<T>), parts);
        PLEAT_CUDA_LAUNCHED();
        launch_reduce_parts(stream, parts, teams, a.width, dw);
      };
    });
  if (!out) {
    // dx may be dresidual but never dy or x: the order of the two does not matter.
    const CudaLaunch input = backward_input<T>(a, lane);
    const CudaLaunch weight = backward_weight<T>(a.dy, a.x, a.rstd, a.rows, a.width, args.dw, call, lane);
    out = [=] {
      weight();
      input();
    };
  }
  return out;
}

CudaLaunch prepare_forward(const Invocation& call, device::cuda::Lane& lane) {
  CudaLaunch out;
  with_float(signature::rmsnorm::Forward(call.args).x.dtype,
             [&](auto zero) { out = forward<decltype(zero)>(call, lane); });
  return out;
}

CudaLaunch prepare_backward_input(const Invocation& call, device::cuda::Lane& lane) {
  const signature::rmsnorm::BackwardInput<Arg> args(call.args);
  CudaLaunch out;
  with_float(args.dy.dtype, [&](auto zero) {
    using T = decltype(zero);
    out = backward_input<T>(backward_args<T>(args), lane);
  });
  return out;
}

CudaLaunch prepare_backward_weight(const Invocation& call, device::cuda::Lane& lane) {
  const signature::rmsnorm::BackwardWeight<Arg> args(call.args);
  CudaLaunch out;
  if (!is_stored(args.dw.dtype)) return out;
  with_float(args.dy.dtype, [&](auto zero) {
    using T = decltype(zero);
    out = backward_weight<T>(args.dy.as<T>(), args.x.as<T>(), args.rstd.as<float>(), args.dy.dim(0),
                             args.dy.dim(1), args.dw, call, lane);
  });
  return out;
}

}  // namespace

CudaLaunch prepare_rmsnorm_backward(const Invocation& call, device::cuda::Lane& lane) {
  const signature::rmsnorm_back::BackwardInput<Arg> args(call.args);
  CudaLaunch out;
  if (!is_stored(args.dw.dtype)) return out;
  with_float(args.dy.dtype, [&](auto zero) { out = backward_both<decltype(zero)>(call, lane); });
  return out;
}

namespace {

constexpr CudaBinding kTable[] = {
    row<signature::rmsnorm::Forward>(prepare_forward),
    row<signature::rmsnorm::BackwardInput>(prepare_backward_input),
    row<signature::rmsnorm::BackwardWeight>(prepare_backward_weight),
    row<signature::rmsnorm_back::BackwardInput>(prepare_rmsnorm_backward),
};

}  // namespace

std::span<const CudaBinding> rmsnorm_cuda_bindings() { return kTable; }

}  // namespace pleat::kernels
