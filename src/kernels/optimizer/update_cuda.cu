// AdamW, its rounding to bf16, and the router-bias rule on the GPU: the kernels that write persistent values,
// each obeying `commit`. Pure streams: a thread takes eight elements of every array at a time, all loads
// before the first use; a grid that stays on the device shares the cost of the scalars.
#include "device/cuda/check.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/team.cuh"
#include "kernels/math/coords.h"
#include "kernels/math/require.h"
#include "kernels/optimizer/optimizer_cuda.h"

namespace pleat::kernels {
namespace {

using namespace cuda;

constexpr int kThreads = 256, kRun = 8;

// kRun elements as floats, in accesses of at most 16 bytes.
template <class T, int N>
struct Run {
  static constexpr int kPart = N < kWide<T> ? N : kWide<T>, kParts = N / kPart;
  Pack<T, kPart> part[kParts];
  __device__ void load(const T* from) {
#pragma unroll
    for (int i = 0; i < kParts; ++i) part[i] = Pack<T, kPart>::load(from + i * kPart);
  }
  __device__ void get(float (&to)[N]) const {
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      float a[kPart];
      part[i].get(a);
#pragma unroll
      for (int j = 0; j < kPart; ++j) to[i * kPart + j] = a[j];
    }
  }
  __device__ void put(const float (&from)[N], T* to) {
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      float a[kPart];
#pragma unroll
      for (int j = 0; j < kPart; ++j) a[j] = from[i * kPart + j];
      part[i].set(a);
      part[i].store(to + i * kPart);
    }
  }
};

struct Attributes {
  double beta1, beta2, eps, weight_decay, lr_mult;
};
struct Scalars {
  float gradient_scale, beta1, beta2, one_minus_beta1, one_minus_beta2, decay, rate, inverse_root2, eps;
};

// x^n by squaring; a step is a whole number.
__device__ inline double power(double x, double n) {
  double result = 1;
  for (auto left = static_cast<uint64_t>(n); left != 0; left >>= 1, x *= x)
    if (left & 1) result *= x;
  return result;
}

__device__ inline Scalars scalars_of(const Attributes& a, const double* hyper, const double* grad_scale) {
  const double lr = hyper[0] * a.lr_mult, step = hyper[1];
  return {static_cast<float>(grad_scale[1]),
          static_cast<float>(a.beta1),
          static_cast<float>(a.beta2),
          static_cast<float>(1 - a.beta1),
          static_cast<float>(1 - a.beta2),
          static_cast<float>(1 - lr * a.weight_decay),
          static_cast<float>(lr / (1 - power(a.beta1, step))),
          static_cast<float>(1 / sqrt(1 - power(a.beta2, step))),
          static_cast<float>(a.eps)};
}

// The same operations on an element wherever it lies, so pieces get the bits of the whole.
__device__ inline void step(const Scalars& s, float g, float& w, float& m, float& v) {
  const float gradient = g * s.gradient_scale;
  m = fmaf(s.beta1, m, s.one_minus_beta1 * gradient);
  v = fmaf(s.beta2, v, s.one_minus_beta2 * (gradient * gradient));
  w = fmaf(w, s.decay, -(s.rate * m / fmaf(sqrtf(v), s.inverse_root2, s.eps)));
}

template <class G, class M, class V>
struct AdamwArgs {
  const G* g;
  const double *hyper, *grad_scale;
  const int32_t* commit;
  const int64_t* place;  // or null: g, m and v are whole
  float* w;
  M* m;
  V* v;
  bf16* low;               // or null
  int64_t size, elements;  // of g, m and v; of the whole
  bool w_is_piece;
};

template <class G, class M, class V, bool kRound, int N>
__device__ inline void update_run(const AdamwArgs<G, M, V>& p, const Scalars& s, float* w, bf16* low,
                                  int64_t i) {
  Run<G, N> g_run;
  Run<float, N> w_run;
  Run<M, N> m_run;
  Run<V, N> v_run;
  g_run.load(p.g + i);
  w_run.load(w + i);
  m_run.load(p.m + i);
  v_run.load(p.v + i);
  float g[N], ws[N], m[N], v[N];
  g_run.get(g);
  w_run.get(ws);
  m_run.get(m);
  v_run.get(v);
#pragma unroll
  for (int j = 0; j < N; ++j) step(s, g[j], ws[j], m[j], v[j]);
  w_run.put(ws, w + i);
  m_run.put(m, p.m + i);
  v_run.put(v, p.v + i);
  if constexpr (kRound) {
    Run<bf16, N> low_run;
    low_run.put(ws, low + i);
  }
}

