// N elements in registers as they lie in memory, and as floats. Eight bf16 stay four words: the compiler
// would give each 16-bit element a register of its own.
#pragma once

#include "kernels/cuda/types.cuh"

namespace pleat::kernels::cuda {

template <class T, int N>
struct Pack {
  static constexpr int kSize = N;
  Vec<T, N> vec;
  __device__ static Pack zero() { return Pack{}; }
  __device__ static Pack load(const T* from) { return {Vec<T, N>::load(from)}; }
  __device__ void store(T* to) const { vec.store(to); }
  __device__ void get(float (&to)[N]) const {
#pragma unroll
    for (int j = 0; j < N; ++j) to[j] = to_float(vec.at[j]);
  }
  __device__ void set(const float (&from)[N]) {
#pragma unroll
    for (int j = 0; j < N; ++j) vec.at[j] = from_float<T>(from[j]);
  }
  // The compiler forgets that it knows the unpacked floats; holding them would take twice the registers.
  __device__ void forget() {}
};

template <>
struct Pack<bf16, 8> {
  static constexpr int kSize = 8;
  uint4 words;
  __device__ static Pack zero() { return {make_uint4(0, 0, 0, 0)}; }
  __device__ static Pack load(const bf16* from) { return {*reinterpret_cast<const uint4*>(from)}; }
  __device__ void store(bf16* to) const { *reinterpret_cast<uint4*>(to) = words; }
  __device__ void get(float (&to)[8]) const {
    const uint32_t w[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      to[2 * j] = __uint_as_float(w[j] << 16);
      to[2 * j + 1] = __uint_as_float(w[j] & 0xffff0000u);
    }
  }
  __device__ void set(const float (&from)[8]) {
    words = make_uint4(two(from[0], from[1]), two(from[2], from[3]), two(from[4], from[5]),
                       two(from[6], from[7]));
  }
  __device__ void forget() { asm volatile("" : "+r"(words.x), "+r"(words.y), "+r"(words.z), "+r"(words.w)); }

 private:
  __device__ static uint32_t two(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }
};

// Elements of T in 16 bytes, the usual unit.
template <class T>
using Wide = Pack<T, kWide<T>>;

// For what is read or written once: the first to leave the caches. Packs of 16 bytes; others go the usual
// way.
template <class P, class T>
__device__ inline P load_streaming(const T* from) {
  if constexpr (sizeof(P) == 16) {
    const uint4 raw = __ldcs(reinterpret_cast<const uint4*>(from));
    return *reinterpret_cast<const P*>(&raw);
  } else {
    return P::load(from);
  }
}
template <class P, class T>
__device__ inline void store_streaming(const P& pack, T* to) {
  if constexpr (sizeof(P) == 16)
    __stcs(reinterpret_cast<uint4*>(to), *reinterpret_cast<const uint4*>(&pack));
  else
    pack.store(to);
}

}  // namespace pleat::kernels::cuda
