// Sums and maxima over a warp or a block, in an order fixed by the shape of the block alone.
#pragma once

#include <cuda_runtime.h>

namespace pleat::kernels::cuda {

template <class T>
__device__ inline T warp_sum(T x) {
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

template <class T>
__device__ inline T warp_max(T x) {
  for (int step = 16; step > 0; step /= 2) {
    const T y = __shfl_xor_sync(0xffffffffu, x, step);
    x = x > y ? x : y;
  }
  return x;
}

// The largest of a warp's floats, none of which is NaN, in one instruction: floats compare like integers once
// the negative ones are turned round.
__device__ inline float warp_most(float x) {
  const auto turned = [](int bits) { return bits ^ (bits >> 31 & 0x7fffffff); };
  return __int_as_float(turned(__reduce_max_sync(0xffffffffu, turned(__float_as_int(x)))));
}

// Every thread gets the sum. kThreads is the block's size, a multiple of 32. May be called repeatedly.
template <int kThreads, class T>
__device__ inline T block_sum(T x) {
  __shared__ T parts[kThreads / 32];
  x = warp_sum(x);
  if (kThreads == 32) return x;
  __syncthreads();  // a former call's readers are done
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
  __syncthreads();
  T sum = parts[0];
#pragma unroll
  for (int i = 1; i < kThreads / 32; ++i) sum += parts[i];
  return sum;
}

template <int kThreads, class T>
__device__ inline T block_max(T x) {
  __shared__ T parts[kThreads / 32];
  x = warp_max(x);
  if (kThreads == 32) return x;
  __syncthreads();
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
  __syncthreads();
  T most = parts[0];
#pragma unroll
  for (int i = 1; i < kThreads / 32; ++i) most = parts[i] > most ? parts[i] : most;
  return most;
}

}  // namespace pleat::kernels::cuda
