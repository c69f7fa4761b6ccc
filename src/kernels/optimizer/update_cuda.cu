// AdamW, on wide and on narrow weights, and the router-bias rule on the GPU: the kernels that write
// persistent values, each obeying `commit`. Pure streams: a thread takes eight elements of every array, all
// loads before the first use. The scalars of the step, which need double precision, are made once by a thread
// of their own.
#include "device/cuda/check.h"
#include "kernels/cuda/bind.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/team.cuh"
#include "kernels/optimizer/adamw.cuh"
#include "tensor/halves.h"

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

template <class G, class W, class M, class V>
struct AdamwArgs {
  const G* g;
  const double *hyper, *grad_scale;
  const int32_t* commit;
  const int64_t* place;  // or null: g, m and v are whole
  W* w;                  // whole
  M* m;
  V* v;
  int16_t* rest;           // of narrow weights, or null
  int64_t size, elements;  // of g, m, v and rest; of w
};

// The weights of a run as floats: floats themselves, or bf16 with their rest.
template <class W, int N>
struct Weights {
  Run<W, N> run;
  __device__ void load(const W* w, const int16_t*) { run.load(w); }
  __device__ void get(float (&to)[N]) const { run.get(to); }
  __device__ void put(const float (&from)[N], W* w, int16_t*) { run.put(from, w); }
};

template <>
struct Weights<bf16, 1> {
  uint16_t high;
  int16_t rest;
  __device__ void load(const bf16* w, const int16_t* r) {
    high = *reinterpret_cast<const uint16_t*>(w);
    rest = *r;
  }
  __device__ void get(float (&to)[1]) const { to[0] = tensor::join(high, rest); }
  __device__ void put(const float (&from)[1], bf16* w, int16_t* r) {
    const tensor::Halves halves = tensor::split(from[0]);
    *reinterpret_cast<uint16_t*>(w) = halves.high;
    *r = halves.rest;
  }
};

// Two to a word: the compiler would give each 16-bit element a register of its own.
template <>
struct Weights<bf16, 8> {
  Vec<uint32_t, 4> high, rest;
  __device__ void load(const bf16* w, const int16_t* r) {
    high = Vec<uint32_t, 4>::load(reinterpret_cast<const uint32_t*>(w));
    rest = Vec<uint32_t, 4>::load(reinterpret_cast<const uint32_t*>(r));
  }
  __device__ void get(float (&to)[8]) const {
#pragma unroll
    for (int j = 0; j < 8; ++j)
      to[j] = tensor::join(static_cast<uint16_t>(high.at[j / 2] >> j % 2 * 16),
                           static_cast<int16_t>(rest.at[j / 2] >> j % 2 * 16));
  }
  __device__ void put(const float (&from)[8], bf16* w, int16_t* r) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const tensor::Halves a = tensor::split(from[2 * j]), b = tensor::split(from[2 * j + 1]);
      high.at[j] = a.high | static_cast<uint32_t>(b.high) << 16;
      rest.at[j] = static_cast<uint16_t>(a.rest) | static_cast<uint32_t>(static_cast<uint16_t>(b.rest)) << 16;
    }
    high.store(reinterpret_cast<uint32_t*>(w));
    rest.store(reinterpret_cast<uint32_t*>(r));
  }
};

template <int N, class G, class W, class M, class V>
__device__ inline void update_run(const AdamwArgs<G, W, M, V>& p, const Scalars* scalars, W* w, int64_t i) {
  Run<G, N> g_run;
  Weights<W, N> w_run;
  Run<M, N> m_run;
  Run<V, N> v_run;
  g_run.load(p.g + i);
  w_run.load(w + i, p.rest + i);
  m_run.load(p.m + i);
  v_run.load(p.v + i);
  const Scalars s = *scalars;
  float g[N], ws[N], m[N], v[N];
  g_run.get(g);
  w_run.get(ws);
  m_run.get(m);
  v_run.get(v);
#pragma unroll
  for (int j = 0; j < N; ++j) step(s, g[j], ws[j], m[j], v[j]);
  w_run.put(ws, w + i, p.rest + i);
  m_run.put(m, p.m + i);
  v_run.put(v, p.v + i);
}

