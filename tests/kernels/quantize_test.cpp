// Codes of few bits and their scales, recipe fp8.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "kernels/kernel_support.h"
#include "kernels/quantize/code_counts.h"
#include "tensor/few_bits.h"

namespace pleat::kernels::testing {
namespace {

using program::KernelKind;
using program::Phase;
using tensor::Dtype;
using tensor::E4M3;

const program::AttrSet kFp8 = {{"recipe", 1}};
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

int64_t blocks(int64_t n) { return (n + 127) / 128; }

struct Coded {
  Tensor codes, scale;
  double value(int64_t r, int64_t c) const {
    return codes.at(r * codes.shape[1] + c) * scale.at(r * scale.shape[1] + c / 128);
  }
};

Coded rows_of(Tensor& x, Pass offsets = none(), int threads = 2) {
  Coded out{Tensor::nan(Dtype::E4M3, x.shape), Tensor::nan(Dtype::F32, {x.shape[0], blocks(x.shape[1])})};
  call(KernelKind::quantize, Phase::Forward,
       {in(x), offsets, none(), none(), testing::out(out.codes), testing::out(out.scale), none(), none(),
        none(), none()},
       kFp8, threads);
  return out;
}

// Column codes lie column after column.
struct Columns {
  Tensor codes, scale;
  double code(int64_t r, int64_t c) const { return codes.at(c * codes.shape[0] + r); }
  double value(int64_t r, int64_t c) const { return code(r, c) * scale.at(r / 128 * scale.shape[1] + c); }
};

Columns turned(Coded& rows, int64_t room, Pass offsets = none(), int threads = 2) {
  const int64_t n = rows.codes.shape[1];
  Columns made{Tensor::nan(Dtype::E4M3, {room, n}), Tensor::nan(Dtype::F32, {room / 128, n})};
  call(KernelKind::turn_codes, Phase::BackwardWeight,
       {in(rows.codes), in(rows.scale), offsets, out(made.codes), out(made.scale)}, kFp8, threads);
  return made;
}

// A scale is the least power of two under which nothing of its block saturates.
void expect_scale(double scale, double largest) {
  EXPECT_EQ(scale, std::ldexp(1.0, tensor::scale_exponent<E4M3>(largest)));
}

TEST(Quantize, CodesOfRowsAreTheNearest) {
  for (const Dtype dtype : {Dtype::F32, Dtype::F64}) {
    Tensor x = Tensor::normal(dtype, {37, 300}, 1, 3.0);
    for (int64_t c = 128; c < 256; ++c) x.set(5 * 300 + c, 0);  // a block of zeros
    const Coded coded = rows_of(x);
    for (int64_t r = 0; r < 37; ++r)
      for (int64_t b = 0; b < 3; ++b) {
        double largest = 0;
        for (int64_t c = 128 * b; c < std::min<int64_t>(300, 128 * b + 128); ++c)
          largest = std::max(largest, std::abs(x.at(r * 300 + c)));
        const double scale = coded.scale.at(r * 3 + b);
        expect_scale(scale, largest);
        for (int64_t c = 128 * b; c < std::min<int64_t>(300, 128 * b + 128); ++c)
          ASSERT_EQ(coded.codes.at(r * 300 + c), E4M3::value(E4M3::code(x.at(r * 300 + c) / scale)));
      }
    EXPECT_EQ(coded.scale.at(5 * 3 + 1), 1);
    for (const int threads : {1, 4}) {
      const Coded again = rows_of(x, none(), threads);
      EXPECT_TRUE(again.codes == coded.codes && again.scale == coded.scale) << threads;
    }
  }
}

TEST(Quantize, WhatIsNotFiniteStaysSoAndSpoilsNoOther) {
  Tensor x = Tensor::normal(Dtype::F32, {2, 128}, 2);
  x.set(3, kNan);
  x.set(7, std::numeric_limits<double>::infinity());
  const Coded coded = rows_of(x);
  EXPECT_TRUE(std::isnan(coded.value(0, 3)) && std::isnan(coded.value(0, 7)));
  for (int64_t c : {0, 1, 100}) EXPECT_NEAR(coded.value(0, c), x.at(c), std::abs(x.at(c)) / 16);
}

// A step of a float64 model that explodes must show: what no scale holds is not the largest code.
TEST(Quantize, WhatNoScaleHoldsIsNoNumber) {
  Tensor x = Tensor::normal(Dtype::F64, {1, 128}, 8);
  x.set(5, 1e42);
  x.set(6, -1e80);
  x.set(7, 7e40);  // below 448 x 2^127
  const Coded coded = rows_of(x);
  EXPECT_TRUE(std::isnan(coded.value(0, 5)) && std::isnan(coded.value(0, 6)));
  EXPECT_NEAR(coded.value(0, 7), 7e40, 7e40 / 16);
}

TEST(Quantize, RowsThatNoExpertHasAreLeftAlone) {
  Tensor x = Tensor::normal(Dtype::F32, {10, 64}, 3), offsets = Tensor::of(Dtype::I32, {4}, {0, 3, 3, 6});
  const Coded coded = rows_of(x, in(offsets));
  EXPECT_EQ(coded.codes.bytes[6 * 64], std::byte{0x7B});  // as it was
  EXPECT_TRUE(std::isnan(coded.scale.at(6)));
  EXPECT_FALSE(std::isnan(coded.scale.at(5)));
}

// Rows that hold everything that can happen to a number.
Tensor troubled(Dtype dtype, int64_t rows, int64_t n, uint64_t seed) {
  Tensor x = Tensor::normal(dtype, {rows, n}, seed);
  for (int64_t i = 0; i < rows * n; ++i) {
    if (i % 11 == 3) x.set(i, x.at(i) * 1e-9);
    if (i % 17 == 5) x.set(i, 0);
    if (i % 97 == 7) x.set(i, i % 2 ? kNan : std::numeric_limits<double>::infinity());
  }
  return x;
}
struct Counts {
  std::vector<double> counts;
  double largest = 0;
  bool operator==(const Counts&) const = default;
};
// One number after the other, from the codes a kernel made.
Counts plain_count(const Tensor& x, const Coded& coded, const std::vector<int64_t>& times) {
  Counts out{{0, 0, 0, 0}, 0};
  const int64_t n = x.shape[1];
  for (int64_t i = 0; i < x.size(); ++i) {
    const auto t = static_cast<double>(times.at(static_cast<size_t>(i / n)));
    if (x.at(i) == 0 || t == 0) continue;
    out.counts[0] += t;
    if (std::isfinite(x.at(i))) out.largest = std::max(out.largest, std::abs(x.at(i)));
    if (std::isnan(coded.codes.at(i)))
      out.counts[3] += t;
    else if (coded.codes.at(i) == 0)
      out.counts[2] += t;
  }
  return out;
}
Counts counted(Tensor& x, Pass token_row, Pass coords, program::AttrSet attrs, int threads) {
  Tensor codes = Tensor::nan(Dtype::E4M3, x.shape),
         scale = Tensor::nan(Dtype::F32, {x.shape[0], blocks(x.shape[1])});
  Tensor counts = Tensor::nan(Dtype::I64, {4}), largest = Tensor::nan(Dtype::F64, {1});
  call(KernelKind::quantize, Phase::Forward,
       {in(x), none(), token_row, coords, out(codes), out(scale), none(), none(), out(counts), out(largest)},
       std::move(attrs), threads);
  return {counts.numbers(), largest.at(0)};
}

TEST(Quantize, CountsHowItsNumbersFared) {
  for (const Dtype dtype : {Dtype::F32, Dtype::F64}) {
    Tensor x = troubled(dtype, 300, 200, 9);
    const Counts want = plain_count(x, rows_of(x), std::vector<int64_t>(300, 1));
    EXPECT_GT(want.counts[2], 4000);
    EXPECT_GT(want.counts[3], 500);
    for (const int threads : {1, 2, 4}) EXPECT_EQ(counted(x, none(), none(), kFp8, threads), want) << threads;
  }
}

TEST(Quantize, ARowCountsAsOftenAsExpertsTakeIt) {
  Tensor x = troubled(Dtype::F32, 4, 130, 10);
  x.set(2 * 130 + 1, 1e9);  // a row that no expert takes
  Tensor token_row = Tensor::of(Dtype::I32, {4, 3}, {5, -1, 2, 0, 1, 3, -1, -1, -1, -1, 4, -1});
  EXPECT_EQ(counted(x, in(token_row), none(), kFp8, 2), plain_count(x, rows_of(x), {2, 3, 0, 1}));
}

TEST(Quantize, OfRanksThatCodeTheSameTheFirstCounts) {
  Tensor x = troubled(Dtype::F32, 5, 130, 11), coords = Tensor::zeros(Dtype::I64, {program::kNumGroups});
  const program::AttrSet attrs = {{"group", 3}, {"recipe", 1}};
  EXPECT_EQ(counted(x, none(), in(coords), attrs, 2), plain_count(x, rows_of(x), {1, 1, 1, 1, 1}));
  coords.set(3, 1);
  EXPECT_EQ(counted(x, none(), in(coords), attrs, 2), (Counts{{0, 0, 0, 0}, 0}));
}

TEST(Quantize, CountsAddUpAndTheLargestIsKept) {
  Tensor counts = Tensor::of(Dtype::I64, {4}, {0, 0, 0, 0}), largest = Tensor::of(Dtype::F64, {1}, {0});
  std::vector<double> sums(4, 0);
  double most = 0;
  for (const uint64_t seed : {12, 13, 14}) {
    Tensor x = Tensor::normal(Dtype::F32, {7, 128}, seed, seed == 13 ? 5.0 : 1.0);
    Coded coded{Tensor::nan(Dtype::E4M3, x.shape), Tensor::nan(Dtype::F32, {7, 1})};
    call(KernelKind::quantize, Phase::BackwardInput,
         {in(x), none(), none(), none(), out(coded.codes), out(coded.scale), none(), none(), add(counts),
          add(largest)},
         kFp8);
    const Counts own = plain_count(x, coded, std::vector<int64_t>(7, 1));
    for (size_t i = 0; i < 4; ++i) sums[i] += own.counts[i];
    most = std::max(most, own.largest);
  }
  EXPECT_EQ(counts.numbers(), sums);
  EXPECT_EQ(largest.at(0), most);
}

// No scale of recipe fp8 cuts a number; the count is there for those that do.
TEST(CodeCounts, WhatIsCutToTheLargestCodeSaturates) {
  CodeCounts c;
  c.see<E4M3>(448, 1, E4M3::code(448));
  EXPECT_EQ(c.saturated, 0);
  c.see<E4M3>(449, 1, E4M3::code(449));
  c.see<E4M3>(-1e6, 2, E4M3::code(-5e5), 3);
  EXPECT_EQ(c.saturated, 4);
  EXPECT_EQ(c.numbers, 5);
  EXPECT_EQ(c.largest, 1e6);
  EXPECT_EQ(c.flushed + c.nan, 0);
}

// Rows that are copies of tokens have the codes of these.
TEST(PermuteCodes, CodesOfCopiesAreCopiesOfCodes) {
  Tensor x = troubled(Dtype::F32, 4, 200, 15), probs = Tensor::normal(Dtype::F32, {4, 2}, 16);
  const int64_t R = 8;
  Tensor offsets = Tensor::of(Dtype::I32, {4}, {0, 3, 3, 7}),
         row_token = Tensor::of(Dtype::I32, {R}, {0, 2, -1, 0, 1, 3, 2, -1}),
         row_slot = Tensor::of(Dtype::I32, {R}, {0, 0, -1, 1, 0, 1, 1, -1}),
         token_row = Tensor::of(Dtype::I32, {4, 2}, {0, 3, 4, -1, 1, 6, -1, 5});
  Coded tokens = rows_of(x);
  for (const bool backward : {false, true}) {
    Tensor rows = Tensor::nan(Dtype::F32, {R, 200}), row_probs = Tensor::nan(Dtype::F32, {R}),
           probs_of_codes = row_probs;
    Coded got{Tensor::nan(Dtype::E4M3, {R, 200}), Tensor::nan(Dtype::F32, {R, 2})};
    if (backward) {
      call(KernelKind::combine, Phase::BackwardInput,
           {in(x), in(row_token), in(offsets), in(token_row), out(rows)});
      call(KernelKind::permute_codes, Phase::BackwardInput,
           {in(tokens.codes), in(tokens.scale), in(row_token), in(offsets), out(got.codes), out(got.scale)},
           kFp8);
    } else {
      call(KernelKind::permute, Phase::Forward,
           {in(x), in(probs), in(offsets), in(row_token), in(row_slot), in(token_row), out(rows),
            out(row_probs)});
      call(KernelKind::permute_codes, Phase::Forward,
           {in(tokens.codes), in(tokens.scale), in(probs), in(offsets), in(row_token), in(row_slot),
            out(got.codes), out(got.scale), out(probs_of_codes)},
           kFp8);
      EXPECT_EQ(probs_of_codes, row_probs);
    }
    const Coded want = rows_of(rows, in(offsets));
    EXPECT_EQ(got.codes, want.codes) << backward;
    EXPECT_EQ(got.scale, want.scale) << backward;
  }
}

TEST(TurnCodes, ColumnsHaveTheSameNumbersWhereTheyFit) {
  Tensor x = Tensor::normal(Dtype::F32, {200, 150}, 4);
  for (int64_t c = 0; c < 150; ++c) x.set(17 * 150 + c, x.at(17 * 150 + c) * 0x1p-12);  // a small row
  Coded rows = rows_of(x);
  const Columns columns = turned(rows, 256);
  for (int64_t c = 0; c < 150; ++c)
    for (int64_t b = 0; b < 2; ++b) {
      double largest = 0;
      for (int64_t r = 128 * b; r < std::min<int64_t>(200, 128 * b + 128); ++r)
        largest = std::max(largest, std::abs(rows.value(r, c)));
      const double scale = columns.scale.at(b * 150 + c);
      expect_scale(scale, largest);
      for (int64_t r = 128 * b; r < std::min<int64_t>(200, 128 * b + 128); ++r) {
        const double v = rows.value(r, c);
        ASSERT_EQ(columns.code(r, c), E4M3::value(E4M3::code(v / scale)));
        // Powers of two lose nothing above the smallest normal code.
        ASSERT_TRUE(std::abs(v / scale) < 0x1p-6 || columns.value(r, c) == v);
      }
    }
  for (int64_t r = 200; r < 256; ++r) ASSERT_EQ(columns.code(r, 7), 0);
  for (const int threads : {1, 4}) {
    const Columns again = turned(rows, 256, none(), threads);
    EXPECT_TRUE(again.codes == columns.codes && again.scale == columns.scale) << threads;
  }
}

TEST(TurnCodes, EveryExpertBeginsWithABlock) {
  Tensor x = Tensor::normal(Dtype::F64, {300, 40}, 5),
         offsets = Tensor::of(Dtype::I32, {5}, {0, 130, 130, 131, 290});
  Coded rows = rows_of(x, in(offsets));
  const Columns columns = turned(rows, 896, in(offsets));
  const int64_t from[] = {0, 130, 131}, to[] = {0, 256, 384}, count[] = {130, 1, 159};
  for (int e = 0; e < 3; ++e) {
    for (int64_t i = 0; i < count[e]; ++i)
      for (int64_t c : {0, 39}) {
        const double v = rows.value(from[e] + i, c), got = columns.value(to[e] + i, c);
        EXPECT_NEAR(got, v, columns.scale.at((to[e] + i) / 128 * 40 + c) * 0x1p-10) << e << " " << i;
      }
    for (int64_t i = count[e]; i % 128 != 0; ++i) EXPECT_EQ(columns.code(to[e] + i, 3), 0);
  }
  EXPECT_TRUE(std::isnan(columns.scale.at(5 * 40)));  // blocks behind the last expert are left alone
}

TEST(QuantizeWeight, BlocksShareAScaleAndTheTransposeHasTheSameCodes) {
  Tensor w = Tensor::normal(Dtype::F32, {3, 140, 260}, 6, 0.05);
  const auto coded = [&](bool turned) {
    Coded out{
        Tensor::nan(Dtype::E4M3, turned ? std::vector<int64_t>{3, 260, 140} : w.shape),
        Tensor::nan(Dtype::F32, turned ? std::vector<int64_t>{3, 3, 2} : std::vector<int64_t>{3, 2, 3})};
    call(KernelKind::quantize_weight, turned ? Phase::BackwardInput : Phase::Forward,
         turned ? std::vector<Pass>{in(w), testing::out(out.codes), testing::out(out.scale)}
                : std::vector<Pass>{in(w), none(), testing::out(out.codes), testing::out(out.scale), none(),
                                    none()},
         {{"recipe", 1}, {"turned", turned ? 1.0 : 0.0}});
    return out;
  };
  const Coded plain = coded(false), other = coded(true);
  for (int64_t e = 0; e < 3; ++e)
    for (int64_t o = 0; o < 140; ++o)
      for (int64_t i = 0; i < 260; ++i) {
        const double scale = plain.scale.at((e * 2 + o / 128) * 3 + i / 128);
        ASSERT_EQ(plain.codes.at((e * 140 + o) * 260 + i),
                  E4M3::value(E4M3::code(w.at((e * 140 + o) * 260 + i) / scale)));
        ASSERT_EQ(plain.codes.at((e * 140 + o) * 260 + i), other.codes.at((e * 260 + i) * 140 + o));
        ASSERT_EQ(scale, other.scale.at((e * 3 + i / 128) * 2 + o / 128));
      }
}

TEST(Quantize, OtherRecipesAndShapesAreRefused) {
  Tensor x = Tensor::normal(Dtype::F32, {4, 64}, 7), codes = Tensor::nan(Dtype::E4M3, {4, 64}),
         scale = Tensor::nan(Dtype::F32, {4, 1}), wrong = Tensor::nan(Dtype::F32, {4, 2}),
         scale32 = Tensor::zeros(Dtype::E8M0, {4, 2});
  const auto quantize = [&](Tensor& c, Tensor& s, double recipe) {
    call(KernelKind::quantize, Phase::Forward,
         {in(x), none(), none(), none(), out(c), out(s), none(), none(), none(), none()},
         {{"recipe", recipe}});
  };
  EXPECT_THROW(quantize(codes, wrong, 1), base::Error);
  EXPECT_THROW(quantize(codes, scale, 9), base::Error);
  EXPECT_THROW(quantize(codes, scale32, 2), base::Error);  // mxfp8: described, not computed
  EXPECT_NO_THROW(quantize(codes, scale, 1));
}

}  // namespace
}  // namespace pleat::kernels::testing
