// A float with fewer bits, beside or instead of halves.h: what a bf16 weight keeps of its master where
// `optimizer.master` is not float32.
//
// A float24 is a float whose last eight bits are 0, kept as a bf16 and the other eight bits that are left (halves.h: the bf16
// is the nearest, the rest a signed distance, here in units of 2^8 last places).
//
// What an update leaves out is rounded by chance: up with the probability of the part that is left out, so that a change
// too small for a bit still arrives on average. To the nearest it would be lost at every step. What is read from
// elsewhere (a seed, a file) keeps its bf16, and is rounded beside it to the nearest, once.
#pragma once

#include <bit>
#include <cstdint>

#include "tensor/halves.h"

namespace pleat::tensor {

constexpr int kFloat24Drops = 8, kBf16Drops = 16;  // bits of a float

constexpr bool is_finite_bits(uint32_t bits) { return (bits & 0x7F800000u) != 0x7F800000u; }

// One of the two next to x, by `random`, of which `drops` bits are used; x itself where it is one. A finite x stays finite.
constexpr float without_bits_by_chance(float x, int drops, uint32_t random) {
  const uint32_t bits = std::bit_cast<uint32_t>(x), mask = (1u << drops) - 1;
  if (!is_finite_bits(bits))
    return std::bit_cast<float>((bits & ~mask) | (bits & mask ? 0x400000u : 0));  // NaN stays
  const uint32_t up = bits + (random & mask);
  return std::bit_cast<float>((is_finite_bits(up) ? up : bits) & ~mask);
}

struct ShortHalves {
  uint16_t high;  // a bf16
  int8_t rest;
};
// Of a float24.
constexpr ShortHalves split_short(float x) {
  const Halves halves = split(x);
  return {halves.high, static_cast<int8_t>(halves.rest >> kFloat24Drops)};
}
// Of a float's rest (halves.h): what is nearest and does not change the bf16.
constexpr int8_t short_rest(int16_t rest) {
  const int nearest = (rest + (1 << (kFloat24Drops - 1))) >> kFloat24Drops;
  return static_cast<int8_t>(nearest > 127 ? 127 : nearest);
}
constexpr float join_short(uint16_t high, int8_t rest) {
  return join(high, static_cast<int16_t>(rest * (1 << kFloat24Drops)));
}

}  // namespace pleat::tensor
