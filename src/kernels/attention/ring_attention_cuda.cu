// ring_attention on the GPU, written plainly: a warp takes one query (or, for dk and dv, one key) of one
// head, its lanes split the head, and the other side's rows go by in ascending order. All arithmetic is in
// float. Contract: ring_attention.h.
#include "device/cuda/check.h"
#include "kernels/attention/attention_scratch.h"
#include "kernels/attention/ring_attention.h"
#include "kernels/attention/ring_attention_cuda.h"
#include "kernels/cuda/halt.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/types.cuh"

namespace pleat::kernels {
namespace {

using namespace cuda;
using tensor::Dtype;

constexpr int kThreads = 128, kWarps = kThreads / 32;
constexpr int kPerLane = kMaxHeadDim / 32;  // elements of a head in one lane

struct RingArguments {
  int64_t rows = 0, num_queries = 0, num_keys = 0;  // T, Tq, Tk
  int heads = 0, kv_heads = 0, d = 0, dv = 0;
  int64_t window = 0;
  float scale = 1;
  int64_t step = 0, ranks = 1;
  const int32_t *row = nullptr, *key_row = nullptr, *doc_start = nullptr;
  const int64_t* place = nullptr;

  __device__ int64_t q_width() const { return static_cast<int64_t>(heads) * d; }
  __device__ int64_t qkv_width() const { return q_width() + kv_width(); }
  __device__ int64_t kv_width() const { return static_cast<int64_t>(kv_heads) * (d + dv); }
  __device__ int64_t k_at(int64_t key, int kv_head) const {
    return key * kv_width() + static_cast<int64_t>(kv_head) * d;
  }
  __device__ int64_t v_at(int64_t key, int kv_head) const {
    return key * kv_width() + static_cast<int64_t>(kv_heads) * d + static_cast<int64_t>(kv_head) * dv;
  }
  __device__ int64_t q_at(int64_t query, int head) const {
    return query * qkv_width() + static_cast<int64_t>(head) * d;
  }
  __device__ int64_t out_at(int64_t query, int head) const {
    return (query * heads + head) * static_cast<int64_t>(dv);
  }
  // The rows of the keys that are here in this step.
  __device__ const int32_t* keys() const {
    PLEAT_HALT_UNLESS(*place >= 0 && *place < ranks, "ring_attention: the place is no rank of the ring");
    return key_row + (*place + ranks - step) % ranks * num_keys;
  }
  __device__ int64_t checked(int64_t r) const {
    PLEAT_HALT_UNLESS(r >= 0 && r < rows, "ring_attention: a row lies outside of the microbatch");
    return r;
  }
  __device__ int64_t first_visible(int64_t r) const {
    const int64_t start = doc_start[r];
    return window > 0 ? max(start, r - window + 1) : start;
  }
};

// A head's row over the lanes of a warp; zero past its width.
template <class T>
__device__ void load_head(float (&to)[kPerLane], const T* from, int width) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) to[i] = lane + 32 * i < width ? to_float(from[lane + 32 * i]) : 0.0f;
}

__device__ float dot_heads(const float (&a)[kPerLane], const float (&b)[kPerLane]) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) sum = fmaf(a[i], b[i], sum);
  return warp_sum(sum);
}

template <class T>
__device__ void store_head(T* to, const float (&from)[kPerLane], int width, float factor) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i)
    if (lane + 32 * i < width) to[lane + 32 * i] = from_float<T>(from[i] * factor);
}

// O: type of out.
template <class T, class O>
__global__ void __launch_bounds__(kThreads)
    forward(const RingArguments a, const T* qkv, const T* kv, const T* sinks, const float* prior_out,
            const float* prior_lse, O* out, float* lse) {
  const int64_t query = blockIdx.x * static_cast<int64_t>(kWarps) + threadIdx.x / 32;
  if (query >= a.num_queries) return;
  const int head = static_cast<int>(blockIdx.y), kv_head = head / (a.heads / a.kv_heads);
  const int32_t* keys = a.keys();
  const int64_t row = a.checked(a.row[query]), low = a.first_visible(row);
  float q[kPerLane], sum[kPerLane] = {};
  load_head(q, qkv + a.q_at(query, head), a.d);
  // What came before counts as one key: its log-sum-exp is the logit, its out the value.
  float top = -INFINITY, total = 0;
  if (prior_out) {
    top = prior_lse[query * a.heads + head], total = 1;
    load_head(sum, prior_out + a.out_at(query, head), a.dv);
  } else if (sinks) {
    top = to_float(sinks[head]), total = 1;
  }
  bool sees = false;
  for (int64_t key = 0; key < a.num_keys; ++key) {
    const int64_t r = a.checked(keys[key]);
    if (r < low || r > row) continue;
    sees = true;
    float k[kPerLane], v[kPerLane];
    load_head(k, kv + a.k_at(key, kv_head), a.d);
    load_head(v, kv + a.v_at(key, kv_head), a.dv);
    const float score = a.scale * dot_heads(q, k), most = fmaxf(top, score);
    const float fade = expf(top - most), weight = expf(score - most);
    total = total * fade + weight;
    top = most;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) sum[i] = fmaf(weight, v[i], sum[i] * fade);
  }
  // Who sees none of these keys keeps out and lse as they were.
  const bool kept = !sees && prior_out;
  store_head(out + a.out_at(query, head), sum, a.dv, kept ? 1.0f : 1.0f / total);
  if (threadIdx.x % 32 == 0) lse[query * a.heads + head] = kept ? top : top + logf(total);
}

