// Codes of eight bits: every place against the formula with whole numbers, rounding against a search over all places.
#include "tensor/block_codes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace pleat::tensor {
namespace {

std::vector<double> places(int top, int per_octave) {
  std::vector<double> out = {0};
  for (int c = 1; c <= top; ++c)
    out.push_back(static_cast<double>(static_cast<float>(std::exp2(double(c - top) / per_octave))));
  return out;
}

TEST(BlockCodes, PlacesAreThoseOfTheFormula) {
  const std::vector<double> of_signed = places(127, 8), of_root = places(255, 16);
  for (size_t c = 0; c < 128; ++c) {
    EXPECT_EQ(double(SignedCode::kPlaces[c]), of_signed[c]) << c;
    EXPECT_EQ(double(SignedCode::kPlaces[c + 128]), -of_signed[c]) << c;
  }
  for (size_t c = 0; c < 256; ++c) EXPECT_EQ(double(RootCode::kPlaces[c]), of_root[c]) << c;
  EXPECT_EQ(SignedCode::kPlaces[127], 1);
  EXPECT_EQ(RootCode::kPlaces[255], 1);
}

template <class Code>
void round_trip(float scale) {
  uint8_t codes[256], again[256];
  float numbers[256];
  for (int c = 0; c < 256; ++c) codes[c] = static_cast<uint8_t>(c);
  decode_block<Code>(codes, 256, scale, numbers);
  EXPECT_EQ((encode_block<Code>(numbers, 256, again)), scale);
  for (int c = 0; c < 256; ++c) {
    const bool minus_zero = Code::kSigned && c == 128;
    EXPECT_EQ(again[c], minus_zero ? 0 : c) << scale;
  }
  for (int c = 1; c < (Code::kSigned ? 128 : 256); ++c) EXPECT_GT(numbers[c], numbers[c - 1]);
}

TEST(BlockCodes, ACodeComesBackAsItself) {
  for (const float scale : {1.0f, 0.37f, 3.0e-30f, 1.7e38f, 1.0000001f, 5.0e-9f}) {
    round_trip<SignedCode>(scale);
    round_trip<RootCode>(scale);
  }
}

// The nearest place by search, and never a zero of a root that is none.
template <class Code>
void expect_nearest(const std::vector<double>& places) {
  std::mt19937_64 random(7);
  std::normal_distribution<double> normal;
  for (const int64_t count : {1, 3, 255, 256}) {
    std::vector<float> x(static_cast<size_t>(count));
    for (float& number : x) {
      number = static_cast<float>(normal(random) * std::exp(4 * normal(random)));
      if (!Code::kSigned) number = std::abs(number);
    }
    x[0] = 0;
    std::vector<uint8_t> codes(x.size());
    const float scale = encode_block<Code>(x.data(), count, codes.data());
    float largest = 0;
    for (const float number : x) largest = std::max(largest, std::abs(number));
    EXPECT_EQ(scale, largest);
    for (size_t i = 0; i < x.size(); ++i) {
      if (scale == 0) continue;
      const double place = std::abs(double(x[i])) / double(scale);
      double least = 1e300;
      for (const double p : places) least = std::min(least, std::abs(p - place));
      const uint8_t magnitude = Code::kSigned ? codes[i] & 127 : codes[i];
      if (Code::kSigned && codes[i] != 0) {
        EXPECT_EQ(codes[i] >= 128, x[i] < 0);
      }
      if (!Code::kSigned && x[i] > 0 && place < places[1] / 2) {
        EXPECT_EQ(codes[i], 1);
        continue;
      }
      EXPECT_EQ(std::abs(places[magnitude] - place), least) << x[i] << " of " << scale;
      EXPECT_EQ(codes[i] == 0, place <= places[1] / 2) << place;
      // Off by at most the stated part of itself.
      if (place >= places[1]) {
        EXPECT_LE(least, Code::kRounding * place * (1 + 1e-6));
      }
    }
  }
}

TEST(BlockCodes, NumbersGoToTheNearestPlace) {
  expect_nearest<SignedCode>(places(127, 8));
  expect_nearest<RootCode>(places(255, 16));
}

TEST(BlockCodes, TiesGoToTheLowerCodeAndNoRootIsLost) {
  const float first = SignedCode::kPlaces[1], root = RootCode::kPlaces[1];
  const float x[] = {1, first / 2, -first * 0.51f, -first * 0.49f, first, 1e-38f};
  uint8_t codes[6];
  encode_block<SignedCode>(x, 6, codes);
  EXPECT_EQ(codes[1], 0);
  EXPECT_EQ(codes[2], 129);
  EXPECT_EQ(codes[3], 0);
  EXPECT_EQ(codes[4], 1);
  EXPECT_EQ(codes[5], 0);
  const float roots[] = {1, root / 2, root * 0.001f, 0, 1e-45f};
  encode_block<RootCode>(roots, 5, codes);
  EXPECT_EQ(codes[1], 1) << "0 is of 0 alone";
  EXPECT_EQ(codes[2], 1);
  EXPECT_EQ(codes[3], 0);
  EXPECT_EQ(codes[4], 1);
}

TEST(BlockCodes, WhatIsNotFiniteShows) {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    float x[] = {1, bad, -2};
    uint8_t codes[3];
    const float scale = encode_block<SignedCode>(x, 3, codes);
    decode_block<SignedCode>(codes, 3, scale, x);
    for (const float number : x) EXPECT_TRUE(std::isnan(number));
  }
  const float zeros[] = {0, -0.0f};
  uint8_t codes[] = {9, 9};
  EXPECT_EQ((encode_block<SignedCode>(zeros, 2, codes)), 0);
  EXPECT_EQ(codes[0] + codes[1], 0);
}

}  // namespace
}  // namespace pleat::tensor
