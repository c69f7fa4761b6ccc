// Rotary positions on the GPU: one pass over packed q|k|v, with the norm of each head on the way.
//
// A group of lanes takes one head of one row and holds it between the sum and the result. The norm over all
// of q and all of k takes a block per row, which reads its row a second time from the cache.
#include "device/cuda/check.h"
#include "kernels/cuda/column_sum.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/rope/rope_cuda.h"

namespace pleat::kernels {
namespace {

using namespace cuda;

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) table(const int32_t* positions, const double* inv_freq,
                                                  float* cos_sin, int64_t rows, int half, double scale) {
  const int64_t i = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x;
  if (i >= rows * half) return;
  const int64_t row = i / half;
  const int column = static_cast<int>(i - row * half);
  double s, c;
  sincos(positions[row] * inv_freq[column], &s, &c);
  cos_sin[row * 2 * half + column] = static_cast<float>(scale * c);
  cos_sin[row * 2 * half + half + column] = static_cast<float>(scale * s);
}

template <int N>
__device__ inline float squares(const float (&a)[N], const float (&b)[N]) {
  float sum = 0;
#pragma unroll
  for (int j = 0; j < N; ++j) sum += a[j] * a[j] + b[j] * b[j];
  return sum;
}

// Forward of one unit that was loaded: norm, rotation, store. w: null without norm; v heads only travel.
template <class T, int N, bool kInterleaved>
__device__ inline void finish_forward(const RopeArgs<T>& p, const HeadUnits<N, kInterleaved>& units,
                                      uint32_t row, uint32_t head, int low, int high, float scale, const T* w,
                                      float (&a)[N], float (&b)[N]) {
  if (head < p.normed()) {
    if (w) {
      float wa[N], wb[N];
      load_unit(w, low, high, p.d, wa, wb);
#pragma unroll
      for (int j = 0; j < N; ++j) a[j] = a[j] * scale * wa[j], b[j] = b[j] * scale * wb[j];
    }
    units.turn(low, high, p.cos_sin + static_cast<int64_t>(row) * p.r, 1.0f, a, b);
  }
  store_unit(p.to + p.at(row, head), low, high, p.d, a, b);
}

// kHeld: a lane has at most one unit, and keeps it.
template <class T, int N, bool kInterleaved, int kLanes, bool kHeld>
__global__ void __launch_bounds__(kThreads) forward_heads(RopeArgs<T> p) {
  const HeadUnits<N, kInterleaved> units{p.d, p.r};
  const uint32_t item = (blockIdx.x * kThreads + threadIdx.x) / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes,
            count = item < p.rows * p.all_heads() ? units.count() : 0;
  const uint32_t row = item / p.all_heads(), head = item - row * p.all_heads();
  const T* from = p.from + p.at(row, head);
  const bool is_q = head < p.heads;
  const T* w = is_q ? p.q_norm : p.k_norm;
  int low = 0, high = 0;
  float a[N], b[N];
  if (kHeld && lane < count) {
    units.place(lane, low, high);
    load_unit(from, low, high, p.d, a, b);
  }
  float scale = 1;
  if (p.q_norm) {
    float sum = 0;
    if (kHeld) {
      if (lane < count) sum = squares(a, b);
    } else {
      for (int unit = lane; unit < count; unit += kLanes) {
        units.place(unit, low, high);
        load_unit(from, low, high, p.d, a, b);
        sum += squares(a, b);
      }
    }
    scale = 1.0f / sqrtf(group_sum<kLanes>(sum) / static_cast<float>(p.d) + p.eps);
    if (lane == 0 && count > 0 && head < p.normed())
      p.rstd[static_cast<int64_t>(row) * p.normed() + head] = scale;
  }
  for (int unit = lane; unit < count; unit += kLanes) {
    if (!kHeld) {
      units.place(unit, low, high);
      load_unit(from, low, high, p.d, a, b);
    }
    finish_forward(p, units, row, head, low, high, scale, w, a, b);
    if (kHeld) break;
  }
}

// One block per row; the norm is over all q heads and over all k heads.
template <class T, int N, bool kInterleaved, int kLanes>
__global__ void __launch_bounds__(kThreads) forward_full(RopeArgs<T> p) {
  constexpr uint32_t kGroups = kThreads / kLanes;
  const HeadUnits<N, kInterleaved> units{p.d, p.r};
  const int lane = static_cast<int>(threadIdx.x) % kLanes, count = units.count();
  const uint32_t row = blockIdx.x, group = threadIdx.x / kLanes;
  float a[N], b[N], sums[2] = {};
  for (uint32_t head = group; head < p.normed(); head += kGroups)
    for (int unit = lane; unit < count; unit += kLanes) {
      int low, high;
      units.place(unit, low, high);
      load_unit(p.from + p.at(row, head), low, high, p.d, a, b);
      (head < p.heads ? sums[0] : sums[1]) += squares(a, b);
    }
  const float q = block_sum<kThreads>(sums[0]), k = block_sum<kThreads>(sums[1]);
  const float q_scale = 1.0f / sqrtf(q / static_cast<float>(p.heads * p.d) + p.eps);
  const float k_scale = 1.0f / sqrtf(k / static_cast<float>(p.kv_heads * p.d) + p.eps);
  if (threadIdx.x == 0) {
    p.rstd[static_cast<int64_t>(row) * 2] = q_scale;
    p.rstd[static_cast<int64_t>(row) * 2 + 1] = k_scale;
  }
  for (uint32_t head = group; head < p.all_heads(); head += kGroups)
    for (int unit = lane; unit < count; unit += kLanes) {
      int low, high;
      units.place(unit, low, high);
      load_unit(p.from + p.at(row, head), low, high, p.d, a, b);
      const bool is_q = head < p.heads;
      const T* w = is_q ? p.q_norm + static_cast<int64_t>(head) * p.d
                        : p.k_norm + static_cast<int64_t>(head - p.heads) * p.d;
      finish_forward(p, units, row, head, low, high, is_q ? q_scale : k_scale, w, a, b);
    }
}

// Turns a, b (dout turned back) into dy w and xa, xb into x; returns the sum of their products.
template <class T, int N>
__device__ inline float weigh(const T* x, const T* w, int low, int high, int d, float (&a)[N], float (&b)[N],
                              float (&xa)[N], float (&xb)[N]) {
  float wa[N], wb[N], dot = 0;
  load_unit(x, low, high, d, xa, xb);
  load_unit(w, low, high, d, wa, wb);
#pragma unroll
  for (int j = 0; j < N; ++j) {
    a[j] *= wa[j], b[j] *= wb[j];
    dot += a[j] * xa[j] + b[j] * xb[j];
  }
  return dot;
}

template <class T, int N, bool kInterleaved, int kLanes, bool kHeld>
__global__ void __launch_bounds__(kThreads) backward_heads(RopeArgs<T> p) {
  const HeadUnits<N, kInterleaved> units{p.d, p.r};
  const uint32_t item = (blockIdx.x * kThreads + threadIdx.x) / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes,
            count = item < p.rows * p.all_heads() ? units.count() : 0;
  const uint32_t row = item / p.all_heads(), head = item - row * p.all_heads();
  const bool normed = p.q_norm && head < p.normed();
  const T* x = p.x + p.at(row, head);
  const T* w = head < p.heads ? p.q_norm : p.k_norm;
  int low = 0, high = 0;
  float a[N], b[N], xa[N] = {}, xb[N] = {};
  float scale = 1, back = 0;
  if (kHeld && lane < count) {
    units.place(lane, low, high);
    load_turned(p, units, row, head, low, high, a, b);
  }
  if (p.q_norm) {
    float dot = 0;
    if (normed)
      for (int unit = lane; unit < count; unit += kLanes) {
        if (!kHeld) {
          units.place(unit, low, high);
          load_turned(p, units, row, head, low, high, a, b);
        }
        dot += weigh(x, w, low, high, p.d, a, b, xa, xb);
        if (kHeld) break;
      }
    dot = group_sum<kLanes>(dot);
    if (normed && count > 0) {
      scale = p.rstd[static_cast<int64_t>(row) * p.normed() + head];
      back = scale * scale * scale * (dot / static_cast<float>(p.d));
    }
  }
  for (int unit = lane; unit < count; unit += kLanes) {
    if (!kHeld) {
      units.place(unit, low, high);
      load_turned(p, units, row, head, low, high, a, b);
      if (normed) weigh(x, w, low, high, p.d, a, b, xa, xb);
    }
    if (normed) {
#pragma unroll
      for (int j = 0; j < N; ++j) a[j] = a[j] * scale - xa[j] * back, b[j] = b[j] * scale - xb[j] * back;
    }
    store_unit(p.to + p.at(row, head), low, high, p.d, a, b);
    if (kHeld) break;
  }
}

template <class T, int N, bool kInterleaved, int kLanes>
__global__ void __launch_bounds__(kThreads) backward_full(RopeArgs<T> p) {
  constexpr uint32_t kGroups = kThreads / kLanes;
  const HeadUnits<N, kInterleaved> units{p.d, p.r};
  const int lane = static_cast<int>(threadIdx.x) % kLanes, count = units.count();
  const uint32_t row = blockIdx.x, group = threadIdx.x / kLanes;
  const auto weights = [&](uint32_t head) {
    return head < p.heads ? p.q_norm + static_cast<int64_t>(head) * p.d
                          : p.k_norm + static_cast<int64_t>(head - p.heads) * p.d;
  };
  float a[N], b[N], xa[N], xb[N], sums[2] = {};
  int low, high;
  for (uint32_t head = group; head < p.normed(); head += kGroups)
    for (int unit = lane; unit < count; unit += kLanes) {
      units.place(unit, low, high);
      load_turned(p, units, row, head, low, high, a, b);
      (head < p.heads ? sums[0] : sums[1]) +=
          weigh(p.x + p.at(row, head), weights(head), low, high, p.d, a, b, xa, xb);
    }
  const float q = block_sum<kThreads>(sums[0]), k = block_sum<kThreads>(sums[1]);
  const float q_scale = p.rstd[static_cast<int64_t>(row) * 2],
              k_scale = p.rstd[static_cast<int64_t>(row) * 2 + 1];
  const float q_back = q_scale * q_scale * q_scale * (q / static_cast<float>(p.heads * p.d));
  const float k_back = k_scale * k_scale * k_scale * (k / static_cast<float>(p.kv_heads * p.d));
  for (uint32_t head = group; head < p.all_heads(); head += kGroups)
    for (int unit = lane; unit < count; unit += kLanes) {
      units.place(unit, low, high);
      load_turned(p, units, row, head, low, high, a, b);
      if (head < p.normed()) {
        weigh(p.x + p.at(row, head), weights(head), low, high, p.d, a, b, xa, xb);
        const float scale = head < p.heads ? q_scale : k_scale, back = head < p.heads ? q_back : k_back;
#pragma unroll
        for (int j = 0; j < N; ++j) a[j] = a[j] * scale - xa[j] * back, b[j] = b[j] * scale - xb[j] * back;
      }
      store_unit(p.to + p.at(row, head), low, high, p.d, a, b);
    }
}

// Sums of dy x rstd over a block of rows. blockIdx.y is a slot: the q heads and the k heads, or with `full`
// every head by itself; blockIdx.z is a run of kLanes units of a head. parts [row blocks, slots, d].
template <class T, int N, bool kInterleaved, int kLanes>
__global__ void __launch_bounds__(kThreads)
    weight_parts(RopeArgs<T> p, bool full, uint32_t rows_per_block, float* parts) {
  constexpr int kGroups = kThreads / kLanes;
  __shared__ float tile[kGroups][kLanes][2][N];
  const HeadUnits<N, kInterleaved> units{p.d, p.r};
  const int lane = static_cast<int>(threadIdx.x) % kLanes, group = static_cast<int>(threadIdx.x) / kLanes;
  const int unit = static_cast<int>(blockIdx.z) * kLanes + lane;
  const uint32_t slot = blockIdx.y, begin = blockIdx.x * rows_per_block;
  const uint32_t first_head = full ? slot : slot * p.heads;
  const uint32_t num_heads = full ? 1 : slot == 0 ? p.heads : p.kv_heads;
  const uint32_t num_rows = rows_per_block < p.rows - begin ? rows_per_block : p.rows - begin;
  float sa[N] = {}, sb[N] = {};
  if (unit < units.count()) {
    int low, high;
    units.place(unit, low, high);
#pragma unroll 2
    for (uint32_t item = group; item < num_rows * num_heads; item += kGroups) {
      const uint32_t in_block = item / num_heads, row = begin + in_block;
      const uint32_t head = first_head + (item - in_block * num_heads);
      float a[N], b[N], xa[N], xb[N];
      load_turned(p, units, row, head, low, high, a, b);
      load_unit(p.x + p.at(row, head), low, high, p.d, xa, xb);
      const float scale = full ? p.rstd[static_cast<int64_t>(row) * 2 + (head >= p.heads)]
                               : p.rstd[static_cast<int64_t>(row) * p.normed() + head];
#pragma unroll
      for (int j = 0; j < N; ++j) sa[j] += a[j] * xa[j] * scale, sb[j] += b[j] * xb[j] * scale;
    }
  }
#pragma unroll
  for (int j = 0; j < N; ++j) tile[group][lane][0][j] = sa[j], tile[group][lane][1][j] = sb[j];
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kLanes * 2 * N; i += kThreads) {
    const int of = i / (2 * N), side = i / N % 2, j = i % N;
    const int its_unit = static_cast<int>(blockIdx.z) * kLanes + of;
    if (its_unit >= units.count()) continue;
    int low, high;
    units.place(its_unit, low, high);
    const int column = (side == 0 ? low : high) + j;
    if (column >= p.d) continue;
    float sum = tile[0][of][side][j];
#pragma unroll 4
    for (int g = 1; g < kGroups; ++g) sum += tile[g][of][side][j];
    parts[(static_cast<int64_t>(blockIdx.x) * gridDim.y + slot) * p.d + column] = sum;
  }
}

