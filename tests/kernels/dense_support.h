// What the tests of the dense kernels share: a bound for float results, bits over thread counts, refused
// arguments.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "kernels/kernel_support.h"

namespace pleat::kernels::testing {

// The same numbers in another element type.
inline Tensor as_dtype(const Tensor& t, tensor::Dtype dtype) {
  return Tensor::of(dtype, t.shape, t.numbers());
}

// Rounding of a sum of `length` products in float, relative to the norm of the result.
inline double float_bound(int64_t length) {
  return 4 * std::sqrt(static_cast<double>(length) + 4) * std::numeric_limits<float>::epsilon();
}

// Runs f(num_threads), which returns every output, for 1, 2 and 4 threads: all bits must agree.
template <class F>
void expect_same_bits(const F& f) {
  const std::vector<Tensor> one = f(1);
  for (int num_threads : {2, 4}) {
    const std::vector<Tensor> other = f(num_threads);
    ASSERT_EQ(one.size(), other.size());
    for (size_t i = 0; i < one.size(); ++i)
      EXPECT_TRUE(one[i] == other[i]) << "output " << i << " differs with " << num_threads << " threads";
  }
}

// f() must throw base::Error whose message holds `text`.
template <class F>
void expect_refused(const F& f, const std::string& text) {
  try {
    f();
  } catch (const base::Error& error) {
    EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
    return;
  }
  ADD_FAILURE() << "not refused: " << text;
}

}  // namespace pleat::kernels::testing