// dots[i, h] = sum over the head of dout * out.
template <class T>
__global__ void __launch_bounds__(kThreads)
    row_dots(const RingArguments a, const T* dout, const T* out, float* dots) {
  const int64_t query = blockIdx.x * static_cast<int64_t>(kWarps) + threadIdx.x / 32;
  if (query >= a.num_queries) return;
  const int head = static_cast<int>(blockIdx.y);
  float x[kPerLane], y[kPerLane];
  load_head(x, dout + a.out_at(query, head), a.dv);
  load_head(y, out + a.out_at(query, head), a.dv);
  const float sum = dot_heads(x, y);
  if (threadIdx.x % 32 == 0) dots[query * a.heads + head] = sum;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    query_gradient(const RingArguments a, const T* dout, const T* qkv, const T* kv, const float* lse,
                   const float* dots, T* dq, Into into) {
  const int64_t query = blockIdx.x * static_cast<int64_t>(kWarps) + threadIdx.x / 32;
  if (query >= a.num_queries) return;
  const int head = static_cast<int>(blockIdx.y), kv_head = head / (a.heads / a.kv_heads);
  const int32_t* keys = a.keys();
  const int64_t row = a.checked(a.row[query]), low = a.first_visible(row);
  float q[kPerLane], d_out[kPerLane], sum[kPerLane] = {};
  load_head(q, qkv + a.q_at(query, head), a.d);
  load_head(d_out, dout + a.out_at(query, head), a.dv);
  const float log_sum = lse[query * a.heads + head], dot = dots[query * a.heads + head];
  for (int64_t key = 0; key < a.num_keys; ++key) {
    const int64_t r = a.checked(keys[key]);
    if (r < low || r > row) continue;
    float k[kPerLane], v[kPerLane];
    load_head(k, kv + a.k_at(key, kv_head), a.d);
    load_head(v, kv + a.v_at(key, kv_head), a.dv);
    const float p = expf(a.scale * dot_heads(q, k) - log_sum), ds = p * (dot_heads(d_out, v) - dot);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) sum[i] = fmaf(ds, k[i], sum[i]);
  }
  T* to = dq + query * a.q_width() + static_cast<int64_t>(head) * a.d;
  if (into == Into::Accumulate) {
    float before[kPerLane];
    load_head(before, to, a.d);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) sum[i] = fmaf(sum[i], a.scale, before[i]);
  }
  store_head(to, sum, a.d, into == Into::Accumulate ? 1.0f : a.scale);
}

// Queries ascending, for each the heads that share this key/value head ascending.
template <class T>
__global__ void __launch_bounds__(kThreads)
    key_gradient(const RingArguments a, const T* dout, const T* qkv, const T* kv, const float* lse,
                 const float* dots, T* dkv) {
  const int64_t key = blockIdx.x * static_cast<int64_t>(kWarps) + threadIdx.x / 32;
  if (key >= a.num_keys) return;
  const int kv_head = static_cast<int>(blockIdx.y), group = a.heads / a.kv_heads;
  const int64_t r = a.checked(a.keys()[key]);
  float k[kPerLane], v[kPerLane], dk[kPerLane] = {}, dv[kPerLane] = {};
  load_head(k, kv + a.k_at(key, kv_head), a.d);
  load_head(v, kv + a.v_at(key, kv_head), a.dv);
  for (int64_t query = 0; query < a.num_queries; ++query) {
    const int64_t row = a.checked(a.row[query]);
    if (r > row || r < a.first_visible(row)) continue;
    for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      float q[kPerLane], d_out[kPerLane];
      load_head(q, qkv + a.q_at(query, head), a.d);
      load_head(d_out, dout + a.out_at(query, head), a.dv);
      const float p = expf(a.scale * dot_heads(q, k) - lse[query * a.heads + head]);
      const float ds = p * (dot_heads(d_out, v) - dots[query * a.heads + head]);
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        dk[i] = fmaf(ds, q[i], dk[i]);
        dv[i] = fmaf(p, d_out[i], dv[i]);
      }
    }
  }
  store_head(dkv + a.k_at(key, kv_head), dk, a.d, a.scale);
  store_head(dkv + a.v_at(key, kv_head), dv, a.dv, 1.0f);
}