// Picks the number of lanes of a head and launches kernel(lanes, held).
template <bool kForward, class T, class L>
void launch_heads(CUstream_st* stream, const RopeArgs<T>& p, L) {
  const int count = HeadUnits<L::kRun, L::kInside>{p.d, p.r}.count();
  const auto go = [&](auto lanes, auto held) {
    constexpr int kLanes = decltype(lanes)::value;
    constexpr bool kHeld = decltype(held)::value;
    const int64_t threads = static_cast<int64_t>(p.rows) * (p.heads + 2 * p.kv_heads) * kLanes;
    const auto blocks = static_cast<unsigned>(ceil_div(threads, kThreads));
    if constexpr (kForward)
      forward_heads<T, L::kRun, L::kInside, kLanes, kHeld><<<blocks, kThreads, 0, stream>>>(p);
    else
      backward_heads<T, L::kRun, L::kInside, kLanes, kHeld><<<blocks, kThreads, 0, stream>>>(p);
  };
  using std::bool_constant, std::integral_constant;
  if constexpr (L::kRun == 1) {
    go(integral_constant<int, 32>{}, bool_constant<false>{});
  } else {
    if (count <= 4)
      go(integral_constant<int, 4>{}, bool_constant<true>{});
    else if (count <= 8)
      go(integral_constant<int, 8>{}, bool_constant<true>{});
    else if (count <= 16)
      go(integral_constant<int, 16>{}, bool_constant<true>{});
    else if (count <= 32)
      go(integral_constant<int, 32>{}, bool_constant<true>{});
    else
      go(integral_constant<int, 32>{}, bool_constant<false>{});
  }
  PLEAT_CUDA_LAUNCHED();
}

