// What the gate's products on tensor cores share: two warpgroups multiply what one thread of a third
// has the copy engine bring into a ring of stages, and gradients of logits, which are f32, count as two bf16
// numbers.
#pragma once

#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/types.cuh"

namespace pleat::kernels::cuda::gate {

constexpr int kThreads = 384;           // two warpgroups that multiply, a third of which one thread loads
constexpr int kBoxBytes = 64 * 128;     // 64 rows of 128 bytes, as the copy engine brings them
constexpr int kRingBytes = 192 * 1024;  // of all stages
constexpr int kRingShared = 1024 + kRingBytes + 256;  // with room to align them, and barriers behind them
constexpr int kMostStages = 8;

struct Ring {
  std::byte* stages;
  uint64_t *full, *empty;
  int num_stages, stage = 0;
  uint32_t parity = 0;

  // By all threads of the block. `readers` arrivals empty a stage.
  __device__ Ring(std::byte* raw, int num, int readers) : num_stages(num) {
    stages = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(raw) + 1023) / 1024 * 1024);
    full = reinterpret_cast<uint64_t*>(stages + kRingBytes);
    empty = full + kMostStages;
    if (threadIdx.x == 0) {
      for (int s = 0; s < num; ++s) {
        barrier_init(&full[s], 1);
        barrier_init(&empty[s], readers);
      }
      barrier_init_fence();
    }
    __syncthreads();
  }
  __device__ void advance() {
    if (++stage == num_stages) stage = 0, parity ^= 1;
  }
  // The loading thread: waits for the stage and announces what it will bring.
  __device__ uint64_t* claim(int bytes) {
    barrier_wait(&empty[stage], parity ^ 1);
    barrier_arrive_expect(&full[stage], static_cast<uint32_t>(bytes));
    return &full[stage];
  }
  __device__ void wait_full() { barrier_wait(&full[stage], parity); }
};

// Two floats as pairs of bf16, x in the lower half: x = high + low up to 2^-17 of x, so that two bf16
// products stand for one with a float factor. Beyond the largest bf16, 3.39e38, high is infinite and low NaN.
__device__ inline void split(float x, float y, uint32_t& high, uint32_t& low) {
  const __nv_bfloat162 h = __floats2bfloat162_rn(x, y);
  const __nv_bfloat162 l = __floats2bfloat162_rn(x - __low2float(h), y - __high2float(h));
  high = *reinterpret_cast<const uint32_t*>(&h);
  low = *reinterpret_cast<const uint32_t*>(&l);
}

}  // namespace pleat::kernels::cuda::gate
