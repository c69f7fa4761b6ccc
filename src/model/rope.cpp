#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace pleat::model {
namespace {

double llama3(const config::ModelConfig& m, double frequency) {
  const double wavelength = 2 * std::numbers::pi / frequency, length = double(m.rope_original_length);
  if (wavelength < length / m.rope_high_freq_factor) return frequency;
  if (wavelength > length / m.rope_low_freq_factor) return frequency / m.rope_factor;
  const double smooth =
      (length / wavelength - m.rope_low_freq_factor) / (m.rope_high_freq_factor - m.rope_low_freq_factor);
  return (1 - smooth) * frequency / m.rope_factor + smooth * frequency;
}

// The (fractional) dimension whose frequency makes `rotations` turns over the original length.
double dimension_of(const config::ModelConfig& m, double rotations) {
  return double(m.rotary_dim) *
         std::log(double(m.rope_original_length) / (rotations * 2 * std::numbers::pi)) /
         (2 * std::log(m.rope_theta));
}

double yarn(const config::ModelConfig& m, double frequency, int64_t i) {
  double low = dimension_of(m, m.rope_beta_fast), high = dimension_of(m, m.rope_beta_slow);
  if (m.rope_truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0);
  high = std::min(high, double(m.rotary_dim - 1));
  if (low == high) high += 0.001;
  const double ramp = std::clamp((double(i) - low) / (high - low), 0.0, 1.0);
  return frequency / m.rope_factor * ramp + frequency * (1 - ramp);
}

}  // namespace

std::vector<double> rope_frequencies(const config::ModelConfig& m) {
  std::vector<double> out;
  for (int64_t i = 0; i < m.rotary_dim / 2; ++i) {
    const double frequency = std::pow(m.rope_theta, -2.0 * double(i) / double(m.rotary_dim));
    out.push_back(m.rope_type == "linear"   ? frequency / m.rope_factor
                  : m.rope_type == "llama3" ? llama3(m, frequency)
                  : m.rope_type == "yarn"   ? yarn(m, frequency, i)
                                            : frequency);
  }
  return out;
}

double yarn_temperature(double factor, double mscale) {
  return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

}  // namespace pleat::model
