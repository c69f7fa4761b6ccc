// Latent attention's projections to packed rows and back, on the GPU. One block per row; a thread takes runs
// of N numbers of the packed row. The other half of a rotary pair is read once more, from the cache.
#include "device/cuda/check.h"
#include "kernels/cuda/bind.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/team.cuh"
#include "kernels/mla/mla.h"
#include "kernels/rope/rotate.cuh"

namespace pleat::kernels {
namespace {

using namespace cuda;

constexpr int kThreads = 256;

struct Shape {
  int heads, dn, dr, dv;
  bool interleaved;
  __device__ int d() const { return dn + dr; }
};

// N numbers from `at` on of a rotary vector, turned. `of(i)` gives number i as a float; with N = 1 a number
// is at most one of a pair.
template <int N, class Of>
__device__ inline void turned(const Shape& s, int at, const float* cos_sin, float direction, Of of,
                              float (&to)[N]) {
  const int half = s.dr / 2;
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const int i = at + j;
    const int pair = s.interleaved ? i / 2 : i < half ? i : i - half;
    const bool second = s.interleaved ? i % 2 : i >= half;
    const int other = s.interleaved ? (second ? i - 1 : i + 1) : (second ? i - half : i + half);
    const float c = cos_sin[pair], sine = direction * cos_sin[half + pair];
    to[j] = second ? of(i) * c + of(other) * sine : of(i) * c - of(other) * sine;
  }
}

// N numbers from `at` on of the rotary vector `rope`, turned. N > 1: a run and its partners are whole runs.
template <class T, int N>
__device__ inline Pack<T, N> turned_run(const Shape& s, const T* rope, int at, const float* cos_sin,
                                        float direction) {
  const int half = s.dr / 2;
  float a[N];
  Pack<T, N> pack;
  if constexpr (N == 1) {
    turned<1>(
        s, at, cos_sin, direction, [&](int i) { return to_float(rope[i]); }, a);
  } else {
    pack = Pack<T, N>::load(rope + at);
    pack.get(a);
    if (s.interleaved) {
      float cosine[N / 2], sine[N / 2];
      load_floats(cos_sin + at / 2, cosine);
      load_floats(cos_sin + half + at / 2, sine);
#pragma unroll
      for (int j = 0; j < N / 2; ++j) {
        const float x = a[2 * j], y = a[2 * j + 1], t = direction * sine[j];
        a[2 * j] = x * cosine[j] - y * t;
        a[2 * j + 1] = y * cosine[j] + x * t;
      }
    } else {
      const bool second = at >= half;
      const int pair = second ? at - half : at;
      float b[N], cosine[N], sine[N];
      Pack<T, N>::load(rope + (second ? pair : pair + half)).get(b);
      load_floats(cos_sin + pair, cosine);
      load_floats(cos_sin + half + pair, sine);
      const float sign = second ? direction : -direction;
#pragma unroll
      for (int j = 0; j < N; ++j) a[j] = a[j] * cosine[j] + b[j] * (sign * sine[j]);
    }
  }
  pack.set(a);
  return pack;
}

// to[i] = make(i) for every run i of `count` numbers, four runs of a thread in flight.
template <class T, int N, class Make>
__device__ inline void each_run(int count, T* to, Make make) {
  constexpr int kAhead = 4, kStep = kThreads * N;
  int i = static_cast<int>(threadIdx.x) * N;
  for (; i + (kAhead - 1) * kStep < count; i += kAhead * kStep) {
    Pack<T, N> held[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) held[k] = make(i + k * kStep);
#pragma unroll
    for (int k = 0; k < kAhead; ++k) held[k].store(to + i + k * kStep);
  }
  for (; i < count; i += kStep) make(i).store(to + i);
}

template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    pack_rows(const T* q, const T* kv, const T* k_pe, const float* cos_sin, T* qkv, Shape s) {
  const int64_t row = blockIdx.x;
  const int d = s.d(), q_width = s.heads * d, v_width = s.heads * s.dv;
  const T* from_q = q + row * q_width;
  const T* from_kv = kv + row * (s.heads * (s.dn + s.dv));
  const T* pe = k_pe + row * s.dr;
  const float* table = cos_sin + row * s.dr;
  T* to = qkv + row * (2 * q_width + v_width);
  each_run<T, N>(2 * q_width + v_width, to, [&](int i) {
    if (i >= 2 * q_width) {
      const int in = i - 2 * q_width, head = in / s.dv;
      return Pack<T, N>::load(from_kv + head * (s.dn + s.dv) + s.dn + (in - head * s.dv));
    }
    const bool is_k = i >= q_width;
    const int in = is_k ? i - q_width : i, head = in / d, at = in - head * d;
    if (at >= s.dn) return turned_run<T, N>(s, is_k ? pe : from_q + head * d + s.dn, at - s.dn, table, 1.0f);
    return Pack<T, N>::load(is_k ? from_kv + head * (s.dn + s.dv) + at : from_q + in);
  });
}

// Shared memory: groups x dr floats for the sum over heads, then dr floats of the sum.
template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    unpack_rows(const T* dqkv, const float* cos_sin, T* dq, T* dkv, T* dk_pe, Shape s, int groups) {
  extern __shared__ float sums[];
  const int64_t row = blockIdx.x;
  const int d = s.d(), q_width = s.heads * d, v_width = s.heads * s.dv, kv_width = s.heads * (s.dn + s.dv);
  const T* from = dqkv + row * (2 * q_width + v_width);
  const float* table = cos_sin + row * s.dr;
  T* to_q = dq + row * q_width;
  T* to_kv = dkv + row * kv_width;
  // Rotary parts of k: group g adds heads g, g + groups, ...
  const int runs = s.dr / N;
  for (int i = static_cast<int>(threadIdx.x); i < groups * runs; i += kThreads) {
    const int group = i / runs, at = (i - group * runs) * N;
    float sum[N] = {};
#pragma unroll 4
    for (int head = group; head < s.heads; head += groups) {
      float a[N];
      Pack<T, N>::load(from + q_width + head * d + s.dn + at).get(a);
#pragma unroll
      for (int j = 0; j < N; ++j) sum[j] += a[j];
    }
#pragma unroll
    for (int j = 0; j < N; ++j) sums[group * s.dr + at + j] = sum[j];
  }
  each_run<T, N>(q_width, to_q, [&](int i) {
    const int head = i / d, at = i - head * d;
    return at < s.dn ? Pack<T, N>::load(from + i)
                     : turned_run<T, N>(s, from + head * d + s.dn, at - s.dn, table, -1.0f);
  });
  each_run<T, N>(kv_width, to_kv, [&](int i) {
    const int head = i / (s.dn + s.dv), at = i - head * (s.dn + s.dv);
    return Pack<T, N>::load(at < s.dn ? from + q_width + head * d + at
                                      : from + 2 * q_width + head * s.dv + at - s.dn);
  });
  __syncthreads();
  float* whole = sums + groups * s.dr;
  for (int i = static_cast<int>(threadIdx.x); i < s.dr; i += kThreads) {
    double sum = 0;
    for (int group = 0; group < groups; ++group) sum += static_cast<double>(sums[group * s.dr + i]);
    whole[i] = static_cast<float>(sum);
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < s.dr; i += kThreads) {
    float out[1];
    turned<1>(
        s, i, table, -1.0f, [&](int j) { return whole[j]; }, out);
    dk_pe[row * s.dr + i] = from_float<T>(out[0]);
  }
}

Shape device_shape(const MlaShape& s) {
  if (s.packed_width() >= int64_t{1} << 30)
    base::fail("[mla_pack] rows of {} numbers are too long", s.packed_width());
  return {static_cast<int>(s.heads), static_cast<int>(s.nope_dim), static_cast<int>(s.rope_dim),
          static_cast<int>(s.v_dim), s.interleaved};
}

// Every boundary of a row must be a multiple of a run.
template <class T>
bool runs_fit(const MlaShape& s, std::initializer_list<const void*> addresses) {
  return s.nope_dim % kWide<T> == 0 && s.v_dim % kWide<T> == 0 && all_aligned(addresses) &&
         s.rope_dim % (s.interleaved ? kWide<T> : 2 * kWide<T>) == 0;
}

CudaLaunch prepare_forward(const Invocation& call, device::cuda::Lane& lane) {
  const signature::mla_pack::Forward<Arg> args(call.args);
  const MlaShape s = mla_shape(call);
  const int64_t rows = args.q.dim(0);
  CudaLaunch out;
  with_float(args.q.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T *q = args.q.as<T>(), *kv = args.kv.as<T>(), *k_pe = args.k_pe.as<T>();
    const float* cos_sin = args.cos_sin.as<float>();
    T* qkv = args.qkv.as<T>();
    out = [=, shape = device_shape(s), wide = runs_fit<T>(s, {q, kv, k_pe, cos_sin, qkv}),
           stream = lane.stream()] {
      const auto blocks = static_cast<unsigned>(rows);
      if (blocks == 0) return;
      if (wide)
        pack_rows<T, kWide<T>><<<blocks, kThreads, 0, stream>>>(q, kv, k_pe, cos_sin, qkv, shape);
      else
        pack_rows<T, 1><<<blocks, kThreads, 0, stream>>>(q, kv, k_pe, cos_sin, qkv, shape);
      PLEAT_CUDA_LAUNCHED();
    };
  });
  return out;
}

