#include "device/cuda/check.h"
#include "kernels/cuda/types.cuh"
#include "kernels/grouped_linear/grouped_bias.cuh"

namespace pleat::kernels::cuda {
namespace {

enum class Plain { Forward, Dgrad, Wgrad };

// 64 x 64 outputs by 256 threads of 4 x 4. blockIdx.x: tile of columns; y: tile of rows (found by walking the
// groups, except wgrad, where z is the group).
template <Plain kWhat, class T, class D>
__global__ void __launch_bounds__(256)
    plain_gemm(const T* a, const T* b, D* out, const int32_t* offsets, int num_groups, int m_size, int n_size,
               int k_size, int accumulate) {
  __shared__ float tile_a[16][68], tile_b[16][68];
  int e, row0, m0, m_end, depth;
  if (kWhat == Plain::Wgrad) {
    e = static_cast<int>(blockIdx.z), row0 = offsets[e], depth = offsets[e + 1] - row0;
    m0 = static_cast<int>(blockIdx.y) * 64, m_end = m_size;
    if (depth == 0 && accumulate) return;
  } else {
    int tile = static_cast<int>(blockIdx.y);
    for (e = 0; e < num_groups; ++e) {
      const int tiles = (offsets[e + 1] - offsets[e] + 63) / 64;
      if (tile < tiles) break;
      tile -= tiles;
    }
    if (e == num_groups) return;
    row0 = offsets[e], m0 = tile * 64, m_end = offsets[e + 1] - row0, depth = k_size;
  }
  const int n0 = static_cast<int>(blockIdx.x) * 64;
  const int64_t matrix =
      static_cast<int64_t>(e) *
      (kWhat == Plain::Dgrad ? static_cast<int64_t>(k_size) * n_size : static_cast<int64_t>(n_size) * k_size);
  float sum[4][4] = {};
  const int ty = static_cast<int>(threadIdx.x) / 16, tx = static_cast<int>(threadIdx.x) % 16;
  for (int k0 = 0; k0 < depth; k0 += 16) {
    for (int i = static_cast<int>(threadIdx.x); i < 64 * 16; i += 256) {
      // Neighbouring threads along what is contiguous in memory.
      int k, x;
      if (kWhat == Plain::Wgrad)
        k = i / 64, x = i % 64;
      else
        k = i % 16, x = i / 16;
      float value = 0;
      if (k0 + k < depth && m0 + x < m_end)
        value = kWhat == Plain::Wgrad ? to_float(a[static_cast<int64_t>(row0 + k0 + k) * m_size + m0 + x])
                                      : to_float(a[static_cast<int64_t>(row0 + m0 + x) * k_size + k0 + k]);
      tile_a[k][x] = value;
      if (kWhat == Plain::Forward)
        k = i % 16, x = i / 16;
      else
        k = i / 64, x = i % 64;
      value = 0;
      if (k0 + k < depth && n0 + x < n_size) {
        if (kWhat == Plain::Forward)
          value = to_float(b[matrix + static_cast<int64_t>(n0 + x) * k_size + k0 + k]);
        if (kWhat == Plain::Dgrad)
          value = to_float(b[matrix + static_cast<int64_t>(k0 + k) * n_size + n0 + x]);
        if (kWhat == Plain::Wgrad) value = to_float(b[static_cast<int64_t>(row0 + k0 + k) * n_size + n0 + x]);
      }
      tile_b[k][x] = value;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < 16; ++k)
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) sum[i][j] += tile_a[k][ty * 4 + i] * tile_b[k][tx * 4 + j];
    __syncthreads();
  }
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 4; ++j) {
      const int m = m0 + ty * 4 + i, n = n0 + tx * 4 + j;
      if (m >= m_end || n >= n_size) continue;
      D* to = kWhat == Plain::Wgrad ? out + (static_cast<int64_t>(e) * m_size + m) * n_size + n
                                    : out + static_cast<int64_t>(row0 + m) * n_size + n;
      *to = from_float<D>(accumulate ? to_float(*to) + sum[i][j] : sum[i][j]);
    }
}

template <Plain kWhat>
CudaLaunch plain(const Arg& a, const Arg& b, const Arg& offsets, const Arg& out, int64_t m, int64_t n,
                 int64_t k, device::cuda::Lane& lane) {
  const int64_t num_groups = offsets.dim(0) - 1, rows = a.dim(0);
  const dim3 grid(
      static_cast<unsigned>(ceil_div(n, 64)),
      static_cast<unsigned>(kWhat == Plain::Wgrad ? ceil_div(m, 64) : ceil_div(rows, 64) + num_groups),
      static_cast<unsigned>(kWhat == Plain::Wgrad ? num_groups : 1));
  CudaLaunch launch;
  const int accumulate = out.into() == Into::Accumulate;
  with_float(a.dtype, [&](auto t) {
    with_float(out.dtype, [&](auto d) {
      using T = decltype(t);
      using D = decltype(d);
      const T *pa = a.as<T>(), *pb = b.as<T>();
      D* po = out.as<D>();
      const int32_t* po_offsets = offsets.as<int32_t>();
      launch = [=, stream = lane.stream()] {
        if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
        plain_gemm<kWhat, T, D><<<grid, 256, 0, stream>>>(
            pa, pb, po, po_offsets, static_cast<int>(num_groups), static_cast<int>(m), static_cast<int>(n),
            static_cast<int>(k), accumulate);
        PLEAT_CUDA_LAUNCHED();
      };
    });
  });
  return launch;
}

}  // namespace

CudaLaunch plain_grouped_forward(const Arg& x, const Arg& w, const Arg& offsets, const Arg& y,
                                 device::cuda::Lane& lane) {
  return plain<Plain::Forward>(x, w, offsets, y, 0, w.dim(1), w.dim(2), lane);
}
CudaLaunch plain_grouped_dgrad(const Arg& dy, const Arg& w, const Arg& offsets, const Arg& dx,
                               device::cuda::Lane& lane) {
  return plain<Plain::Dgrad>(dy, w, offsets, dx, 0, w.dim(2), w.dim(1), lane);
}
CudaLaunch plain_grouped_wgrad(const Arg& dy, const Arg& x, const Arg& offsets, const Arg& dw,
                               device::cuda::Lane& lane) {
  return plain<Plain::Wgrad>(dy, x, offsets, dw, dw.dim(1), dw.dim(2), 0, lane);
}

}  // namespace pleat::kernels::cuda
