// Numbers in eight bits and a scale for every block of them: what the moments of the optimizer can be kept in
// (docs/numerics.md, section 12).
//
// A code stands for a place T(c) in [-1, 1], a number for the scale S of its block times that place; S is the largest size in
// the block, which so is kept to the bit. Places are powers of two with steps of a fraction of an octave, so that a number is
// off by the same part of itself whatever its size: SignedCode has eight to an octave and a sign, RootCode sixteen and no
// sign. Both reach over almost 16 octaves. Of a block
//
//   S    = max |x|, NaN where an x is not finite
//   T(c) = 2^((c - kTop) / kPerOctave), rounded to float; T(0) = 0; of SignedCode c + 128 stands for -T(c)
//   decode: S T(c), rounded to float
//   encode: the code whose place is nearest to |x| / S (divided in double), of two as near the lower one, with the sign of x
//           where it is not 0. Of RootCode no x > 0 gets code 0: it gets 1.
//
// Both rise with what they are given, and encode(decode(c)) = c as long as no product is below the normal floats.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace pleat::tensor {

constexpr int64_t kCodeBlock = 256;  // elements that share a scale, one after the other in the logical tensor

// 2^(k / 16)
inline constexpr double kSixteenths[16] = {0x1.0p0,
                                           0x1.0b5586cf9890fp0,
                                           0x1.172b83c7d517bp0,
                                           0x1.2387a6e756238p0,
                                           0x1.306fe0a31b715p0,
                                           0x1.3dea64c123422p0,
                                           0x1.4bfdad5362a27p0,
                                           0x1.5ab07dd485429p0,
                                           0x1.6a09e667f3bcdp0,
                                           0x1.7a11473eb0187p0,
                                           0x1.8ace5422aa0dbp0,
                                           0x1.9c49182a3f090p0,
                                           0x1.ae89f995ad3adp0,
                                           0x1.c199bdd85529cp0,
                                           0x1.d5818dcfba487p0,
                                           0x1.ea4afa2a490dap0};

template <int kPerOctave, bool kSigned_>
struct BlockCode {
  static constexpr bool kSigned = kSigned_;
  static constexpr int kTop = kSigned ? 127 : 255;
  // The most that a number is off, as a part of itself: half the way between two places. Of its square.
  static constexpr double kStep = kSixteenths[16 / kPerOctave];
  static constexpr double kRounding = (kStep - 1) / (kStep + 1);
  static constexpr double kSquareRounding = (1 + kRounding) * (1 + kRounding) - 1;

  static constexpr std::array<float, 256> places() {
    std::array<float, 256> out{};
    for (int c = 1; c <= kTop; ++c) {
      const int below = kTop - c, octaves = (below + kPerOctave - 1) / kPerOctave;
      const int steps = octaves * kPerOctave - below;
      const double power = std::bit_cast<double>(static_cast<uint64_t>(1023 - octaves) << 52);
      out[static_cast<size_t>(c)] = static_cast<float>(power * kSixteenths[steps * (16 / kPerOctave)]);
      if (kSigned) out[static_cast<size_t>(c) + 128] = -out[static_cast<size_t>(c)];
    }
    if (kSigned) out[128] = -0.0f;
    return out;
  }
  static constexpr std::array<float, 256> kPlaces = places();

  // Half way from place c - 1 to place c.
  static constexpr std::array<double, 256> halves() {
    std::array<double, 256> out{};
    for (size_t c = 1; c <= kTop; ++c)
      out[c] = (static_cast<double>(kPlaces[c - 1]) + static_cast<double>(kPlaces[c])) / 2;
    return out;
  }
  static constexpr std::array<double, 256> kHalves = halves();

  static uint8_t code(float x, float scale) {
    if (!(scale > 0) || x == 0) return 0;
    const double place = static_cast<double>(std::abs(x)) / static_cast<double>(scale);
    // Near it by exponent and first bits of the fraction; then to the place itself.
    const uint64_t bits = std::bit_cast<uint64_t>(place);
    const int octave = static_cast<int>(bits >> 52) - 1023, sixteenth = static_cast<int>(bits >> 48 & 15);
    int code = std::clamp(kTop + octave * kPerOctave + sixteenth * kPerOctave / 16, 0, kTop);
    while (code < kTop && place > kHalves[static_cast<size_t>(code) + 1]) ++code;
    while (code > 0 && place <= kHalves[static_cast<size_t>(code)]) --code;
    if (!kSigned && code == 0) code = 1;
    return static_cast<uint8_t>(kSigned && code != 0 && x < 0 ? code + 128 : code);
  }
};
using SignedCode = BlockCode<8, true>;
using RootCode = BlockCode<16, false>;

// One block of at most kCodeBlock numbers; returns its scale.
template <class Code>
float encode_block(const float* x, int64_t count, uint8_t* codes) {
  float scale = 0;
  bool finite = true;
  for (int64_t i = 0; i < count; ++i) {
    finite = finite && std::isfinite(x[i]);
    scale = std::max(scale, std::abs(x[i]));
  }
  if (!finite) scale = std::numeric_limits<float>::quiet_NaN();
  for (int64_t i = 0; i < count; ++i) codes[i] = Code::code(x[i], scale);
  return scale;
}

template <class Code>
void decode_block(const uint8_t* codes, int64_t count, float scale, float* x) {
  for (int64_t i = 0; i < count; ++i) x[i] = scale * Code::kPlaces[codes[i]];
}

}  // namespace pleat::tensor