template <class G, class M, class V, bool kRound>
__global__ void __launch_bounds__(kThreads) update(AdamwArgs<G, M, V> p, Attributes attributes) {
  __shared__ Scalars shared;
  if (*p.commit == 0) return;
  if (threadIdx.x == 0) shared = scalars_of(attributes, p.hyper, p.grad_scale);
  __syncthreads();
  const Scalars s = shared;
  const int64_t first = p.place ? min(p.elements, *p.place * p.size) : 0;
  const int64_t count = min(p.size, p.elements - first);
  float* w = p.w_is_piece ? p.w : p.w + first;
  bf16* low = kRound ? p.low + first : nullptr;
  const int64_t thread = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x;
  const int64_t threads = gridDim.x * static_cast<int64_t>(kThreads);
  const uintptr_t addresses = reinterpret_cast<uintptr_t>(p.g) | reinterpret_cast<uintptr_t>(w) |
                              reinterpret_cast<uintptr_t>(p.m) | reinterpret_cast<uintptr_t>(p.v) |
                              reinterpret_cast<uintptr_t>(low);
  const int64_t runs = addresses % 16 == 0 ? count / kRun : 0;
  for (int64_t run = thread; run < runs; run += threads)
    update_run<G, M, V, kRound, kRun>(p, s, w, low, run * kRun);
  for (int64_t i = runs * kRun + thread; i < count; i += threads)
    update_run<G, M, V, kRound, 1>(p, s, w, low, i);
}

template <class G, class M, class V, bool kRound>
CudaLaunch launch_update(const AdamwArgs<G, M, V>& p, const Attributes& attributes,
                         device::cuda::Lane& lane) {
  const unsigned blocks =
      resident_blocks(update<G, M, V, kRound>, kThreads, ceil_div(p.size, int64_t{kThreads} * kRun));
  return [=, stream = lane.stream()] {
    if (blocks == 0) return;
    update<G, M, V, kRound><<<blocks, kThreads, 0, stream>>>(p, attributes);
    PLEAT_CUDA_LAUNCHED();
  };
}

// w (and low) may be whole where g, m and v are pieces.
template <bool kRound>
CudaLaunch prepare_update(std::string_view kernel, const Invocation& call, device::cuda::Lane& lane) {
  require_dtype(kernel, "hyper", call[1], tensor::Dtype::F64);
  require_shape(kernel, "hyper", call[1], {4});
  require_dtype(kernel, "grad_scale", call[2], tensor::Dtype::F64);
  require_shape(kernel, "grad_scale", call[2], {2});
  require_dtype(kernel, "commit", call[3], tensor::Dtype::I32);
  require_shape(kernel, "commit", call[3], {1});
  require_coords(kernel, call, call[4]);
  const bool cut = call[4].present;
  if (cut) require_shard(kernel, "g", call, call[0]);
  const int64_t size = call[0].size();
  const Arg& whole = call[kRound ? 8 : 5];
  const bool w_is_piece = !cut || (kRound && call[5].size() == size);
  const auto require_count = [&](std::string_view name, const Arg& arg, int64_t count) {
    if (arg.size() != count)
      base::fail("[{}] argument '{}' has {} elements, needed {}", kernel, name, arg.size(), count);
    require_in_place(kernel, name, arg);
  };
  require_count("m", call[6], size);
  require_count("v", call[7], size);
  require_count("w", call[5], w_is_piece ? size : whole.size());
  if (kRound) require_count("low", call[8], cut ? whole.size() : size);
  const Attributes attributes{call.attr("beta1"), call.attr("beta2"), call.attr("eps"),
                              call.attr("weight_decay"), call.attr("lr_mult")};
  for (auto [key, number] : {std::pair{"beta1", attributes.beta1}, {"beta2", attributes.beta2}})
    if (!(number >= 0 && number < 1))
      base::fail("[{}] attribute '{}' is {}, needed 0 <= {} < 1", kernel, key, number, key);
  for (const char* key : {"eps", "weight_decay", "lr_mult"})
    if (!(call.attr(key) >= 0))
      base::fail("[{}] attribute '{}' is {}, needed 0 or more", kernel, key, call.attr(key));
  CudaLaunch out;
  if (call[5].dtype != tensor::Dtype::F32 || (kRound && whole.dtype != tensor::Dtype::BF16)) return out;
  with_float(call[0].dtype, [&](auto g) {
    with_float(call[6].dtype, [&](auto m) {
      with_float(call[7].dtype, [&](auto v) {
        using G = decltype(g);
        using M = decltype(m);
        using V = decltype(v);
        const AdamwArgs<G, M, V> p{call[0].as<G>(),
                                   call[1].as<double>(),
                                   call[2].as<double>(),
                                   call[3].as<int32_t>(),
                                   cut ? call[4].as<int64_t>() + call.integer("group") : nullptr,
                                   call[5].as<float>(),
                                   call[6].as<M>(),
                                   call[7].as<V>(),
                                   kRound ? static_cast<bf16*>(whole.data) : nullptr,
                                   size,
                                   cut ? whole.size() : size,
                                   w_is_piece};
        out = launch_update<G, M, V, kRound>(p, attributes, lane);
      });
    });
  });
  return out;
}

