// Biases of experts: each call reads the rows once, 16 bytes at a time where their width and place allow it.
#include "device/cuda/check.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/grouped_linear/grouped_bias.cuh"

namespace pleat::kernels::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kHeld = 4;  // packs a thread has on the way

// The last group that begins at or before the row.
__device__ int group_of(const int32_t* offsets, int num_groups, int row) {
  int low = 0, high = num_groups;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (offsets[middle] <= row)
      low = middle;
    else
      high = middle;
  }
  return low;
}

struct Rows {
  const int32_t* offsets;
  int num_groups, width;
};

// A block takes kThreads * kHeld packs that lie beside each other. Index: 32 bits where all packs can be counted so.
template <class T, int N, class Index>
__global__ void __launch_bounds__(kThreads) add_bias(T* y, const T* bias, const float* scale, Rows r) {
  const Index per_row = static_cast<Index>(r.width / N);
  const Index total = static_cast<Index>(r.offsets[r.num_groups]) * per_row;
  const Index first = static_cast<Index>(blockIdx.x) * (kThreads * kHeld) + threadIdx.x;
  if (first >= total) return;
  Pack<T, N> held[kHeld];
#pragma unroll
  for (int i = 0; i < kHeld; ++i)
    if (first + i * kThreads < total)
      held[i] = Pack<T, N>::load(y + static_cast<int64_t>(first + i * kThreads) * N);
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const Index at = first + i * kThreads;
    if (at >= total) return;
    const int row = static_cast<int>(at / per_row);
    const int column = static_cast<int>(at - static_cast<Index>(row) * per_row) * N;
    const int64_t group = group_of(r.offsets, r.num_groups, row);
    const float s = scale ? scale[row] : 1.0f;
    float x[N], b[N];
    held[i].get(x);
    Pack<T, N>::load(bias + group * r.width + column).get(b);
#pragma unroll
    for (int j = 0; j < N; ++j) x[j] += b[j] * s;
    held[i].set(x);
    held[i].store(y + static_cast<int64_t>(at) * N);
  }
}

// A warp per row.
template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    bias_dot(const T* dy, const T* bias, float* dscale, Rows r, int accumulate) {
  const int lane = threadIdx.x % 32;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (row >= r.offsets[r.num_groups]) return;
  const T* b =
      bias + static_cast<int64_t>(group_of(r.offsets, r.num_groups, static_cast<int>(row))) * r.width;
  const T* d = dy + row * r.width;
  float sum = 0;
#pragma unroll 4
  for (int column = lane * N; column < r.width; column += 32 * N) {
    float x[N], y[N];
    load_streaming<Pack<T, N>>(d + column).get(x);
    Pack<T, N>::load(b + column).get(y);
#pragma unroll
    for (int j = 0; j < N; ++j) sum += x[j] * y[j];
  }
  sum = warp_sum(sum);
  if (lane == 0) dscale[row] = accumulate ? dscale[row] + sum : sum;
}

// A block takes 32 packs of columns of a group. Warp w sums rows w, w + kWarps, ... in ascending order; the sums of the
// warps are added in theirs.
template <class T, int N, class G>
__global__ void __launch_bounds__(kThreads)
    bias_sum(const T* dy, const float* scale, G* dbias, Rows r, int accumulate) {
  __shared__ float sums[kWarps][32 * N];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = static_cast<int>(blockIdx.y);
  const int begin = r.offsets[group], end = r.offsets[group + 1];
  if (begin == end && accumulate) return;
  const int first = static_cast<int>(blockIdx.x) * 32 * N, column = first + lane * N;
  float sum[N] = {};
  if (column < r.width) {
#pragma unroll 4
    for (int row = begin + warp; row < end; row += kWarps) {
      float x[N];
      load_streaming<Pack<T, N>>(dy + static_cast<int64_t>(row) * r.width + column).get(x);
      const float s = scale ? scale[row] : 1.0f;
#pragma unroll
      for (int j = 0; j < N; ++j) sum[j] += x[j] * s;
    }
  }
#pragma unroll
  for (int j = 0; j < N; ++j) sums[warp][lane * N + j] = sum[j];
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < 32 * N && first + i < r.width; i += kThreads) {
    float all = sums[0][i];
#pragma unroll
    for (int w = 1; w < kWarps; ++w) all += sums[w][i];
    G* to = dbias + static_cast<int64_t>(group) * r.width + first + i;
    *to = from_float<G>(accumulate ? to_float(*to) + all : all);
  }
}

