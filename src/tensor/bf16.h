// bf16 on the host: the upper half of a float, for the few places that look at one.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace pleat::tensor {

inline float widened(uint16_t bf16) { return std::bit_cast<float>(static_cast<uint32_t>(bf16) << 16); }

// To nearest, ties to even; a NaN stays one.
inline uint16_t narrowed(float x) {
  if (std::isnan(x)) return 0x7FC0u;
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace pleat::tensor
