// Rotary frequencies of a model: one number per rotated pair, from the config alone.
#pragma once

#include <vector>

#include "config/config.h"

namespace pleat::model {

// theta^(-2i/r) for i < r/2, stretched by rope_type:
//   linear  all by 1 / rope_factor
//   llama3  wavelengths longer than L / low_freq_factor by 1 / rope_factor, shorter than L / high_freq_factor
//           not at all, smoothly in between (L = rope_original_length)
//   yarn    a linear ramp over the dimensions between beta_fast and beta_slow rotations over L
// `model` must be resolved.
std::vector<double> rope_frequencies(const config::ModelConfig& model);

// yarn's temperature: 1 for factor <= 1, else 0.1 * mscale * ln(factor) + 1.
double yarn_temperature(double factor, double mscale);

}  // namespace pleat::model