template <class G, class W, class M, class V>
__global__ void __launch_bounds__(kThreads) update(AdamwArgs<G, W, M, V> p, const Scalars* scalars) {
  if (*p.commit == 0) return;
  const int64_t first = p.place ? min(p.elements, *p.place * p.size) : 0;
  const int64_t count = min(p.size, p.elements - first);
  W* w = p.w + first;
  const int64_t thread = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x;
  const int64_t threads = gridDim.x * static_cast<int64_t>(kThreads);
  const uintptr_t addresses = reinterpret_cast<uintptr_t>(p.g) | reinterpret_cast<uintptr_t>(w) |
                              reinterpret_cast<uintptr_t>(p.m) | reinterpret_cast<uintptr_t>(p.v) |
                              reinterpret_cast<uintptr_t>(p.rest);
  const int64_t runs = addresses % 16 == 0 ? count / kRun : 0;
  for (int64_t run = thread; run < runs; run += threads) update_run<kRun>(p, scalars, w, run * kRun);
  for (int64_t i = runs * kRun + thread; i < count; i += threads) update_run<1>(p, scalars, w, i);
}

template <class G, class W, class M, class V>
CudaLaunch launch_update(const AdamwArgs<G, W, M, V>& p, const Attributes& attributes, const Invocation& call,
                         device::cuda::Lane& lane) {
  // A thread has one run, up to the limit of a grid.
  const unsigned blocks =
      static_cast<unsigned>(std::min<int64_t>(ceil_div(p.size, int64_t{kThreads} * kRun), int64_t{1} << 30));
  Scalars* const scalars = room_for_scalars(call);
  return [=, stream = lane.stream()] {
    if (blocks == 0) return;
    make_scalars<<<1, 1, 0, stream>>>(attributes, p.hyper, p.grad_scale, scalars);
    update<<<blocks, kThreads, 0, stream>>>(p, scalars);
    PLEAT_CUDA_LAUNCHED();
  };
}

// W: float, or bf16 with a rest. w may be whole where the others are pieces.
template <class W, class Args>
CudaLaunch prepare_update(const Args& args, int16_t* rest, const Invocation& call, device::cuda::Lane& lane) {
  const bool cut = args.coords.present;
  const int64_t size = args.g.size(), elements = cut ? args.w.size() : size;
  const Attributes attributes = adamw_attributes(call);
  CudaLaunch out;
  if (args.w.dtype != tensor::DtypeOf<W>::value) return out;
  with_float(args.g.dtype, [&](auto g) {
    with_float(args.m.dtype, [&](auto m) {
      with_float(args.v.dtype, [&](auto v) {
        using G = decltype(g);
        using M = decltype(m);
        using V = decltype(v);
        const AdamwArgs<G, W, M, V> p{
            args.g.template as<G>(),
            args.hyper.template as<double>(),
            args.grad_scale.template as<double>(),
            args.commit.template as<int32_t>(),
            cut ? args.coords.template as<int64_t>() + call.integer("group") : nullptr,
            args.w.template as<W>(),
            args.m.template as<M>(),
            args.v.template as<V>(),
            rest,
            size,
            elements};
        out = launch_update(p, attributes, call, lane);
      });
    });
  });
  return out;
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

CudaLaunch prepare_adamw(const Invocation& call, device::cuda::Lane& lane) {
  return prepare_update<float>(signature::adamw::Update(call.args), nullptr, call, lane);
}

CudaLaunch prepare_adamw_narrow(const Invocation& call, device::cuda::Lane& lane) {
  const signature::adamw_narrow::Update<Arg> args(call.args);
  return prepare_update<bf16>(args, static_cast<int16_t*>(args.rest.data), call, lane);
}

CudaLaunch prepare_bias_update(const Invocation& call, device::cuda::Lane& lane) {
  const signature::bias_update::Update<Arg> args(call.args);
  return
      [load = args.load.as<int64_t>(), commit = args.commit.as<int32_t>(), bias = args.bias.as<float>(),
       num_experts = args.load.dim(0), rate = static_cast<float>(call.attr("rate")), stream = lane.stream()] {
        move_bias<<<1, kThreads, 0, stream>>>(load, commit, bias, num_experts, rate);
        PLEAT_CUDA_LAUNCHED();
      };
}

constexpr CudaBinding kTable[] = {
    row<signature::adamw::Update>(prepare_adamw),
    row<signature::adamw_narrow::Update>(prepare_adamw_narrow),
    row<signature::bias_update::Update>(prepare_bias_update),
};

}  // namespace

std::span<const CudaBinding> update_cuda_bindings() { return kTable; }

}  // namespace pleat::kernels
