// The rotation of one rotary vector, shared by qk_rope and mla_pack.
#pragma once

#include <cstdint>

namespace pleat::kernels {

// Turns r numbers of x in pairs (a, b) -> (a cos - b sin, b cos + a sin) into y; direction -1 turns back.
// Pair i is (i, r/2 + i), or (2i, 2i+1) when interleaved, on both sides. cos_sin: r/2 cosines, r/2 sines.
// y may be x.
template <class T>
inline void rotate_pairs(int64_t r, bool interleaved, T direction, const T* cos_sin, const T* x, T* y) {
  const int64_t half = r / 2;
  const T* cosine = cos_sin;
  const T* sine = cos_sin + half;
  if (interleaved) {
    for (int64_t i = 0; i < half; ++i) {
      const T a = x[2 * i], b = x[2 * i + 1], s = direction * sine[i];
      y[2 * i] = a * cosine[i] - b * s;
      y[2 * i + 1] = b * cosine[i] + a * s;
    }
  } else {
    for (int64_t i = 0; i < half; ++i) {
      const T a = x[i], b = x[half + i], s = direction * sine[i];
      y[i] = a * cosine[i] - b * s;
      y[half + i] = b * cosine[i] + a * s;
    }
  }
}

}  // namespace pleat::kernels
