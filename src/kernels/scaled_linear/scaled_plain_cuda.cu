// Products of codes on the ordinary cores: one thread for each output, which adds as the CPU does, in float. For what the
// tensor cores do not take: f32 outputs of rows, widths that are not whole units of 16 bytes.
#include "device/cuda/check.h"
#include "kernels/scaled_linear/scaled_plain.cuh"

namespace pleat::kernels::cuda {
namespace {

using device::cuda::Lane;

constexpr int kSide = 16, kBlock = 128;

// One operand, as Side of scaled_linear_cpu.cpp.
struct Side {
  const uint8_t* codes;
  int64_t stride;
  const float* scale;
  int64_t rows_per_scale, scale_stride, block_stride;
  int64_t matrix, matrix_scales;  // from a group's to the next's

  __device__ float value(int64_t row, int64_t k) const {
    const __half_raw half = __nv_cvt_fp8_to_halfraw(codes[row * stride + k], __NV_E4M3);
    return __half2float(__half(half));
  }
  __device__ float scale_at(int64_t row, int64_t block) const {
    return scale[row / rows_per_scale * scale_stride + block * block_stride];
  }
  __device__ Side of_group(int64_t g) const {
    Side s = *this;
    s.codes += g * matrix, s.scale += g * matrix_scales;
    return s;
  }
};

__device__ float multiply(const Side& a, int64_t row, const Side& b, int64_t column, int64_t begin,
                          int64_t end) {
  float sum = 0;
  for (int64_t k = begin; k < end; k += kBlock) {
    float part = 0;
    for (int64_t d = k; d < min(end, k + kBlock); ++d) part += a.value(row, d) * b.value(column, d);
    sum += part * (a.scale_at(row, k / kBlock) * b.scale_at(column, k / kBlock));
  }
  return sum;
}

template <class T>
struct Plain {
  Side a, b;
  const int32_t* offsets;  // null: one group
  int num_groups;
  int64_t rows, columns, depth;
  T* out;
  const T *bias, *residual;
  bool accumulate;
};

template <class T>
__global__ void __launch_bounds__(kSide* kSide) plain_rows(const Plain<T> p) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kSide + threadIdx.x,
                row = static_cast<int64_t>(blockIdx.y) * kSide + threadIdx.y;
  if (column >= p.columns || row >= (p.offsets ? p.offsets[p.num_groups] : p.rows)) return;
  int group = 0;
  while (p.offsets && p.offsets[group + 1] <= row) ++group;
  T* const out = p.out + row * p.columns + column;
  float sum = multiply(p.a, row, p.b.of_group(group), column, 0, p.depth);
  if (p.accumulate) sum = to_float(*out) + sum;
  sum += p.bias ? to_float(p.bias[column]) : 0.0f;
  *out = from_float<T>(sum + (p.residual ? to_float(p.residual[row * p.columns + column]) : 0.0f));
}

template <class T>
__global__ void __launch_bounds__(kSide* kSide) plain_depth(const Plain<T> p) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kSide + threadIdx.x,
                row = static_cast<int64_t>(blockIdx.y) * kSide + threadIdx.y;
  if (column >= p.columns || row >= p.rows) return;
  int64_t begin = 0, end = p.depth;
  const int group = static_cast<int>(blockIdx.z);
  if (p.offsets) {
    end = 0;
    for (int g = 0; g <= group; ++g) {
      begin = end;
      end += (p.offsets[g + 1] - p.offsets[g] + kBlock - 1) / kBlock * kBlock;
    }
    if (begin == end && p.accumulate) return;
  }
  T* const out = p.out + (group * p.rows + row) * p.columns + column;
  const float sum = multiply(p.a, row, p.b, column, begin, end);
  *out = from_float<T>(p.accumulate ? to_float(*out) + sum : sum);
}

dim3 grid_of(int64_t columns, int64_t rows, int64_t groups) {
  return dim3(static_cast<unsigned>(ceil_div(columns, kSide)), static_cast<unsigned>(ceil_div(rows, kSide)),
              static_cast<unsigned>(groups));
}

template <class F>
CudaLaunch with_output(const Arg& out, F&& f) {
  CudaLaunch launch;
  with_float(out.dtype, [&](auto zero) { launch = f(Plain<decltype(zero)>{}); });
  return launch;
}

Side by_columns(const Arg& columns, const Arg& scale) {
  return {
      static_cast<const uint8_t*>(columns.data), columns.dim(0), scale.as<float>(), 1, 1, scale.dim(1), 0, 0};
}

}  // namespace

CudaLaunch plain_scaled_rows(const ScaledRows& r, Lane& lane) {
  if (ceil_div(r.y.dim(0), kSide) > 65535)
    refuse(r.y, "{} rows are too many for one launch of the plain product", r.y.dim(0));
  return with_output(r.y, [&]<class T>(Plain<T> p) -> CudaLaunch {
    const size_t rank = r.w.shape.size();
    const int64_t n = r.w.dim(rank - 2), k = r.w.dim(rank - 1), down = r.w_scale.dim(rank - 2),
                  across = r.w_scale.dim(rank - 1);
    p.a = {static_cast<const uint8_t*>(r.x.data), k, r.x_scale.as<float>(), 1, across, 1, 0, 0};
    p.b = {static_cast<const uint8_t*>(r.w.data),
           k,
           r.w_scale.as<float>(),
           kBlock,
           across,
           1,
           n * k,
           down * across};
    if (r.offsets)
      p.offsets = r.offsets->as<int32_t>(), p.num_groups = static_cast<int>(r.offsets->dim(0) - 1);
    p.rows = r.y.dim(0), p.columns = n, p.depth = k, p.out = r.y.as<T>();
    if (r.bias) p.bias = r.bias->as<T>();
    if (r.residual) p.residual = r.residual->as<T>();
    p.accumulate = r.y.into() == Into::Accumulate;
    return [=, stream = lane.stream()] {
      if (p.rows == 0 || p.columns == 0) return;
      plain_rows<T><<<grid_of(p.columns, p.rows, 1), dim3(kSide, kSide), 0, stream>>>(p);
      PLEAT_CUDA_LAUNCHED();
    };
  });
}

CudaLaunch plain_scaled_depth(const ScaledDepth& d, Lane& lane) {
  return with_output(d.dw, [&]<class T>(Plain<T> p) -> CudaLaunch {
    const size_t rank = d.dw.shape.size();
    p.a = by_columns(d.dy, d.dy_scale), p.b = by_columns(d.x, d.x_scale);
    if (d.offsets) p.offsets = d.offsets->as<int32_t>();
    p.num_groups = rank == 3 ? static_cast<int>(d.dw.dim(0)) : 1;
    p.rows = d.dw.dim(rank - 2), p.columns = d.dw.dim(rank - 1), p.depth = d.dy.dim(0), p.out = d.dw.as<T>();
    p.accumulate = d.dw.into() == Into::Accumulate;
    return [=, stream = lane.stream()] {
      if (p.rows == 0 || p.columns == 0 || p.num_groups == 0) return;
      plain_depth<T><<<grid_of(p.columns, p.rows, p.num_groups), dim3(kSide, kSide), 0, stream>>>(p);
      PLEAT_CUDA_LAUNCHED();
    };
  });
}

}  // namespace pleat::kernels::cuda
