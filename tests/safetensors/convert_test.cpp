// Conversions against exact arithmetic: every pattern of both 16-bit types, and every place where rounding
// decides, approached from both sides.
#include "safetensors/convert.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/error.h"
#include "safetensors/safetensors_support.h"

namespace pleat::safetensors {
namespace {

struct Format {
  ElementType type;
  int mantissa, bias;
  unsigned infinity() const { return 0x7FFFu >> mantissa << mantissa; }
  // By definition, in exact powers of two; finite patterns only.
  double value(unsigned pattern) const {
    const int exponent = static_cast<int>((pattern & 0x7FFFu) >> mantissa);
    const int fraction = static_cast<int>(pattern & ((1u << mantissa) - 1));
    const double magnitude = exponent == 0
                                 ? std::ldexp(fraction, 1 - bias - mantissa)
                                 : std::ldexp(fraction + (1 << mantissa), exponent - bias - mantissa);
    return pattern & 0x8000u ? -magnitude : magnitude;
  }
};

const Format kFormats[] = {{ElementType::BF16, 7, 127}, {ElementType::F16, 10, 15}};

template <class T>
uint16_t encode_one(ElementType type, T value) {
  uint16_t out = 0xDEAD;
  encode(type, std::span<const T>(&value, 1), std::as_writable_bytes(std::span(&out, 1)));
  return out;
}

template <class T>
std::vector<T> decode_every_pattern(ElementType type) {
  std::vector<uint16_t> patterns(65536);
  for (size_t i = 0; i < patterns.size(); ++i) patterns[i] = static_cast<uint16_t>(i);
  std::vector<T> values(65536);
  decode(type, std::as_bytes(std::span(patterns)), std::span<T>(values));
  return values;
}

template <class T>
void check_every_pattern(const Format& format) {
  const std::vector<T> values = decode_every_pattern<T>(format.type);
  for (unsigned pattern = 0; pattern < 65536; ++pattern) {
    const T value = values[pattern];
    ASSERT_EQ(std::signbit(value), pattern >= 0x8000u);
    const unsigned magnitude = pattern & 0x7FFFu;
    if (magnitude < format.infinity())
      ASSERT_EQ(static_cast<double>(value), format.value(pattern)) << pattern;
    else if (magnitude == format.infinity())
      ASSERT_TRUE(std::isinf(value)) << pattern;
    else
      ASSERT_TRUE(std::isnan(value)) << pattern;
  }
  std::vector<uint16_t> back(65536);
  encode(format.type, std::span<const T>(values), std::as_writable_bytes(std::span(back)));
  for (unsigned pattern = 0; pattern < 65536; ++pattern) ASSERT_EQ(back[pattern], pattern);
}

TEST(Convert, EveryPatternHasItsValueAndComesBack) {
  for (const Format& format : kFormats) {
    check_every_pattern<float>(format);
    check_every_pattern<double>(format);
  }
}

// Between every two neighbours: the middle goes to the even one, one step beside it to the nearer one. From
// the largest finite value on, the neighbour is the power of two that the next exponent would stand for.
template <class T>
void check_every_middle(const Format& format) {
  constexpr T kUp = std::numeric_limits<T>::infinity();
  for (unsigned low = 0; low < format.infinity(); ++low) {
    const unsigned high = low + 1;
    const double next = high == format.infinity() ? std::ldexp(1.0, format.bias + 1) : format.value(high);
    const double exact = format.value(low) / 2 + next / 2;  // no overflow: both halves and the sum are exact
    const T middle = static_cast<T>(exact);
    if (static_cast<double>(middle) != exact) {  // half of BF16's last subnormal: below float's range of bits
      ADD_FAILURE() << "the middle above " << low << " is not exact";
      return;
    }
    const unsigned even = low % 2 == 0 ? low : high;
    for (const unsigned sign : {0u, 0x8000u}) {
      const T s = sign ? T{-1} : T{1};
      ASSERT_EQ(encode_one(format.type, s * middle), sign | even) << low;
      ASSERT_EQ(encode_one(format.type, s * std::nextafter(middle, T{0})), sign | low) << low;
      ASSERT_EQ(encode_one(format.type, s * std::nextafter(middle, kUp)), sign | high) << low;
    }
  }
}

TEST(Convert, RoundsToNearestTiesToEven) {
  for (const Format& format : kFormats) {
    check_every_middle<float>(format);
    check_every_middle<double>(format);
  }
}

TEST(Convert, DoublesAreRoundedOnce) {
  // 1 + half a place + a little: rounded to float first it would be a tie and go down to the even 1.
  for (const Format& format : kFormats) {
    const double value = 1.0 + std::ldexp(0.5, -format.mantissa) + std::ldexp(1.0, -50);
    EXPECT_EQ(format.value(encode_one(format.type, value)), 1.0 + std::ldexp(1.0, -format.mantissa));
    EXPECT_EQ(format.value(encode_one(format.type, static_cast<float>(value))), 1.0);
  }
}

template <class T, class Bits>
void check_random_bits(const Format& format, uint64_t seed) {
  Random random(seed);
  for (int i = 0; i < 200'000; ++i) {
    // Exponents near the narrow range, or any bits at all.
    T value = std::bit_cast<T>(static_cast<Bits>(random.bits()));
    if (i % 2 == 0)
      value = std::ldexp(
          static_cast<T>(1 + static_cast<double>(random.below(1u << 23)) * 0x1p-23),
          static_cast<int>(random.below(static_cast<uint64_t>(2 * format.bias + 20))) - format.bias - 12);
    const uint16_t got = encode_one(format.type, value);
    if (std::isnan(value)) {
      ASSERT_GT(got & 0x7FFFu, format.infinity());
      ASSERT_EQ(got >= 0x8000u, std::signbit(value));
      continue;
    }
    if ((got & 0x7FFFu) == format.infinity()) {
      const double limit =
          format.value(format.infinity() - 1) + std::ldexp(0.5, format.bias - format.mantissa);
      ASSERT_GE(std::abs(static_cast<double>(value)), limit);
      continue;
    }
    // No neighbour is nearer, and of two equally near ones it is the even.
    const auto distance = [&](unsigned pattern) {
      return std::abs(static_cast<long double>(format.value(pattern)) - static_cast<long double>(value));
    };
    const unsigned magnitude = got & 0x7FFFu, sign = got & 0x8000u;
    for (const unsigned other : {magnitude == 0 ? 1u : magnitude - 1, magnitude + 1}) {
      if (other >= format.infinity()) continue;
      ASSERT_LE(distance(got), distance(sign | other)) << value;
      ASSERT_TRUE(distance(got) < distance(sign | other) || magnitude % 2 == 0) << value;
    }
  }
}

TEST(Convert, RandomNumbersGoToTheNearest) {
  for (const Format& format : kFormats) {
    check_random_bits<float, uint32_t>(format, 1);
    check_random_bits<double, uint64_t>(format, 2);
  }
}

TEST(Convert, WideTypes) {
  const std::vector<float> floats = {0.0f, -0.0f, 1.5f, -3.25e-40f, INFINITY, 3.4e38f};
  std::vector<std::byte> disk(floats.size() * 8);
  std::vector<float> back(floats.size());
  encode(ElementType::F64, std::span<const float>(floats), disk);
  decode(ElementType::F64, disk, std::span<float>(back));
  EXPECT_EQ(std::memcmp(back.data(), floats.data(), floats.size() * 4), 0);
  const std::vector<double> doubles = {0.1, 1e39, -1e-50, 16777217.0};
  disk.resize(doubles.size() * 4);
  encode(ElementType::F32, std::span<const double>(doubles), disk);
  std::vector<double> narrowed(doubles.size());
  decode(ElementType::F32, disk, std::span<double>(narrowed));
  EXPECT_EQ(narrowed, (std::vector<double>{static_cast<double>(0.1f), INFINITY, -0.0, 16777216.0}));
}

TEST(Convert, AnyAlignment) {
  std::vector<std::byte> disk(1 + 100 * 2);
  std::vector<float> values(100), back(100);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) - 50.0f;
  encode(ElementType::BF16, std::span<const float>(values), std::span(disk).subspan(1));
  decode(ElementType::BF16, std::span<const std::byte>(disk).subspan(1), std::span<float>(back));
  EXPECT_EQ(back, values);
}

TEST(Convert, Refusals) {
  std::vector<std::byte> disk(8);
  std::vector<float> values(4);
  EXPECT_REFUSED(decode(ElementType::I64, disk, std::span<float>(values)),
                 "I64 elements cannot be taken as numbers");
  EXPECT_REFUSED(decode(ElementType::F8E4M3, disk, std::span<float>(values)),
                 "F8_E4M3 elements cannot be taken");
  EXPECT_REFUSED(decode(ElementType::F32, disk, std::span<float>(values)),
                 "8 bytes do not hold 4 elements of F32");
  EXPECT_REFUSED(encode(ElementType::F64, std::span<const float>(values), disk),
                 "8 bytes do not hold 4 elements of F64");
}

}  // namespace
}  // namespace pleat::safetensors