constexpr int kFullLanes = 8;

template <bool kForward, class T>
CudaLaunch launch_rope(const RopeShape& shape, const RopeArgs<T>& p, device::cuda::Lane& lane) {
  CudaLaunch out;
  with_layout<T>(shape, {p.from, p.cos_sin, p.x, p.q_norm, p.k_norm, p.to}, [&](auto layout) {
    using L = decltype(layout);
    out = [=, stream = lane.stream(), full = shape.full_norm] {
      if (p.rows == 0) return;
      if (!full) return launch_heads<kForward>(stream, p, L{});
      if constexpr (kForward)
        forward_full<T, L::kRun, L::kInside, kFullLanes><<<p.rows, kThreads, 0, stream>>>(p);
      else
        backward_full<T, L::kRun, L::kInside, kFullLanes><<<p.rows, kThreads, 0, stream>>>(p);
      PLEAT_CUDA_LAUNCHED();
    };
  });
  return out;
}

}  // namespace

template <class T>
CudaLaunch launch_rope_input(const RopeShape& shape, const RopeArgs<T>& p, device::cuda::Lane& lane) {
  return launch_rope<false>(shape, p, lane);
}
template CudaLaunch launch_rope_input(const RopeShape&, const RopeArgs<float>&, device::cuda::Lane&);
template CudaLaunch launch_rope_input(const RopeShape&, const RopeArgs<bf16>&, device::cuda::Lane&);

