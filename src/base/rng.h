// Counter-based randomness (Philox 4x32-10): a pure function of a key and a counter, so that a random
// number belongs to (seed, step, layer, global token) and never to a rank, a slot or a call order. All of it
// is constexpr, which CUDA code may call: the GPU draws the CPU's numbers.
#pragma once

#include <array>
#include <cstdint>

#include "base/normal.h"

namespace pleat::base {

using RandomBlock = std::array<uint32_t, 4>;

// What a random number is for; part of the key, so that two uses never share a stream.
enum class RandomUse : uint32_t {
  Init = 1,
  Jitter = 2,
  ForcedLogits = 3,
  ForcedBias = 4,
  Shuffle = 5,
  Sample = 6,
  Test = 7,
  Update = 8
};

constexpr RandomBlock philox(RandomBlock counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(p0)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

// A stream of random numbers addressed by a 64-bit index (element, global token, ...).
class RandomStream {
 public:
  constexpr RandomStream(uint64_t seed, RandomUse use, uint32_t step, uint32_t layer)
      : key_{static_cast<uint32_t>(seed) ^ (static_cast<uint32_t>(use) * 0x85EBCA6Bu),
             static_cast<uint32_t>(seed >> 32)},
        step_(step),
        layer_(layer) {}

  constexpr RandomBlock block(uint64_t index) const {
    return philox({static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), step_, layer_}, key_);
  }
  // In [0, 1), 53 bits.
  constexpr double uniform(uint64_t index) const { return to_unit(block(index), 0); }
  // Standard normal, the same bits on every processor (base/normal.h); one block gives one number.
  constexpr double normal(uint64_t index) const {
    const RandomBlock b = block(index);
    return exact_normal(to_unit(b, 0), to_unit(b, 2));
  }

 private:
  static constexpr double to_unit(const RandomBlock& b, int at) {
    const uint64_t bits = (uint64_t{b[at]} << 32 | b[at + 1]) >> 11;
    return static_cast<double>(bits) * 0x1.0p-53;
  }
  std::array<uint32_t, 2> key_;
  uint32_t step_, layer_;
};

}  // namespace pleat::base
