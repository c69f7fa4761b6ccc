// linear on the GPU: cuBLASLt does the three products; sums of the bias gradient are our own.
#include "device/cuda/check.h"
#include "kernels/cuda/bind.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/types.cuh"
#include "kernels/linear/contract.h"
#include "kernels/linear/linear.h"

namespace pleat::kernels {
namespace {

using namespace cuda;
using device::cuda::Lane;

constexpr int kRowsPerPart = kBiasPartRows;

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

CudaLaunch bias_gradient(const Arg& dy, const Arg& dbias, const Invocation& call, Lane& lane) {
  const int64_t rows = dy.dim(0), width = dy.dim(1), num_parts = ceil_div(rows, kRowsPerPart);
  float* const parts = reinterpret_cast<float*>(call.scratch_for(bias_part_bytes(dy)));
  CudaLaunch launch;
  with_float(dy.dtype, [&](auto t) {
    with_float(dbias.dtype, [&](auto g) {
      using T = decltype(t);
      using G = decltype(g);
      launch = [=, stream = lane.stream(), from = dy.as<T>(), to = dbias.as<G>(),
                accumulate = dbias.into() == Into::Accumulate] {
        const unsigned blocks = static_cast<unsigned>(ceil_div(width, 256));
        if (rows > 0)
          column_parts<T>
              <<<dim3(blocks, static_cast<unsigned>(num_parts)), 256, 0, stream>>>(from, parts, rows, width);
        column_total<G><<<blocks, 256, 0, stream>>>(parts, to, num_parts, width, accumulate);
        PLEAT_CUDA_LAUNCHED();
      };
    });
  });
  return launch;
}

CudaLaunch prepare_forward(const Invocation& call, Lane& lane) {
  const signature::linear::Forward<Arg> args(call.args);
  if (!is_stored(args.x.dtype)) return {};
  Product p;
  p.what = "linear forward";
  p.m = args.x.dim(0), p.n = args.w.dim(0), p.k = args.x.dim(1);
  p.a = &args.x, p.b = &args.w, p.transpose_b = true, p.d = &args.y;
  p.c = args.residual.present ? &args.residual : nullptr;
  p.bias = args.bias.present ? &args.bias : nullptr;
  return matmul(p, call, lane);
}

CudaLaunch prepare_dgrad(const Invocation& call, Lane& lane) {
  const signature::linear::BackwardInput<Arg> args(call.args);
  if (!is_stored(args.dy.dtype)) return {};
  Product p;
  p.what = "linear dgrad";
  p.m = args.dy.dim(0), p.n = args.w.dim(1), p.k = args.dy.dim(1);
  p.a = &args.dy, p.b = &args.w, p.d = &args.dx;
  return matmul(p, call, lane);
}

CudaLaunch prepare_wgrad(const Invocation& call, Lane& lane) {
  const signature::linear::BackwardWeight<Arg> args(call.args);
  if (!is_stored(args.dy.dtype)) return {};
  Product p;
  p.what = "linear wgrad";
  p.m = args.dy.dim(1), p.n = args.x.dim(1), p.k = args.dy.dim(0);
  p.a = &args.dy, p.transpose_a = true, p.b = &args.x, p.d = &args.dw;
  CudaLaunch product = matmul(p, call, lane);
  if (!args.dbias.present) return product;
  CudaLaunch sums = bias_gradient(args.dy, args.dbias, call, lane);
  if (!sums) return {};
  return [product = std::move(product), sums = std::move(sums)] {
    product();
    sums();
  };
}

constexpr CudaBinding kTable[] = {
    row<signature::linear::Forward>(prepare_forward),
    row<signature::linear::BackwardInput>(prepare_dgrad),
    row<signature::linear::BackwardWeight>(prepare_wgrad),
};

}  // namespace

std::span<const CudaBinding> linear_cuda_bindings() { return kTable; }

}  // namespace pleat::kernels
