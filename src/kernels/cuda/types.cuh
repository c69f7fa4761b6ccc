// Element types and 16-byte accesses of CUDA kernels. Storage is bf16 or float, arithmetic is float.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/invocation.h"
#include "tensor/dtype.h"

namespace pleat::tensor {
template <>
struct DtypeOf<__nv_bfloat16> {
  static constexpr Dtype value = Dtype::BF16;
};
}  // namespace pleat::tensor

namespace pleat::kernels::cuda {

using bf16 = __nv_bfloat16;

__host__ __device__ inline float to_float(float x) { return x; }
__host__ __device__ inline float to_float(bf16 x) { return __bfloat162float(x); }
template <class T>
__host__ __device__ inline T from_float(float x);
template <>
__host__ __device__ inline float from_float<float>(float x) {
  return x;
}
template <>
__host__ __device__ inline bf16 from_float<bf16>(float x) {
  return __float2bfloat16_rn(x);
}

// N elements that travel together; N * sizeof(T) is at most 16 and a power of two. The address must be
// aligned to it.
template <class T, int N>
struct alignas(N * sizeof(T)) Vec {
  T at[N];
  static constexpr int kSize = N;
  __device__ static Vec load(const T* from) { return *reinterpret_cast<const Vec*>(from); }
  __device__ void store(T* to) const { *reinterpret_cast<Vec*>(to) = *this; }
};

// Elements of T in 16 bytes.
template <class T>
inline constexpr int kWide = 16 / static_cast<int>(sizeof(T));

// Calls f with a value of the storage type: with_float(dtype, [&](auto zero) { using T = decltype(zero); ...
// }). Returns false for a type that CUDA kernels do not store.
template <class F>
bool with_float(tensor::Dtype dtype, F&& f) {
  switch (dtype) {
    case tensor::Dtype::F32:
      f(float{});
      return true;
    case tensor::Dtype::BF16:
      f(bf16{});
      return true;
    default:
      return false;
  }
}

// Types with_float knows.
inline bool is_stored(tensor::Dtype dtype) {
  return dtype == tensor::Dtype::F32 || dtype == tensor::Dtype::BF16;
}

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace pleat::kernels::cuda