// What both directions read.
template <class Args>
RingArguments arguments_of(const Args& args, const Invocation& in) {
  const AttentionShape s = attention_shape(in, args.doc_start.dim(0));
  RingArguments a;
  a.rows = s.rows, a.num_queries = args.qkv.dim(0), a.num_keys = args.kv.dim(0);
  a.heads = s.heads, a.kv_heads = s.kv_heads, a.d = s.head_dim, a.dv = s.v_head_dim;
  a.window = s.window;
  a.scale = static_cast<float>(s.scale);
  a.step = in.integer("step"), a.ranks = in.integer("ranks");
  a.row = args.row.template as<int32_t>(), a.key_row = args.key_row.template as<int32_t>();
  a.doc_start = args.doc_start.template as<int32_t>();
  a.place = args.coords.template as<int64_t>() + in.integer("group");
  return a;
}

dim3 grid_of(int64_t num_rows, int heads) {
  return {static_cast<unsigned>(ceil_div(num_rows, kWarps)), static_cast<unsigned>(heads), 1};
}

template <class T, class O>
CudaLaunch launch_forward(const Invocation& in, device::cuda::Lane& lane) {
  const signature::ring_attention::Forward<Arg> args(in.args);
  const RingArguments a = arguments_of(args, in);
  const dim3 grid = grid_of(a.num_queries, a.heads);
  return [=, qkv = args.qkv.as<T>(), prior_out = args.prior_out.as<float>(),
          prior_lse = args.prior_lse.as<float>(), kv = args.kv.as<T>(), sinks = args.sinks.as<T>(),
          out = args.out.as<O>(), lse = args.lse.as<float>(), stream = lane.stream()] {
    if (grid.x == 0) return;
    forward<T, O><<<grid, kThreads, 0, stream>>>(a, qkv, kv, sinks, prior_out, prior_lse, out, lse);
    PLEAT_CUDA_LAUNCHED();
  };
}

template <class T>
CudaLaunch launch_backward(const Invocation& in, device::cuda::Lane& lane) {
  const signature::ring_attention::BackwardInput<Arg> args(in.args);
  const RingArguments a = arguments_of(args, in);
  const dim3 queries = grid_of(a.num_queries, a.heads), keys = grid_of(a.num_keys, a.kv_heads);
  auto* const dots =
      reinterpret_cast<float*>(in.scratch_for(attention::row_dot_bytes(a.num_queries, a.heads)));
  return [=, &lane, dout = args.dout.as<T>(), qkv = args.qkv.as<T>(), kv = args.kv.as<T>(),
          out = args.out.as<T>(), lse = args.lse.as<float>(), dq = args.dq.as<T>(), into = args.dq.into(),
          dkv = args.dkv.as<T>()] {
    if (queries.x > 0) {
      row_dots<T><<<queries, kThreads, 0, lane.stream()>>>(a, dout, out, dots);
      PLEAT_CUDA_LAUNCHED();
      query_gradient<T><<<queries, kThreads, 0, lane.stream()>>>(a, dout, qkv, kv, lse, dots, dq, into);
      PLEAT_CUDA_LAUNCHED();
    }
    if (keys.x > 0) {
      key_gradient<T><<<keys, kThreads, 0, lane.stream()>>>(a, dout, qkv, kv, lse, dots, dkv);
      PLEAT_CUDA_LAUNCHED();
    }
  };
}

}  // namespace

CudaLaunch prepare_ring_forward(const Invocation& in, device::cuda::Lane& lane) {
  const signature::ring_attention::Forward<Arg> args(in.args);
  if (args.qkv.dtype == Dtype::F32) return launch_forward<float, float>(in, lane);
  if (args.qkv.dtype != Dtype::BF16) return {};
  if (args.out.dtype == Dtype::F32) return launch_forward<bf16, float>(in, lane);
  return launch_forward<bf16, bf16>(in, lane);
}

CudaLaunch prepare_ring_backward(const Invocation& in, device::cuda::Lane& lane) {
  CudaLaunch out;
  with_float(signature::ring_attention::BackwardInput(in.args).qkv.dtype,
             [&](auto zero) { out = launch_backward<decltype(zero)>(in, lane); });
  return out;
}

}  // namespace pleat::kernels
