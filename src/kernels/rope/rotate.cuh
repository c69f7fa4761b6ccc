// How the numbers of a rotary head are shared out to lanes, and the rotation, on the GPU (rotate.h has the
// rule).
//
// A lane takes units of two runs of N numbers, `low` and `high`. In the split form number j of low and number
// j of high are a pair; in the interleaved form pairs lie inside a run (N > 1) or are low and high themselves
// (N = 1). Numbers behind the rotary width are in units of their own and only travel.
#pragma once

#include <cstdint>

namespace pleat::kernels::cuda {

// M floats; four at a time where M allows, which needs 16-byte alignment.
template <int M>
__device__ inline void load_floats(const float* from, float (&to)[M]) {
  if constexpr (M % 4 == 0) {
#pragma unroll
    for (int j = 0; j < M; j += 4) {
      const float4 four = *reinterpret_cast<const float4*>(from + j);
      to[j] = four.x, to[j + 1] = four.y, to[j + 2] = four.z, to[j + 3] = four.w;
    }
  } else {
#pragma unroll
    for (int j = 0; j < M; ++j) to[j] = from[j];
  }
}

template <int N, bool kInterleaved>
struct HeadUnits {
  int d, r;  // head width, rotary width

  // Whether every run of N lies on one side of the rotary width, at a multiple of N.
  static bool fits(int64_t d, int64_t r) {
    return N == 1 ||
           (kInterleaved ? d % (2 * N) == 0 && r % N == 0 : r % (2 * N) == 0 && (d - r) % (2 * N) == 0);
  }

  __host__ __device__ int count() const { return N == 1 ? r / 2 + (d - r + 1) / 2 : d / (2 * N); }

  __device__ void place(int unit, int& low, int& high) const {
    if constexpr (N == 1) {
      if (kInterleaved || unit >= r / 2)
        low = 2 * unit, high = low + 1;  // r is even, so units behind r / 2 start at r
      else
        low = unit, high = r / 2 + unit;
    } else if constexpr (kInterleaved) {
      low = unit * N, high = d / 2 + unit * N;
    } else {
      const int half = r / 2;
      if (unit * N < half)
        low = unit * N, high = half + unit * N;
      else
        low = r + (unit * N - half), high = low + (d - r) / 2;
    }
  }

  // Turns the runs in place; cos_sin: r/2 cosines, r/2 sines of the row. direction -1 turns back.
  __device__ void turn(int low, int high, const float* cos_sin, float direction, float (&a)[N],
                       float (&b)[N]) const {
    const int half = r / 2;
    if constexpr (kInterleaved && N > 1) {
      turn_inside(low, cos_sin, direction, a);
      turn_inside(high, cos_sin, direction, b);
    } else {
      if (low >= r) return;
      const int pair = kInterleaved ? low / 2 : low;
      float cosine[N], sine[N];
      load_floats(cos_sin + pair, cosine);
      load_floats(cos_sin + half + pair, sine);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const float s = direction * sine[j], x = a[j], y = b[j];
        a[j] = x * cosine[j] - y * s;
        b[j] = y * cosine[j] + x * s;
      }
    }
  }

 private:
  __device__ void turn_inside(int at, const float* cos_sin, float direction, float (&a)[N]) const {
    if (at >= r) return;
    float cosine[N / 2], sine[N / 2];
    load_floats(cos_sin + at / 2, cosine);
    load_floats(cos_sin + r / 2 + at / 2, sine);
#pragma unroll
    for (int j = 0; j < N / 2; ++j) {
      const float s = direction * sine[j], x = a[2 * j], y = a[2 * j + 1];
      a[2 * j] = x * cosine[j] - y * s;
      a[2 * j + 1] = y * cosine[j] + x * s;
    }
  }
};

}  // namespace pleat::kernels::cuda
