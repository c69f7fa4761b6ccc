// Checked integer arithmetic for every size that comes from a file or a config.
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>

#include "base/error.h"

namespace pleat::base {

template <class T>
T checked_add(T a, T b, const char* what) {
  static_assert(std::is_integral_v<T>);
  T out;
  if (__builtin_add_overflow(a, b, &out)) fail("{}: {} + {} overflows", what, a, b);
  return out;
}

template <class T>
T checked_mul(T a, T b, const char* what) {
  static_assert(std::is_integral_v<T>);
  T out;
  if (__builtin_mul_overflow(a, b, &out)) fail("{}: {} * {} overflows", what, a, b);
  return out;
}

// Value-preserving conversion: throws when the number does not fit.
template <class To, class From>
To checked_cast(From value, const char* what) {
  static_assert(std::is_integral_v<To> && std::is_integral_v<From>);
  To out = static_cast<To>(value);
  if (static_cast<From>(out) != value || ((out < To{}) != (value < From{})))
    fail("{}: {} does not fit in {} bits", what, value, sizeof(To) * 8);
  return out;
}

inline int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}
inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace pleat::base
