#include "data/permutation.h"

#include <algorithm>
#include <bit>

#include "base/error.h"
#include "base/rng.h"

namespace pleat::data {
namespace {

// An invertible 64-bit mixer (multiply, xor-shift); every output bit depends on every input bit.
uint64_t mix(uint64_t x) {
  x ^= x >> 32;
  x *= 0xD6E8FEB86659FD93u;
  x ^= x >> 32;
  x *= 0xD6E8FEB86659FD93u;
  x ^= x >> 32;
  return x;
}

}  // namespace

Permutation::Permutation(int64_t size, uint64_t seed, int64_t epoch) : size_(size) {
  if (size < 1 || size > kMaxSize)
    base::fail("a permutation of {} elements was asked for; 1 to 2^48 are possible", size);
  const int bits = std::bit_width(static_cast<uint64_t>(size - 1));
  half_bits_ = std::max(1, (bits + 1) / 2);
  for (uint32_t round = 0; round < kNumRounds; ++round) {
    const base::RandomBlock block =
        base::RandomStream(seed, base::RandomUse::Shuffle, round, 0).block(static_cast<uint64_t>(epoch));
    keys_[round] = uint64_t{block[0]} << 32 | block[1];
  }
}

int64_t Permutation::operator()(int64_t index) const {
  PLEAT_CHECK(index >= 0 && index < size_, "index {} of {}", index, size_);
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t x = static_cast<uint64_t>(index);
  do {
    uint64_t left = x >> half_bits_, right = x & mask;
    for (const uint64_t key : keys_) {
      // The top bits of the mixer are its best ones.
      const uint64_t next = left ^ (mix(right ^ key) >> (64 - half_bits_));
      left = right;
      right = next;
    }
    x = left << half_bits_ | right;
  } while (x >= static_cast<uint64_t>(size_));
  return static_cast<int64_t>(x);
}

}  // namespace pleat::data
