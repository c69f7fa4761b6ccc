// The gate on the GPU: which product runs where, the plain multiply-add products, and the sums over runs of
// tokens. Weight gradients may be wider than the weights.
#include "device/cuda/check.h"
#include "kernels/cuda/bind.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/paths.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/team.cuh"
#include "kernels/cuda/types.cuh"
#include "kernels/router/gate_products.cuh"
#include "kernels/router/router.h"

namespace pleat::kernels {
namespace {

using namespace cuda;

constexpr std::string_view kName = "router_gate";
constexpr int kThreads = 256, kTile = kGateTile, kDepth = 16;

// A matrix read by (row, column) through strides.
template <class T>
struct Strided {
  const T* data;
  int64_t row_stride, column_stride;
  __device__ float operator()(int64_t r, int64_t c) const {
    return to_float(data[r * row_stride + c * column_stride]);
  }
};

struct WriteLogits {
  float* logits;
  const void* bias;
  bool bias_is_bf16;
  int64_t experts;
  __device__ void operator()(int64_t t, int64_t e, float sum) const {
    if (bias)
      sum += bias_is_bf16 ? to_float(static_cast<const bf16*>(bias)[e]) : static_cast<const float*>(bias)[e];
    logits[t * experts + e] = sum;
  }
};

template <class T>
struct WriteRows {
  T* to;
  int64_t width;
  bool add;
  __device__ void operator()(int64_t r, int64_t c, float sum) const {
    T& cell = to[r * width + c];
    cell = from_float<T>(add ? to_float(cell) + sum : sum);
  }
};

struct WritePartial {
  float* partial;
  int64_t width, size;
  __device__ void operator()(int64_t r, int64_t c, float sum) const {
    partial[blockIdx.z * size + r * width + c] = sum;
  }
};

// write(m, n, sum over k of a(m, k) b(k, n)); grid z cuts k into runs of per_split.
template <class A, class B, class Write>
__global__ void __launch_bounds__(kThreads)
    multiply(A a, B b, int64_t rows, int64_t columns, int64_t depth, int64_t per_split, Write write) {
  __shared__ float tile_a[kDepth][kTile + 1], tile_b[kDepth][kTile + 1];
  const int64_t m0 = blockIdx.x * static_cast<int64_t>(kTile), n0 = blockIdx.y * static_cast<int64_t>(kTile);
  const int64_t begin = blockIdx.z * per_split, end = min(depth, begin + per_split);
  const int tm = threadIdx.x / 16, tn = threadIdx.x % 16;
  // Neighbouring threads read along whichever dimension is contiguous.
  const bool a_along_k = a.column_stride == 1, b_along_k = b.row_stride == 1;
  float sum[4][4] = {};
  for (int64_t k0 = begin; k0 < end; k0 += kDepth) {
#pragma unroll
    for (int i = 0; i < kTile * kDepth / kThreads; ++i) {
      const int at = i * kThreads + threadIdx.x;
      const int ka = a_along_k ? at % kDepth : at / kTile, ma = a_along_k ? at / kDepth : at % kTile;
      const int kb = b_along_k ? at % kDepth : at / kTile, nb = b_along_k ? at / kDepth : at % kTile;
      tile_a[ka][ma] = m0 + ma < rows && k0 + ka < end ? a(m0 + ma, k0 + ka) : 0.0f;
      tile_b[kb][nb] = n0 + nb < columns && k0 + kb < end ? b(k0 + kb, n0 + nb) : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kDepth; ++k)
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j)
          sum[i][j] = fmaf(tile_a[k][tm + 16 * i], tile_b[k][tn + 16 * j], sum[i][j]);
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int64_t m = m0 + tm + 16 * i, n = n0 + tn + 16 * j;
      if (m < rows && n < columns) write(m, n, sum[i][j]);
    }
}

template <class A, class B, class Write>
void launch_multiply(A a, B b, int64_t rows, int64_t columns, int64_t depth, int64_t splits, Write write,
                     cudaStream_t stream) {
  if (rows == 0 || columns == 0) return;
  const dim3 blocks(static_cast<unsigned>(ceil_div(rows, kTile)),
                    static_cast<unsigned>(ceil_div(columns, kTile)), static_cast<unsigned>(splits));
  multiply<<<blocks, kThreads, 0, stream>>>(a, b, rows, columns, depth, ceil_div(depth, splits), write);
  PLEAT_CUDA_LAUNCHED();
}

// dw (+)= partial[0] + partial[1] + ..., N numbers a thread.
template <class D, int N>
__global__ void __launch_bounds__(kThreads)
    add_partials(const float* partial, int64_t runs, int64_t size, bool add, D* dw) {
  const int64_t i = (blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x) * N;
  if (i >= size) return;
  float sum[N], next[N];
  Pack<float, N>::load(partial + i).get(sum);
#pragma unroll 8
  for (int64_t r = 1; r < runs; ++r) {
    Pack<float, N>::load(partial + r * size + i).get(next);
#pragma unroll
    for (int j = 0; j < N; ++j) sum[j] += next[j];
  }
  if (add) {
    Pack<D, N>::load(dw + i).get(next);
#pragma unroll
    for (int j = 0; j < N; ++j) sum[j] += next[j];
  }
  Pack<D, N> out;
  out.set(sum);
  out.store(dw + i);
}

template <class D>
void launch_add_partials(const float* partial, int64_t runs, int64_t size, bool add, D* dw,
                         cudaStream_t stream) {
  const auto launch = [&](auto width) {
    constexpr int N = width();
    add_partials<D, N><<<static_cast<unsigned>(ceil_div(size, kThreads * N)), kThreads, 0, stream>>>(
        partial, runs, size, add, dw);
  };
  if (size % 4 == 0 && all_aligned({partial, dw}))
    launch(std::integral_constant<int, 4>{});
  else
    launch(std::integral_constant<int, 1>{});
  PLEAT_CUDA_LAUNCHED();
}

// Column sums of dlogits over runs of tokens, in double; block x takes 32 experts, block y a run.
constexpr int kBiasThreads = 256;
__global__ void __launch_bounds__(kBiasThreads)
    bias_partials(const float* dlogits, int64_t tokens, int experts, double* partial) {
  __shared__ double sums[kBiasThreads / 32][33];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, e = blockIdx.x * 32 + lane;
  const int64_t run = (tokens + kBiasRuns - 1) / kBiasRuns, begin = blockIdx.y * run;
  double sum = 0;
  if (e < experts)
    for (int64_t t = begin + warp; t < min(tokens, begin + run); t += kBiasThreads / 32)
      sum += static_cast<double>(dlogits[t * experts + e]);
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || e >= experts) return;
  for (int w = 1; w < kBiasThreads / 32; ++w) sum += sums[w][lane];
  partial[static_cast<int64_t>(blockIdx.y) * experts + e] = sum;
}

