#include "model/block/forced_load.h"

#include <cmath>
#include <vector>

namespace pleat::model {
namespace {

// Normal numbers are looked at on a grid from -kEnd to kEnd.
constexpr double kEnd = 12, kStep = 0.005;

double above(double x) { return 0.5 * std::erfc(x / std::sqrt(2.0)); }  // P(N > x)

// P(at most `most` of n independent events of probability q happen), 0 < q < 1.
double at_most(int64_t most, int64_t n, double q) {
  double sum = 0;
  const double log_n = std::lgamma(double(n) + 1);
  for (int64_t j = 0; j <= most && j <= n; ++j)
    sum += std::exp(log_n - std::lgamma(double(j) + 1) - std::lgamma(double(n - j) + 1) +
                    double(j) * std::log(q) + double(n - j) * std::log1p(-q));
  return std::fmin(sum, 1.0);
}

}  // namespace

double bias_of_load(int64_t num_experts, int64_t top_k, double load) {
  if (load == 1) return 0;  // alike
  // P(chosen | its logit is x): fewer than top_k of the others lie above x. Never below the grid, always
  // above it.
  std::vector<double> chosen;
  for (double x = -kEnd; x <= kEnd; x += kStep) {
    const double q = above(x);
    chosen.push_back(q >= 1 ? 0 : at_most(top_k - 1, num_experts - 1, q));
  }
  const auto share = [&](double bias) {
    constexpr double kDensity = 0.39894228040143268;
    double sum = above(kEnd - bias);
    for (size_t i = 0; i < chosen.size(); ++i) {
      const double z = -kEnd + kStep * double(i) - bias;
      sum += kStep * kDensity * std::exp(-z * z / 2) * chosen[i];
    }
    return sum;
  };
  const double wanted = load * double(top_k) / double(num_experts);
  double low = 0, high = 2 * kEnd;
  for (int i = 0; i < 60; ++i) {
    const double middle = 0.5 * (low + high);
    (share(middle) < wanted ? low : high) = middle;
  }
  return high;
}

}  // namespace pleat::model
