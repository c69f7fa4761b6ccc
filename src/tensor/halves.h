// A float as a bf16 and the 16 bits it left out. The bf16 is the float rounded to the nearest, ties away from
// zero; the rest is the signed distance in units of the float's last place, so that both together are the
// float, bit for bit. A NaN stays a NaN; its payload may change. A narrow weight and its rest are the float32 master weight in
// four bytes instead of six.
#pragma once

#include <bit>
#include <cstdint>

namespace pleat::tensor {

struct Halves {
  uint16_t high;  // a bf16
  int16_t rest;
};

constexpr Halves split(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const bool nan = (bits & 0x7FFFFFFFu) > 0x7F800000u;  // stays one; rounding might make a zero of it
  const uint32_t high = nan ? (bits >> 16) | 0x40u : (bits + 0x8000u) >> 16;
  return {static_cast<uint16_t>(high), static_cast<int16_t>(static_cast<uint16_t>(bits - (high << 16)))};
}

constexpr float join(uint16_t high, int16_t rest) {
  return std::bit_cast<float>((static_cast<uint32_t>(high) << 16) +
                              static_cast<uint32_t>(static_cast<int32_t>(rest)));
}

}  // namespace pleat::tensor
