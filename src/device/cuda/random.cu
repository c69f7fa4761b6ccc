#include "device/cuda/random.h"

#include <cuda_bf16.h>

#include <algorithm>
#include <vector>

#include "device/cuda/check.h"
#include "tensor/short_master.h"

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

namespace {

struct HighHalf {};
struct RestHalf {};
struct ShortRest {};

__device__ void put(float* out, int64_t at, float x) { out[at] = x; }
__device__ void put(HighHalf* out, int64_t at, float x) {
  reinterpret_cast<uint16_t*>(out)[at] = tensor::split(x).high;
}
__device__ void put(RestHalf* out, int64_t at, float x) {
  reinterpret_cast<int16_t*>(out)[at] = tensor::split(x).rest;
}

__device__ void put(ShortRest* out, int64_t at, float x) {
  reinterpret_cast<int8_t*>(out)[at] = tensor::short_rest(tensor::split(x).rest);
}

// `ends`: running sums of the pieces' counts.
template <class Out>
__global__ void normal_numbers(Out* out, base::RandomStream stream, double std_dev, const Drawn* pieces,
                               const int64_t* ends, int64_t num_pieces) {
  const int64_t total = ends[num_pieces - 1];
  for (int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; i < total;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    int64_t low = 0, high = num_pieces - 1;  // the first piece that ends behind i
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (ends[middle] > i)
        high = middle;
      else
        low = middle + 1;
    }
    const int64_t inside = i - (low == 0 ? 0 : ends[low - 1]);
    put(out, pieces[low].to + inside,
        static_cast<float>(std_dev * stream.normal(static_cast<uint64_t>(pieces[low].first + inside))));
  }
}

}  // namespace

void fill_normal(Lane& lane, void* out, tensor::Dtype dtype, const base::RandomStream& stream, double std_dev,
                 std::span<const Drawn> pieces) {
  if (pieces.empty()) return;
  std::vector<int64_t> ends;
  for (const Drawn& d : pieces) ends.push_back((ends.empty() ? 0 : ends.back()) + d.count);
  if (ends.back() == 0) return;
  const int64_t num_pieces = static_cast<int64_t>(pieces.size());
  const Memory table(num_pieces * static_cast<int64_t>(sizeof(Drawn) + sizeof(int64_t)));
  Drawn* const pieces_there = reinterpret_cast<Drawn*>(table.data());
  int64_t* const ends_there = reinterpret_cast<int64_t*>(pieces_there + num_pieces);
  lane.copy_in(pieces_there, pieces.data(), num_pieces * static_cast<int64_t>(sizeof(Drawn)));
  lane.copy_in(ends_there, ends.data(), num_pieces * static_cast<int64_t>(sizeof(int64_t)));
  constexpr int kThreads = 256;
  const int blocks = static_cast<int>(std::min<int64_t>(4096, (ends.back() + kThreads - 1) / kThreads));
  const auto launch = [&](auto* to) {
    normal_numbers<<<blocks, kThreads, 0, lane.stream()>>>(to, stream, std_dev, pieces_there, ends_there,
                                                           num_pieces);
    PLEAT_CUDA_LAUNCHED();
  };
  if (dtype == tensor::Dtype::F32)
    launch(static_cast<float*>(out));
  else if (dtype == tensor::Dtype::BF16)
    launch(static_cast<HighHalf*>(out));
  else if (dtype == tensor::Dtype::I16)
    launch(static_cast<RestHalf*>(out));
  else if (dtype == tensor::Dtype::U8)
    launch(static_cast<ShortRest*>(out));
  else
    base::fail("weights of type {} are not drawn on the GPU; needed is f32, bf16, i16 or u8",
               tensor::name_of(dtype));
  lane.synchronize();
}

}  // namespace pleat::device::cuda
