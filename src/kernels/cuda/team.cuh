// Rows shared out to teams of warps: one team holds one row in registers, 16 bytes a thread at a time, and
// walks over rows with the stride of the grid. Wide rows get several warps, narrow ones share a block.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "device/cuda/check.h"
#include "kernels/cuda/reduce.cuh"

namespace pleat::kernels::cuda {

// kTeams teams of kWarps warps make a block.
template <int kWarps, int kTeams>
struct Team {
  static constexpr int kLanes = 32 * kWarps, kThreads = kLanes * kTeams, kPerBlock = kTeams;

  __device__ static int lane() { return static_cast<int>(threadIdx.x) % kLanes; }
  __device__ static int in_block() { return static_cast<int>(threadIdx.x) / kLanes; }
  __device__ static int64_t index() { return static_cast<int64_t>(blockIdx.x) * kTeams + in_block(); }
  __device__ static int64_t count() { return static_cast<int64_t>(gridDim.x) * kTeams; }

  // Every thread of the team gets the sum. Calls alternate between phase 0 and 1: one barrier each is then
  // enough.
  __device__ static float sum(float x, int phase) {
    x = warp_sum(x);
    if constexpr (kWarps == 1) {
      return x;
    } else {
      __shared__ float parts[2][kTeams * kWarps];
      float* mine = parts[phase] + in_block() * kWarps;
      if (threadIdx.x % 32 == 0) mine[lane() / 32] = x;
      barrier();
      float total = mine[0];
#pragma unroll
      for (int i = 1; i < kWarps; ++i) total += mine[i];
      return total;
    }
  }

 private:
  __device__ static void barrier() {
    if constexpr (kTeams == 1)
      __syncthreads();
    else
      asm volatile("bar.sync %0, %1;" ::"r"(in_block() + 1), "n"(kLanes) : "memory");
  }
};

// Calls f(kPer as integral_constant, Team) for rows of `vecs` vectors; false when a row is too wide to hold.
// A thread has few vectors of a row, so that it can have those of the next on the way.
template <int kPer, class F>
bool with_team(int64_t vecs, F&& f) {
  using std::integral_constant;
  if (vecs <= 32) return f(integral_constant<int, 1>{}, Team<1, 4>{}), true;
  if (vecs <= 64) return f(integral_constant<int, 2>{}, Team<1, 4>{}), true;
  if constexpr (kPer == 4) {
    if (vecs <= 128) return f(integral_constant<int, 4>{}, Team<1, 4>{}), true;
    if (vecs <= 256) return f(integral_constant<int, 4>{}, Team<2, 2>{}), true;
    if (vecs <= 512) return f(integral_constant<int, 4>{}, Team<4, 1>{}), true;
    if (vecs <= 1024) return f(integral_constant<int, 4>{}, Team<8, 1>{}), true;
  } else {
    if (vecs <= 128) return f(integral_constant<int, 2>{}, Team<2, 2>{}), true;
    if (vecs <= 256) return f(integral_constant<int, 2>{}, Team<4, 1>{}), true;
    if (vecs <= 512) return f(integral_constant<int, 2>{}, Team<8, 1>{}), true;
    if (vecs <= 1024) return f(integral_constant<int, 2>{}, Team<16, 1>{}), true;
  }
  if (vecs <= 2048) return f(integral_constant<int, 4>{}, Team<16, 1>{}), true;
  return false;
}

// Blocks a multiprocessor must have room for, so that this many threads load at once.
constexpr int blocks_for(int threads, int block) { return threads > block ? threads / block : 1; }

inline int num_sms() {
  int device = 0, count = 0;
  PLEAT_CUDA(cudaGetDevice(&device));
  PLEAT_CUDA(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
  return count;
}

// Blocks of a grid that stays on the device until its work, `blocks` blocks of it, is done.
template <class Kernel>
unsigned resident_blocks(Kernel kernel, int threads, int64_t blocks, int64_t shared_bytes = 0) {
  int per_sm = 0;
  PLEAT_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, kernel, threads,
                                                           static_cast<size_t>(shared_bytes)));
  return static_cast<unsigned>(std::min<int64_t>(blocks, static_cast<int64_t>(num_sms()) * per_sm));
}

// True when all addresses (null counts) are multiples of `bytes`.
inline bool all_aligned(std::initializer_list<const void*> addresses, uintptr_t bytes = 16) {
  for (const void* p : addresses)
    if (reinterpret_cast<uintptr_t>(p) % bytes != 0) return false;
  return true;
}

}  // namespace pleat::kernels::cuda
