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

// Vectors go by reference: without 512-bit registers passing them by value has no fixed convention.
inline void load(const double* p, Lanes& v) { std::memcpy(&v, p, sizeof v); }
inline void load(const float* p, Lanes& v) {
  FloatLanes narrow;
  std::memcpy(&narrow, p, sizeof narrow);
  v = __builtin_convertvector(narrow, Lanes);
}

// add_group(i, sums) adds elements i .. i+7 to the eight sums; element(i) is one of them alone, for the
// remainder.
template <class AddGroup, class Element>
inline double sum(int64_t n, const AddGroup& add_group, const Element& element) {
  Lanes even = {}, odd = {};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    add_group(i, even);
    add_group(i + 8, odd);
  }
  if (i + 8 <= n) {
    add_group(i, even);
    i += 8;
  }
  double tail = 0;
  for (; i < n; ++i) tail += element(i);
  even += odd;
  return (((even[0] + even[4]) + (even[2] + even[6])) + ((even[1] + even[5]) + (even[3] + even[7]))) + tail;
}

}  // namespace reduce_detail

template <class T>
inline double sum_of(const T* a, int64_t n) {
  using reduce_detail::Lanes, reduce_detail::load;
  return reduce_detail::sum(
      n,
      [=](int64_t i, Lanes& sums) {
        Lanes x;
        load(a + i, x);
        sums += x;
      },
      [=](int64_t i) { return static_cast<double>(a[i]); });
}

// Sum of a[i] b[i].
template <class T>
inline double dot_of(const T* a, const T* b, int64_t n) {
  using reduce_detail::Lanes, reduce_detail::load;
  return reduce_detail::sum(
      n,
      [=](int64_t i, Lanes& sums) {
        Lanes x, y;
        load(a + i, x);
        load(b + i, y);
        sums += x * y;
      },
      [=](int64_t i) { return static_cast<double>(a[i]) * static_cast<double>(b[i]); });
}

template <class T>
inline double sum_of_squares(const T* a, int64_t n) {
  return dot_of(a, a, n);
}

// Sum of a[i] b[i] c[i].
template <class T>
inline double dot3_of(const T* a, const T* b, const T* c, int64_t n) {
  using reduce_detail::Lanes, reduce_detail::load;
  return reduce_detail::sum(
      n,
      [=](int64_t i, Lanes& sums) {
        Lanes x, y, z;
        load(a + i, x);
        load(b + i, y);
        load(c + i, z);
        sums += x * y * z;
      },
      [=](int64_t i) {
        return static_cast<double>(a[i]) * static_cast<double>(b[i]) * static_cast<double>(c[i]);
      });
}

}  // namespace pleat::kernels
