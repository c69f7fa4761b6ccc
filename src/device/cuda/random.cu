#include "device/cuda/random.h"

#include <cuda_bf16.h>

#include "device/cuda/check.h"

namespace pleat::device::cuda {
namespace {

__device__ float random_at(int64_t i, uint32_t seed) {
  uint64_t z = (static_cast<uint64_t>(i) + 0x9E3779B97F4A7C15ull * seed) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  z ^= z >> 31;
  const float a = static_cast<float>(static_cast<uint32_t>(z)) * 2.3283064e-10f;
  const float b = static_cast<float>(static_cast<uint32_t>(z >> 32)) * 2.3283064e-10f;
  return (a + b - 1.0f) * 2.0f;
}

template <class T>
__global__ void random_numbers(T* x, int64_t n, uint32_t seed, float scale) {
  for (int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; i < n;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x)
    x[i] = static_cast<T>(scale * random_at(i, seed));
}

void write_random(Lane& lane, void* data, int64_t n, bool is_bf16, uint32_t seed, float scale) {
  if (n == 0) return;
  if (is_bf16)
    random_numbers<<<1024, 256, 0, lane.stream()>>>(static_cast<__nv_bfloat16*>(data), n, seed, scale);
  else
    random_numbers<<<1024, 256, 0, lane.stream()>>>(static_cast<float*>(data), n, seed, scale);
  PLEAT_CUDA_LAUNCHED();
}

}  // namespace

void fill_random(Lane& lane, void* data, int64_t n, bool is_bf16, uint32_t seed) {
  write_random(lane, data, n, is_bf16, seed, 1);
}

void fill_random_std(Lane& lane, void* data, int64_t n, bool is_bf16, uint32_t seed, float std_dev) {
  constexpr float kStd = 0.81649658f;  // of random_at: sqrt(2 / 3)
  write_random(lane, data, n, is_bf16, seed, std_dev / kStd);
}

}  // namespace pleat::device::cuda