CudaLaunch prepare_backward_input(const Invocation& call, device::cuda::Lane& lane) {
  const signature::mla_pack::BackwardInput<Arg> args(call.args);
  const MlaShape s = mla_shape(call);
  const int64_t rows = args.dqkv.dim(0);
  CudaLaunch out;
  with_float(args.dqkv.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T* dqkv = args.dqkv.as<T>();
    const float* cos_sin = args.cos_sin.as<float>();
    T *dq = args.dq.as<T>(), *dkv = args.dkv.as<T>(), *dk_pe = args.dk_pe.as<T>();
    const bool wide = runs_fit<T>(s, {dqkv, cos_sin, dq, dkv});
    // As many groups of heads as there are threads for, within 32 KB: at most 1024 x 8 sums.
    const int64_t runs = s.rope_dim / (wide ? kWide<T> : 1);
    const int64_t groups = std::max<int64_t>(1, std::min({s.heads, kThreads / runs, 7 * 1024 / s.rope_dim}));
    const size_t shared = static_cast<size_t>((groups + 1) * s.rope_dim) * sizeof(float);
    out = [=, shape = device_shape(s), stream = lane.stream()] {
      const auto blocks = static_cast<unsigned>(rows);
      if (blocks == 0) return;
      if (wide)
        unpack_rows<T, kWide<T>><<<blocks, kThreads, shared, stream>>>(dqkv, cos_sin, dq, dkv, dk_pe, shape,
                                                                       static_cast<int>(groups));
      else
        unpack_rows<T, 1><<<blocks, kThreads, shared, stream>>>(dqkv, cos_sin, dq, dkv, dk_pe, shape,
                                                                static_cast<int>(groups));
      PLEAT_CUDA_LAUNCHED();
    };
  });
  return out;
}

constexpr CudaBinding kTable[] = {
    row<signature::mla_pack::Forward>(prepare_forward),
    row<signature::mla_pack::BackwardInput>(prepare_backward_input),
};

}  // namespace

std::span<const CudaBinding> mla_cuda_bindings() { return kTable; }

}  // namespace pleat::kernels
