// Scores of one token over its experts, and their slopes. Element arithmetic in the router type, sums in
// double.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/math/exp.h"

namespace pleat::kernels {

enum class Score : uint8_t { Softmax = 0, Sigmoid = 1, SqrtSoftplus = 2 };

// sigmoid or sqrt(softplus) of one logit.
template <class R>
R point_score(Score score, R x) {
  if (score == Score::Sigmoid) return fast_sigmoid(x);
  const R soft = (x > R(0) ? x : R(0)) + std::log1p(fast_exp(-std::abs(x)));
  return std::sqrt(soft);
}

// d point_score / dx, given s = point_score(x).
template <class R>
R point_slope(Score score, R x, R s) {
  if (score == Score::Sigmoid) return s * (R(1) - s);
  return s == R(0) ? R(0) : fast_sigmoid(x) / (R(2) * s);
}

// s = softmax(x) over n values; returns log(sum exp(x)). Any NaN in x makes everything NaN.
template <class R>
double row_softmax(const R* x, int64_t n, R* s) {
  R largest = -std::numeric_limits<R>::infinity();
  for (int64_t i = 0; i < n; ++i) largest = x[i] > largest ? x[i] : largest;
  for (int64_t i = 0; i < n; ++i) s[i] = fast_exp(x[i] - largest);
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(s[i]);
  const R inverse = static_cast<R>(1.0 / sum);
  for (int64_t i = 0; i < n; ++i) s[i] *= inverse;
  return static_cast<double>(largest) + std::log(sum);
}

}  // namespace pleat::kernels