template <class T>
CudaLaunch launch_rope_weight(const RopeShape& shape, const RopeArgs<T>& p, const Arg& dq, const Arg& dk,
                              const Invocation& call, device::cuda::Lane& lane) {
  const auto slots = static_cast<unsigned>(shape.full_norm ? shape.num_normed() : 2);
  const RopeSums sums = rope_weight_sums(shape, p.rows);
  const auto rows_per_block = static_cast<uint32_t>(sums.rows_per_block);
  const auto row_blocks = static_cast<unsigned>(sums.row_blocks);
  auto* const parts = reinterpret_cast<float*>(call.scratch_for(sums.bytes()));
  CudaLaunch out;
  with_layout<T>(shape, {p.from, p.cos_sin, p.x}, [&](auto layout) {
    using L = decltype(layout);
    const int count = HeadUnits<L::kRun, L::kInside>{p.d, p.r}.count();
    const dim3 grid(row_blocks, slots, static_cast<unsigned>(ceil_div(count, kFullLanes)));
    out = [=, stream = lane.stream(), full = shape.full_norm, to_q = SumTarget(dq), to_k = SumTarget(dk)] {
      if (row_blocks > 0) {
        weight_parts<T, L::kRun, L::kInside, kFullLanes>
            <<<grid, kThreads, 0, stream>>>(p, full, rows_per_block, parts);
        PLEAT_CUDA_LAUNCHED();
      }
      launch_reduce_parts(stream, parts, static_cast<int>(row_blocks), sums.stride, to_q, &to_k);
    };
  });
  return out;
}
template CudaLaunch launch_rope_weight(const RopeShape&, const RopeArgs<float>&, const Arg&, const Arg&,
                                       const Invocation&, device::cuda::Lane&);