bool in_packs(int64_t pack, int64_t width, const void* a, const void* b) {
  return width % pack == 0 && reinterpret_cast<uintptr_t>(a) % 16 == 0 &&
         reinterpret_cast<uintptr_t>(b) % 16 == 0;
}

// Calls f with the elements of a pack: as many as 16 bytes hold, or 1.
template <class T, class F>
void with_pack(int64_t width, const void* a, const void* b, F&& f) {
  if (in_packs(kWide<T>, width, a, b))
    f(std::integral_constant<int, kWide<T>>{});
  else
    f(std::integral_constant<int, 1>{});
}

Rows rows_of(const Arg& rows, const Arg& offsets) {
  return {offsets.as<int32_t>(), static_cast<int>(offsets.dim(0) - 1), static_cast<int>(rows.dim(1))};
}

}  // namespace

CudaLaunch add_group_bias(const Arg& y, const Arg& bias, const Arg& scale, const Arg& offsets,
                          device::cuda::Lane& lane) {
  CudaLaunch launch;
  with_float(y.dtype, [&](auto t) {
    using T = decltype(t);
    with_pack<T>(y.dim(1), y.data, bias.data, [&](auto n) {
      constexpr int kPack = decltype(n)::value;
      const int64_t packs = y.dim(0) * (y.dim(1) / kPack), blocks = ceil_div(packs, kThreads * kHeld);
      launch = [=, r = rows_of(y, offsets), to = y.as<T>(), b = bias.as<T>(), s = scale.as<float>(),
                stream = lane.stream()] {
        if (blocks == 0) return;
        if (blocks * kThreads * kHeld < int64_t{1} << 32)
          add_bias<T, kPack, uint32_t><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(to, b, s, r);
        else
          add_bias<T, kPack, int64_t><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(to, b, s, r);
        PLEAT_CUDA_LAUNCHED();
      };
    });
  });
  return launch;
}

CudaLaunch group_bias_dot(const Arg& dy, const Arg& bias, const Arg& dscale, const Arg& offsets,
                          device::cuda::Lane& lane) {
  CudaLaunch launch;
  with_float(dy.dtype, [&](auto t) {
    using T = decltype(t);
    with_pack<T>(dy.dim(1), dy.data, bias.data, [&](auto n) {
      constexpr int kPack = decltype(n)::value;
      launch = [r = rows_of(dy, offsets), blocks = ceil_div(dy.dim(0), kWarps), d = dy.as<T>(),
                b = bias.as<T>(), to = dscale.as<float>(), accumulate = dscale.into() == Into::Accumulate,
                stream = lane.stream()] {
        if (blocks == 0) return;
        bias_dot<T, kPack><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(d, b, to, r, accumulate);
        PLEAT_CUDA_LAUNCHED();
      };
    });
  });
  return launch;
}

CudaLaunch group_bias_sum(const Arg& dy, const Arg& scale, const Arg& dbias, const Arg& offsets,
                          device::cuda::Lane& lane) {
  CudaLaunch launch;
  with_float(dy.dtype, [&](auto t) {
    with_float(dbias.dtype, [&](auto g) {
      using T = decltype(t);
      using G = decltype(g);
      with_pack<T>(dy.dim(1), dy.data, nullptr, [&](auto n) {
        constexpr int kPack = decltype(n)::value;
        const dim3 grid(static_cast<unsigned>(ceil_div(dy.dim(1), 32 * kPack)),
                        static_cast<unsigned>(offsets.dim(0) - 1));
        launch = [=, r = rows_of(dy, offsets), d = dy.as<T>(), s = scale.as<float>(), to = dbias.as<G>(),
                  accumulate = dbias.into() == Into::Accumulate, stream = lane.stream()] {
          if (grid.x == 0 || grid.y == 0) return;
          bias_sum<T, kPack, G><<<grid, kThreads, 0, stream>>>(d, s, to, r, accumulate);
          PLEAT_CUDA_LAUNCHED();
        };
      });
    });
  });
  return launch;
}

}  // namespace pleat::kernels::cuda
