// Square roots of an array with vector instructions.
//
// The compiler keeps a loop over std::sqrt scalar because the library function may set errno. IEEE square
// roots are correctly rounded, so the vector and the scalar part give the same bits. x and y do not overlap.
// The masked forms with a full mask are the plain ones without the header's uninitialised placeholder (a g++
// 12 warning).
#pragma once

#include <cmath>
#include <cstdint>
#ifdef __AVX__
#include <immintrin.h>
#endif

namespace pleat::kernels {

inline void square_roots(const float* x, int64_t count, float* y) {
  int64_t i = 0;
#if defined(__AVX512F__)
  for (; i + 16 <= count; i += 16)
    _mm512_storeu_ps(y + i, _mm512_maskz_sqrt_ps(0xFFFF, _mm512_loadu_ps(x + i)));
#elif defined(__AVX__)
  for (; i + 8 <= count; i += 8) _mm256_storeu_ps(y + i, _mm256_sqrt_ps(_mm256_loadu_ps(x + i)));
#endif
  for (; i < count; ++i) y[i] = std::sqrt(x[i]);
}

inline void square_roots(const double* x, int64_t count, double* y) {
  int64_t i = 0;
#if defined(__AVX512F__)
  for (; i + 8 <= count; i += 8) _mm512_storeu_pd(y + i, _mm512_maskz_sqrt_pd(0xFF, _mm512_loadu_pd(x + i)));
#elif defined(__AVX__)
  for (; i + 4 <= count; i += 4) _mm256_storeu_pd(y + i, _mm256_sqrt_pd(_mm256_loadu_pd(x + i)));
#endif
  for (; i < count; ++i) y[i] = std::sqrt(x[i]);
}

}  // namespace pleat::kernels