template CudaLaunch launch_rope_weight(const RopeShape&, const RopeArgs<bf16>&, const Arg&, const Arg&,
                                       const Invocation&, device::cuda::Lane&);

namespace {

CudaLaunch prepare_table(const Invocation& call, device::cuda::Lane& lane) {
  const signature::rope_table::Forward<Arg> args(call.args);
  if (args.cos_sin.dtype != tensor::Dtype::F32) return {};
  const auto* positions = args.positions.as<int32_t>();
  const auto* inv_freq = args.inv_freq.as<double>();
  auto* cos_sin = args.cos_sin.as<float>();
  const int64_t rows = args.positions.dim(0), half = args.inv_freq.dim(0);
  const double scale = call.attr("scale");
  return [=, stream = lane.stream()] {
    if (rows * half == 0) return;
    table<<<static_cast<unsigned>(ceil_div(rows * half, kThreads)), kThreads, 0, stream>>>(
        positions, inv_freq, cos_sin, rows, static_cast<int>(half), scale);
    PLEAT_CUDA_LAUNCHED();
  };
}

CudaLaunch prepare_forward(const Invocation& call, device::cuda::Lane& lane) {
  const signature::qk_rope::Forward<Arg> args(call.args);
  const RopeShape shape = rope_shape(call);
  CudaLaunch out;
  with_float(args.qkv.dtype, [&](auto zero) {
    using T = decltype(zero);
    RopeArgs<T> p = rope_args<T>(shape, args.qkv.dim(0));
    p.from = args.qkv.as<T>(), p.cos_sin = args.cos_sin.as<float>();
    p.q_norm = args.q_norm.as<T>(), p.k_norm = args.k_norm.as<T>();
    p.to = args.out.as<T>(), p.rstd = args.rstd.as<float>();
    p.eps = static_cast<float>(call.attr("eps"));
    out = launch_rope<true>(shape, p, lane);
  });
  return out;
}

CudaLaunch prepare_backward_input(const Invocation& call, device::cuda::Lane& lane) {
  const signature::qk_rope::BackwardInput<Arg> args(call.args);
  const RopeShape shape = rope_shape(call);
  CudaLaunch out;
  with_float(args.dout.dtype, [&](auto zero) {
    using T = decltype(zero);
    out = launch_rope_input(shape, rope_input_args<T>(shape, args), lane);
  });
  return out;
}

CudaLaunch prepare_backward_weight(const Invocation& call, device::cuda::Lane& lane) {
  const signature::qk_rope::BackwardWeight<Arg> args(call.args);
  const RopeShape shape = rope_shape(call);
  CudaLaunch out;
  if (!is_stored(args.dq_norm.dtype) || !is_stored(args.dk_norm.dtype)) return out;
  with_float(args.dout.dtype, [&](auto zero) {
    using T = decltype(zero);
    out =
        launch_rope_weight(shape, rope_gradient_args<T>(shape, args), args.dq_norm, args.dk_norm, call, lane);
  });
  return out;
}

constexpr CudaBinding kTable[] = {
    row<signature::rope_table::Forward>(prepare_table),
    row<signature::qk_rope::Forward>(prepare_forward),
    row<signature::qk_rope::BackwardInput>(prepare_backward_input),
    row<signature::qk_rope::BackwardWeight>(prepare_backward_weight),
    row<signature::qk_rope_back::BackwardInput>(prepare_rope_backward),
};

}  // namespace

std::span<const CudaBinding> rope_cuda_bindings() { return kTable; }

}  // namespace pleat::kernels