__global__ void __launch_bounds__(kThreads)
    round_piece(const float* x, bf16* w, int64_t size, int64_t elements, const int64_t* place) {
  const int64_t first = place ? min(elements, *place * size) : 0, count = min(size, elements - first);
  w += first;
  const int64_t i = (blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x) * kRun;
  const bool aligned = (reinterpret_cast<uintptr_t>(x) | reinterpret_cast<uintptr_t>(w)) % 16 == 0;
  if (aligned && i + kRun <= count) {
    Run<float, kRun> from;
    from.load(x + i);
    float a[kRun];
    from.get(a);
    Run<bf16, kRun> to;
    to.put(a, w + i);
  } else {
    for (int64_t j = i; j < i + kRun && j < count; ++j) w[j] = from_float<bf16>(x[j]);
  }
}

__global__ void __launch_bounds__(kThreads)
    move_bias(const int64_t* load, const int32_t* commit, float* bias, int64_t num_experts, float rate) {
  if (*commit == 0) return;
  int64_t sum = 0;
  for (int64_t e = threadIdx.x; e < num_experts; e += kThreads) sum += load[e];
  sum = block_sum<kThreads>(sum);
  for (int64_t e = threadIdx.x; e < num_experts; e += kThreads) {
    const int64_t gap = sum - num_experts * load[e];
    bias[e] += rate * static_cast<float>((gap > 0) - (gap < 0));
  }
}

}  // namespace

CudaLaunch prepare_adamw(const Invocation& call, device::cuda::Lane& lane) {
  return prepare_update<false>("adamw", call, lane);
}

CudaLaunch prepare_adamw_round(const Invocation& call, device::cuda::Lane& lane) {
  return prepare_update<true>("adamw_round", call, lane);
}

CudaLaunch prepare_round_share(const Invocation& call, device::cuda::Lane& lane) {
  require_dtype("round_share", "x", call[0], tensor::Dtype::F32);
  require_coords("round_share", call, call[1]);
  if (call[1].present) require_shard("round_share", "x", call, call[0]);
  require_in_place("round_share", "w", call[2]);
  const int64_t size = call[0].size(), elements = call[2].size();
  if (!call[1].present && size != elements)
    base::fail("[round_share] argument 'w' has {} elements, needed {}", elements, size);
  if (call[2].dtype != tensor::Dtype::BF16) return {};
  return [=, x = static_cast<const float*>(call[0].data), w = call[2].as<bf16>(),
          place = call[1].present ? call[1].as<int64_t>() + call.integer("group") : nullptr,
          stream = lane.stream()] {
    if (size == 0) return;
    round_piece<<<static_cast<unsigned>(ceil_div(size, kThreads * kRun)), kThreads, 0, stream>>>(
        x, w, size, elements, place);
    PLEAT_CUDA_LAUNCHED();
  };
}

CudaLaunch prepare_bias_update(const Invocation& call, device::cuda::Lane& lane) {
  require_rank("bias_update", "load", call[0], 1);
  require_dtype("bias_update", "load", call[0], tensor::Dtype::I64);
  require_dtype("bias_update", "commit", call[1], tensor::Dtype::I32);
  require_shape("bias_update", "commit", call[1], {1});
  require_dtype("bias_update", "bias", call[2], tensor::Dtype::F32);
  require_shape("bias_update", "bias", call[2], {call[0].dim(0)});
  require_in_place("bias_update", "bias", call[2]);
  return
      [load = call[0].as<int64_t>(), commit = call[1].as<int32_t>(), bias = call[2].as<float>(),
       num_experts = call[0].dim(0), rate = static_cast<float>(call.attr("rate")), stream = lane.stream()] {
        move_bias<<<1, kThreads, 0, stream>>>(load, commit, bias, num_experts, rate);
        PLEAT_CUDA_LAUNCHED();
      };
}

}  // namespace pleat::kernels
