// linear on the GPU: cuBLASLt does the three products; sums of the bias gradient are our own.
#include "device/cuda/check.h"
#include "kernels/cuda/bind.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/types.cuh"
#include "kernels/linear/linear.h"
#include "kernels/math/require.h"

namespace pleat::kernels {
namespace {

using namespace cuda;
using device::cuda::Lane;

constexpr int kRowsPerPart = 128;

// Sums of kRowsPerPart rows each, then of the parts: two fixed orders.
template <class T>
__global__ void column_parts(const T* dy, float* parts, int64_t rows, int64_t width) {
  const int64_t j = blockIdx.x * static_cast<int64_t>(256) + threadIdx.x;
  if (j >= width) return;
  const int64_t begin = blockIdx.y * static_cast<int64_t>(kRowsPerPart),
                end = min(rows, begin + kRowsPerPart);
  float sum = 0;
  for (int64_t r = begin; r < end; ++r) sum += to_float(dy[r * width + j]);
  parts[blockIdx.y * width + j] = sum;
}

template <class G>
__global__ void column_total(const float* parts, G* dbias, int64_t num_parts, int64_t width, int accumulate) {
  const int64_t j = blockIdx.x * static_cast<int64_t>(256) + threadIdx.x;
  if (j >= width) return;
  float sum = 0;
  for (int64_t i = 0; i < num_parts; ++i) sum += parts[i * width + j];
  dbias[j] = from_float<G>(accumulate ? to_float(dbias[j]) + sum : sum);
}

CudaLaunch bias_gradient(const Arg& dy, const Arg& dbias, Lane& lane) {
  const int64_t rows = dy.dim(0), width = dy.dim(1), num_parts = ceil_div(rows, kRowsPerPart);
  lane.need_scratch(num_parts * width * 4);
  CudaLaunch launch;
  with_float(dy.dtype, [&](auto t) {
    with_float(dbias.dtype, [&](auto g) {
      using T = decltype(t);
      using G = decltype(g);
      launch = [=, &lane, from = dy.as<T>(), to = dbias.as<G>(),
                accumulate = dbias.into() == Into::Accumulate] {
        float* parts = reinterpret_cast<float*>(lane.scratch());
        const unsigned blocks = static_cast<unsigned>(ceil_div(width, 256));
        if (rows > 0)
          column_parts<T><<<dim3(blocks, static_cast<unsigned>(num_parts)), 256, 0, lane.stream()>>>(
              from, parts, rows, width);
        column_total<G><<<blocks, 256, 0, lane.stream()>>>(parts, to, num_parts, width, accumulate);
        PLEAT_CUDA_LAUNCHED();
      };
    });
  });
  return launch;
}

// x w bias? residual? -> y
CudaLaunch prepare_forward(const Invocation& call, Lane& lane) {
  const signature::linear::Forward args(call.args);
  const Arg &x = args.x, &w = args.w, &bias = args.bias, &residual = args.residual, &y = args.y;
  require_rank("linear", "x", x, 2);
  require_rank("linear", "w", w, 2);
  const int64_t rows = x.dim(0), in = x.dim(1), out = w.dim(0);
  require_shape("linear", "w", w, {out, in});
  require_shape("linear", "bias", bias, {out});
  require_shape("linear", "residual", residual, {rows, out});
  require_shape("linear", "y", y, {rows, out});
  require_same_type({&args.x, &args.w, &args.bias, &args.residual, &args.y});
  Product p;
  p.what = "linear forward";
  p.m = rows, p.n = out, p.k = in;
  p.a = &x, p.b = &w, p.transpose_b = true, p.d = &y;
  p.c = residual.present ? &residual : nullptr;
  p.bias = bias.present ? &bias : nullptr;
  return matmul(p, lane);
}

// dy w -> dx+
CudaLaunch prepare_dgrad(const Invocation& call, Lane& lane) {
  const signature::linear::BackwardInput args(call.args);
  const Arg &dy = args.dy, &w = args.w, &dx = args.dx;
  require_rank("linear", "dy", dy, 2);
  require_rank("linear", "w", w, 2);
  require_shape("linear", "w", w, {dy.dim(1), w.dim(1)});
  require_shape("linear", "dx", dx, {dy.dim(0), w.dim(1)});
  require_same_type({&args.dy, &args.w, &args.dx});
  Product p;
  p.what = "linear dgrad";
  p.m = dy.dim(0), p.n = w.dim(1), p.k = dy.dim(1);
  p.a = &dy, p.b = &w, p.d = &dx;
  return matmul(p, lane);
}

// dy x -> dw+ dbias+?
CudaLaunch prepare_wgrad(const Invocation& call, Lane& lane) {
  const signature::linear::BackwardWeight args(call.args);
  const Arg &dy = args.dy, &x = args.x, &dw = args.dw, &dbias = args.dbias;
  require_rank("linear", "dy", dy, 2);
  require_shape("linear", "x", x, {dy.dim(0), x.dim(1)});
  require_shape("linear", "dw", dw, {dy.dim(1), x.dim(1)});
  require_shape("linear", "dbias", dbias, {dy.dim(1)});
  require_dtype("linear", "x", x, dy.dtype);
  Product p;
  p.what = "linear wgrad";
  p.m = dy.dim(1), p.n = x.dim(1), p.k = dy.dim(0);
  p.a = &dy, p.transpose_a = true, p.b = &x, p.d = &dw;
  CudaLaunch product = matmul(p, lane);
  if (!dbias.present) return product;
  CudaLaunch sums = bias_gradient(dy, dbias, lane);
  if (!sums) return {};
  return [product = std::move(product), sums = std::move(sums)] {
    product();
    sums();
  };
}

}  // namespace

std::span<const CudaBinding> linear_cuda_bindings() {
  using program::KernelKind;
  using program::Phase;
  static constexpr CudaBinding rows[] = {
      {KernelKind::linear, Phase::Forward, prepare_forward},
      {KernelKind::linear, Phase::BackwardInput, prepare_dgrad},
      {KernelKind::linear, Phase::BackwardWeight, prepare_wgrad},
  };
  return rows;
}

}  // namespace pleat::kernels