template <class D>
__global__ void __launch_bounds__(kThreads) add_bias(const double* partial, int experts, bool add, D* dbias) {
  const int e = blockIdx.x * kThreads + threadIdx.x;
  if (e >= experts) return;
  double sum = add ? static_cast<double>(to_float(dbias[e])) : 0.0;
  for (int run = 0; run < kBiasRuns; ++run) sum += partial[run * experts + e];
  dbias[e] = from_float<D>(static_cast<float>(sum));
}

void require_gpu_size(const GateShape& shape) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  if (shape.tokens > kMost || shape.width > kMost)
    base::fail("[{}] [{}, {}] is too large", kName, shape.tokens, shape.width);
}

// Which way this product goes, said once.
// The copy engine wants rows of whole 16 bytes: of x and w in bf16, of logits in f32.
bool takes_tensor_cores(std::string_view phase, const GateShape& shape,
                        std::initializer_list<const Arg*> of) {
  const tensor::Dtype dtype = (*of.begin())->dtype;
  bool mma = dtype == tensor::Dtype::BF16 && shape.tokens > 0 && shape.width > 0 && shape.width % 8 == 0 &&
             shape.experts % 4 == 0;
  for (const Arg* a : of) mma = mma && reinterpret_cast<uintptr_t>(a->data) % 16 == 0;
  note_path(fmt::format("{} {}: {} tokens x {} -> {} experts, {}, logits f32: {}", kName, phase, shape.tokens,
                        shape.width, shape.experts, tensor::name_of(dtype),
                        mma ? "own kernel on tensor cores" : "own kernel, multiply-adds in f32"));
  return mma;
}

CudaLaunch prepare_router_gate_forward(const Invocation& call, device::cuda::Lane& lane) {
  const signature::router_gate::Forward<Arg> args(call.args);
  if (args.logits.dtype != tensor::Dtype::F32) return {};
  const GateShape shape{args.x.dim(0), args.x.dim(1), args.w.dim(0)};
  require_gpu_size(shape);
  if (takes_tensor_cores("forward", shape, {&args.x, &args.w, &args.logits}))
    return prepare_gate_forward(shape, args.x, args.w, args.bias, args.logits, lane);
  CudaLaunch out;
  with_float(args.x.dtype, [&](auto zero) {
    using C = decltype(zero);
    const Strided<C> x{args.x.as<C>(), shape.width, 1}, w{args.w.as<C>(), 1, shape.width};
    const WriteLogits write{args.logits.as<float>(), args.bias.as<C>(), std::is_same_v<C, bf16>,
                            shape.experts};
    out = [=, stream = lane.stream()] {
      launch_multiply(x, w, shape.tokens, shape.experts, shape.width, 1, write, stream);
    };
  });
  return out;
}

