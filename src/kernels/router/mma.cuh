// Warp-level matrix products of bf16 with f32 sums, and asynchronous copies into shared memory, for the
// gate's narrow products.
//
// Fragments of mma.m16n8k16: A is 16 x 16, B 16 x 8, C 16 x 8. Of C a lane holds rows lane / 4 and lane / 4 +
// 8, columns 2 (lane % 4) and the one after. Tiles in shared memory have rows of a multiple of 16 bytes that
// is no multiple of 128, so that eight rows read by ldmatrix lie in different banks.
#pragma once

#include <cstdint>

#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/types.cuh"

namespace pleat::kernels::cuda::gate {

__device__ inline void load_matrices(uint32_t (&r)[4], const bf16* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(p)));
}
__device__ inline void load_matrices_transposed(uint32_t (&r)[4], const bf16* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(p)));
}

// The A fragment at rows [m, m+16), depth [k, k+16) of a tile stored [m][k], or [k][m].
__device__ inline void load_a(uint32_t (&a)[4], const bf16* tile, int stride, int m, int k, int lane) {
  load_matrices(a, tile + (m + lane % 16) * stride + k + lane / 16 * 8);
}
__device__ inline void load_a_transposed(uint32_t (&a)[4], const bf16* tile, int stride, int m, int k,
                                         int lane) {
  load_matrices_transposed(a, tile + (k + lane % 8 + lane / 16 * 8) * stride + m + lane / 8 % 2 * 8);
}
// The B fragments at columns [n, n+16) (two of them: b[0..1], b[2..3]) of a tile stored [n][k], or [k][n].
__device__ inline void load_b(uint32_t (&b)[4], const bf16* tile, int stride, int n, int k, int lane) {
  load_matrices(b, tile + (n + lane % 8 + lane / 16 * 8) * stride + k + lane / 8 % 2 * 8);
}
__device__ inline void load_b_transposed(uint32_t (&b)[4], const bf16* tile, int stride, int n, int k,
                                         int lane) {
  load_matrices_transposed(b, tile + (k + lane % 8 + lane / 8 % 2 * 8) * stride + n + lane / 16 * 8);
}

__device__ inline void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// 16 or 4 bytes to shared memory, zeros unless `there`. `from` must be a valid address in any case.
__device__ inline void copy_async(void* to, const void* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(there ? 16 : 0)
               : "memory");
}
__device__ inline void copy_word_async(void* to, const void* from, bool there) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(there ? 4 : 0)
               : "memory");
}
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kLeft>
__device__ inline void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

// Two floats as pairs of bf16, x in the lower half: x = high + low up to 2^-17 of x, so that two bf16
// products stand for one with a float factor.
__device__ inline void split(float x, float y, uint32_t& high, uint32_t& low) {
  const __nv_bfloat162 h = __floats2bfloat162_rn(x, y);
  const __nv_bfloat162 l = __floats2bfloat162_rn(x - __low2float(h), y - __high2float(h));
  high = *reinterpret_cast<const uint32_t*>(&h);
  low = *reinterpret_cast<const uint32_t*>(&l);
}

}  // namespace pleat::kernels::cuda::gate
