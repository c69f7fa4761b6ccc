// The values of all codes of E4M3, for loops that decode.
#pragma once

#include <array>
#include <cstdint>

#include "tensor/few_bits.h"

namespace pleat::tensor {

inline constexpr std::array<float, 256> kE4m3Values = [] {
  std::array<float, 256> out{};
  for (uint32_t c = 0; c < 256; ++c) out[c] = static_cast<float>(E4M3::value(c));
  return out;
}();

}  // namespace pleat::tensor
