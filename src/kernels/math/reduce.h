// Sums over a row in double, whatever the element type, in one fixed order that the compiler can put into
// vectors.
//
// A plain loop would stay scalar (its order is binding without fast-math). Here sixteen running sums take the
// elements in turn and are added pairwise at the end; the order is a function of the length alone.
#pragma once

#include <cstdint>
#include <cstring>

namespace pleat::kernels {
namespace reduce_detail {

typedef double Lanes __attribute__((vector_size(64)));
typedef float FloatLanes __attribute__((vector_size(32)));

inline Lanes load(const double* p) {
  Lanes v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
inline Lanes load(const float* p) {
  FloatLanes v;
  std::memcpy(&v, p, sizeof v);
  return __builtin_convertvector(v, Lanes);
}

// term(i) over Lanes for whole groups of eight, rest(i) over double for the remainder.
template <class Term, class Rest>
inline double sum(int64_t n, const Term& term, const Rest& rest) {
  Lanes even = {}, odd = {};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    even += term(i);
    odd += term(i + 8);
  }
  if (i + 8 <= n) {
    even += term(i);
    i += 8;
  }
  double tail = 0;
  for (; i < n; ++i) tail += rest(i);
  const Lanes s = even + odd;
  return (((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]))) + tail;
}

}  // namespace reduce_detail

template <class T>
inline double sum_of(const T* a, int64_t n) {
  using reduce_detail::load;
  return reduce_detail::sum(
      n, [=](int64_t i) { return load(a + i); }, [=](int64_t i) { return static_cast<double>(a[i]); });
}

template <class T>
inline double sum_of_squares(const T* a, int64_t n) {
  using reduce_detail::load;
  return reduce_detail::sum(
      n, [=](int64_t i) { return load(a + i) * load(a + i); },
      [=](int64_t i) { return static_cast<double>(a[i]) * static_cast<double>(a[i]); });
}

template <class T>
inline double dot_of(const T* a, const T* b, int64_t n) {
  using reduce_detail::load;
  return reduce_detail::sum(
      n, [=](int64_t i) { return load(a + i) * load(b + i); },
      [=](int64_t i) { return static_cast<double>(a[i]) * static_cast<double>(b[i]); });
}

// Sum of a[i] b[i] c[i].
template <class T>
inline double dot3_of(const T* a, const T* b, const T* c, int64_t n) {
  using reduce_detail::load;
  return reduce_detail::sum(
      n, [=](int64_t i) { return load(a + i) * load(b + i) * load(c + i); },
      [=](int64_t i) {
        return static_cast<double>(a[i]) * static_cast<double>(b[i]) * static_cast<double>(c[i]);
      });
}

}  // namespace pleat::kernels