CudaLaunch prepare_router_gate_backward_input(const Invocation& call, device::cuda::Lane& lane) {
  const signature::router_gate::BackwardInput<Arg> args(call.args);
  if (args.dlogits.dtype != tensor::Dtype::F32) return {};
  const GateShape shape{args.dlogits.dim(0), args.w.dim(1), args.dlogits.dim(1)};
  require_gpu_size(shape);
  if (takes_tensor_cores("dgrad", shape, {&args.w, &args.dlogits, &args.dx}))
    return prepare_gate_backward_input(shape, args.dlogits, args.w, args.dx, lane);
  CudaLaunch out;
  with_float(args.w.dtype, [&](auto zero) {
    using C = decltype(zero);
    const Strided<float> dlogits{args.dlogits.as<float>(), shape.experts, 1};
    const Strided<C> w{args.w.as<C>(), shape.width, 1};
    const WriteRows<C> write{args.dx.as<C>(), shape.width, args.dx.into() == Into::Accumulate};
    out = [=, stream = lane.stream()] {
      launch_multiply(dlogits, w, shape.tokens, shape.width, shape.experts, 1, write, stream);
    };
  });
  return out;
}

CudaLaunch prepare_router_gate_backward_weight(const Invocation& call, device::cuda::Lane& lane) {
  const signature::router_gate::BackwardWeight<Arg> args(call.args);
  if (args.dlogits.dtype != tensor::Dtype::F32) return {};
  const GateShape shape{args.dlogits.dim(0), args.x.dim(1), args.dlogits.dim(1)};
  require_gpu_size(shape);
  const int64_t size = shape.experts * shape.width;
  GatePartials products;
  if (takes_tensor_cores("wgrad", shape, {&args.x, &args.dlogits})) {
    products = prepare_gate_backward_weight(shape, args.dlogits, args.x, lane);
  } else {
    products.runs = plain_gate_runs(shape);
    with_float(args.x.dtype, [&](auto zero) {
      using C = decltype(zero);
      const Strided<float> dlogits{args.dlogits.as<float>(), 1, shape.experts};
      const Strided<C> x{args.x.as<C>(), shape.width, 1};
      products.launch = [=, runs = products.runs, stream = lane.stream()](float* partial) {
        launch_multiply(dlogits, x, shape.experts, shape.width, shape.tokens, runs,
                        WritePartial{partial, shape.width, size}, stream);
      };
    });
  }
  CudaLaunch out;
  with_float(args.dw.dtype, [&](auto zero) {
    using D = decltype(zero);
    if (!products.launch) return;
    std::byte* const scratch = call.scratch_for(gate_weight_bytes(shape, products.runs));
    const float* dlogits = args.dlogits.as<float>();
    D *dw = args.dw.as<D>(), *dbias = args.dbias.as<D>();
    const bool add = args.dw.into() == Into::Accumulate, add_to_bias = args.dbias.into() == Into::Accumulate;
    out = [=, &lane] {
      if (size == 0) return;
      float* partial = reinterpret_cast<float*>(scratch);
      products.launch(partial);
      launch_add_partials(partial, products.runs, size, add, dw, lane.stream());
      if (!dbias) return;
      double* sums = reinterpret_cast<double*>(scratch);
      const int experts = static_cast<int>(shape.experts);
      bias_partials<<<dim3(static_cast<unsigned>(ceil_div(experts, 32)), kBiasRuns), kBiasThreads, 0,
                      lane.stream()>>>(dlogits, shape.tokens, experts, sums);
      PLEAT_CUDA_LAUNCHED();
      add_bias<<<static_cast<unsigned>(ceil_div(experts, kThreads)), kThreads, 0, lane.stream()>>>(
          sums, experts, add_to_bias, dbias);
      PLEAT_CUDA_LAUNCHED();
    };
  });
  return out;
}

constexpr CudaBinding kTable[] = {
    row<signature::router_gate::Forward>(prepare_router_gate_forward),
    row<signature::router_gate::BackwardInput>(prepare_router_gate_backward_input),
    row<signature::router_gate::BackwardWeight>(prepare_router_gate_backward_weight),
};

}  // namespace

std::span<const CudaBinding> router_gate_cuda_bindings() { return kTable; }

}  // namespace pleat::kernels
