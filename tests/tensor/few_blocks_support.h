// Blocks of codes as the recipes mxfp8 and nvfp4 of tensor/recipe.h mean them, in plain double arithmetic: what a kernel
// for GPUs that have such products will be compared with. No GPU here has them, so nothing but tests computes them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "tensor/few_bits.h"

namespace pleat::tensor::reference {

inline double largest_of(std::span<const double> x) {
  double largest = 0;
  for (const double v : x) largest = std::max(largest, std::abs(v));
  return largest;
}

// ---- mxfp8: 32 numbers, E4M3 codes, one E8M0 scale

struct Mxfp8Block {
  uint32_t scale = 0;  // E8M0
  std::vector<uint32_t> codes;
  double number(size_t i) const { return E4M3::value(codes[i]) * E8M0::value(scale); }
};

// The scale is the least power of two for which no number of the block saturates; E8M0 reaches from 2^-127 to 2^127.
inline Mxfp8Block mxfp8(std::span<const double> x) {
  const double largest = largest_of(x);
  int e = -127;
  while (e < 127 && std::ldexp(largest, -e) > E4M3::largest()) ++e;
  Mxfp8Block out;
  out.scale = static_cast<uint32_t>(largest == 0 ? 127 : e + 127);
  for (const double v : x) out.codes.push_back(E4M3::code(v / E8M0::value(out.scale)));
  return out;
}

// ---- nvfp4: 16 numbers, E2M1 codes, one E4M3 scale; one float32 scale for the tensor

struct Nvfp4Block {
  uint32_t scale = 0;  // E4M3
  std::vector<uint32_t> codes;
  double number(size_t i, float tensor_scale) const {
    return E2M1::value(codes[i]) * E4M3::value(scale) * static_cast<double>(tensor_scale);
  }
};

// The largest number of the tensor is the largest code of the block with the largest scale.
inline float nvfp4_tensor_scale(double largest) {
  return largest == 0 ? 1.0F : static_cast<float>(largest / (E2M1::largest() * E4M3::largest()));
}

// The code of x, up or down to a neighbour with the odds that make x the mean; `draw` is uniform in [0, 1). What lies
// past the largest code becomes that code.
template <class Format>
uint32_t stochastic_code(double x, double draw) {
  const double size = std::min(std::abs(x), Format::largest());
  uint32_t below = Format::code(size);  // the nearest
  if (Format::value(below) > size) --below;
  if (below < Format::kLargest) {
    const double low = Format::value(below), high = Format::value(below + 1);
    if (draw < (size - low) / (high - low)) ++below;
  }
  return below | (std::signbit(x) ? Format::kSign : 0);
}

// The block's scale is rounded to nearest, so that the largest number of a block may saturate by a little; it is never
// zero where the block is not. `draws`: one for each number rounds by them, none rounds to nearest.
inline Nvfp4Block nvfp4(std::span<const double> x, float tensor_scale, std::span<const double> draws = {}) {
  const double unit = static_cast<double>(tensor_scale), largest = largest_of(x);
  Nvfp4Block out;
  out.scale = E4M3::code(largest / E2M1::largest() / unit);
  if (largest > 0 && out.scale == 0) out.scale = 1;
  const double scale = E4M3::value(out.scale) * unit;
  for (size_t i = 0; i < x.size(); ++i) {
    const double v = largest == 0 ? 0 : x[i] / scale;
    out.codes.push_back(draws.empty() ? E2M1::code(v) : stochastic_code<E2M1>(v, draws[i]));
  }
  return out;
}

}  // namespace pleat::tensor::reference
