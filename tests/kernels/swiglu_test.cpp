#include <algorithm>

#include "kernels/dense_support.h"

namespace pleat::kernels::testing {
namespace {

using program::KernelKind;
using program::Phase;
using tensor::Dtype;

const program::AttrSet kSilu = {{"activation", 0}};
const program::AttrSet kClamped = {{"activation", 1}, {"alpha", 1.702}, {"limit", 1.5}};

void forward(Tensor& gu, Tensor& a, int threads = 2, const program::AttrSet& attrs = kSilu) {
  call(KernelKind::swiglu, Phase::Forward, {in(gu), out(a)}, attrs, threads);
}
void backward(Tensor& da, Tensor& gu, Tensor& dgu, int threads = 2, const program::AttrSet& attrs = kSilu) {
  call(KernelKind::swiglu, Phase::BackwardInput, {in(da), in(gu), out(dgu)}, attrs, threads);
}

TEST(Swiglu, ForwardAgreesWithPlainLoops) {
  for (Dtype dtype : {Dtype::F32, Dtype::F64})
    for (auto [rows, width] : {std::pair<int64_t, int64_t>{1, 1}, {5, 37}, {200, 192}, {0, 3}}) {
      Tensor gu = Tensor::normal(dtype, {rows, 2 * width}, 1, 4.0), a = Tensor::nan(dtype, {rows, width});
      forward(gu, a);
      std::vector<double> want;
      for (int64_t t = 0; t < rows; ++t)
        for (int64_t j = 0; j < width; ++j) {
          const double g = gu.at(t * 2 * width + j);
          want.push_back(g / (1 + std::exp(-g)) * gu.at(t * 2 * width + width + j));
        }
      EXPECT_LE(norm_error(a.numbers(), want), dtype == Dtype::F32 ? float_bound(1) : 1e-14);
    }
}

TEST(Swiglu, LargeGatesStayFinite) {
  Tensor gu = Tensor::of(Dtype::F32, {4, 2}, {-1e4, 2, 1e4, 2, -90, 1, 90, 1}),
         a = Tensor::nan(Dtype::F32, {4, 1});
  forward(gu, a);
  EXPECT_EQ(a.at(0), 0);
  EXPECT_EQ(a.at(1), 2e4);
  EXPECT_NEAR(a.at(2), 0, 1e-30);
  EXPECT_EQ(a.at(3), 90);
  Tensor da = Tensor::of(Dtype::F32, {4, 1}, {1, 1, 1, 1}), dgu = Tensor::nan(Dtype::F32, {4, 2});
  backward(da, gu, dgu);
  EXPECT_EQ(dgu.at(0), 0);
  EXPECT_EQ(dgu.at(2), 2);
  for (double v : dgu.numbers()) EXPECT_TRUE(std::isfinite(v));
}

TEST(Swiglu, GradientAgreesWithDifferences) {
  Tensor gu = Tensor::normal(Dtype::F64, {5, 22}, 1, 2.0), da = Tensor::normal(Dtype::F64, {5, 11}, 2);
  Tensor a = Tensor::zeros(Dtype::F64, {5, 11}), dgu = Tensor::nan(Dtype::F64, {5, 22});
  backward(da, gu, dgu);
  const auto numeric = numeric_gradient(gu, [&] {
    forward(gu, a);
    return dot(a, da);
  });
  EXPECT_LE(norm_error(dgu.numbers(), numeric), 1e-6);
  Tensor in_place = gu;
  backward(da, in_place, in_place);
  EXPECT_TRUE(in_place == dgu);
}

TEST(Swiglu, FloatAgreesWithDoubleAndBitsForAnyThreads) {
  Tensor gu = Tensor::normal(Dtype::F32, {333, 130}, 1, 3.0), da = Tensor::normal(Dtype::F32, {333, 65}, 2);
  Tensor wide_gu = as_dtype(gu, Dtype::F64), wide_da = as_dtype(da, Dtype::F64),
         wide = Tensor::nan(Dtype::F64, {333, 130});
  backward(wide_da, wide_gu, wide);
  Tensor dgu = Tensor::nan(Dtype::F32, {333, 130});
  backward(da, gu, dgu);
  EXPECT_LE(norm_error(dgu.numbers(), wide.numbers()), float_bound(1));
  expect_same_bits([&](int threads) {
    Tensor a = Tensor::nan(Dtype::F32, {333, 65}), d = Tensor::nan(Dtype::F32, {333, 130});
    forward(gu, a, threads);
    backward(da, gu, d, threads);
    return std::vector{a, d};
  });
}

TEST(Swiglu, ClampedForwardAgreesWithPlainLoops) {
  for (Dtype dtype : {Dtype::F32, Dtype::F64}) {
    Tensor gu = Tensor::normal(dtype, {40, 74}, 1, 2.0), a = Tensor::nan(dtype, {40, 37});
    forward(gu, a, 2, kClamped);
    std::vector<double> want;
    for (int64_t t = 0; t < 40; ++t)
      for (int64_t j = 0; j < 37; ++j) {
        const double g = std::min(gu.at(t * 74 + j), 1.5), u = std::clamp(gu.at(t * 74 + 37 + j), -1.5, 1.5);
        want.push_back((u + 1) * g / (1 + std::exp(-1.702 * g)));
      }
    EXPECT_LE(norm_error(a.numbers(), want), dtype == Dtype::F32 ? float_bound(1) : 1e-14);
  }
}

TEST(Swiglu, ClampedGradientAgreesWithDifferences) {
  Tensor gu = Tensor::normal(Dtype::F64, {5, 22}, 1, 2.0), da = Tensor::normal(Dtype::F64, {5, 11}, 2);
  Tensor a = Tensor::zeros(Dtype::F64, {5, 11}), dgu = Tensor::nan(Dtype::F64, {5, 22});
  backward(da, gu, dgu, 2, kClamped);
  const auto numeric = numeric_gradient(gu, [&] {
    forward(gu, a, 2, kClamped);
    return dot(a, da);
  });
  EXPECT_LE(norm_error(dgu.numbers(), numeric), 1e-6);
  Tensor in_place = gu;
  backward(da, in_place, in_place, 2, kClamped);
  EXPECT_TRUE(in_place == dgu);
}

// The gradient passes on the limit itself and stops beyond it; NaN is not hidden by a clamp.
TEST(Swiglu, ClampedGradientAtTheLimits) {
  const double after = std::nextafter(1.5, 2.0);
  Tensor gu = Tensor::of(Dtype::F64, {6, 2},
                         {1.5, 1.5, after, after, -1.5, -1.5, 1, -after, -50, 1, NAN, NAN}),
         da = Tensor::of(Dtype::F64, {6, 1}, {1, 1, 1, 1, 1, 1}), dgu = Tensor::nan(Dtype::F64, {6, 2}),
         a = Tensor::nan(Dtype::F64, {6, 1});
  forward(gu, a, 2, kClamped);
  backward(da, gu, dgu, 2, kClamped);
  EXPECT_EQ(a.at(0), a.at(1));
  EXPECT_GT(dgu.at(0), 0);
  EXPECT_GT(dgu.at(1), 0);
  EXPECT_EQ(dgu.at(2), 0);
  EXPECT_EQ(dgu.at(3), 0);
  EXPECT_NE(dgu.at(4), 0);
  EXPECT_NE(dgu.at(5), 0);
  EXPECT_NE(dgu.at(6), 0);
  EXPECT_EQ(dgu.at(7), 0);
  EXPECT_TRUE(std::isfinite(dgu.at(8)) && std::isfinite(dgu.at(9)));  // gates have no lower limit
  EXPECT_TRUE(std::isnan(a.at(5)) && std::isnan(dgu.at(10)) && std::isnan(dgu.at(11)));
}

TEST(Swiglu, ClampedBitsForAnyThreads) {
  Tensor gu = Tensor::normal(Dtype::F32, {333, 130}, 1, 3.0), da = Tensor::normal(Dtype::F32, {333, 65}, 2);
  expect_same_bits([&](int threads) {
    Tensor a = Tensor::nan(Dtype::F32, {333, 65}), d = Tensor::nan(Dtype::F32, {333, 130});
    forward(gu, a, threads, kClamped);
    backward(da, gu, d, threads, kClamped);
    return std::vector{a, d};
  });
}

TEST(Swiglu, RefusesUnknownActivations) {
  Tensor gu = Tensor::zeros(Dtype::F32, {2, 6}), a = Tensor::zeros(Dtype::F32, {2, 3});
  expect_refused(
      [&] {
        forward(gu, a, 2, {{"activation", 3}});
      },
      "[swiglu] activation is 3, needed 0 (silu) or 1 (clamped)");
  expect_refused(
      [&] {
        backward(a, gu, gu, 2, {{"activation", 1}, {"alpha", 1}, {"limit", 0}});
      },
      "[swiglu] limit 0 and alpha 1: needed a positive limit and a finite alpha");
  expect_refused([&] { forward(gu, a, 2, {}); }, "stage attribute 'activation' is missing");
}

TEST(Swiglu, RefusesBadShapes) {
  Tensor gu = Tensor::zeros(Dtype::F32, {2, 6}), a = Tensor::zeros(Dtype::F32, {2, 4});
  expect_refused([&] { forward(gu, a); }, "[swiglu] argument 'gu' is [2, 6], needed [2, 8]");
  expect_refused([&] { backward(a, gu, gu); }, "[swiglu] argument 'gu' is [2, 6], needed [2, 8]");
  Tensor whole = Tensor::zeros(Dtype::I32, {2, 6}), third = Tensor::zeros(Dtype::I32, {2, 3});
  expect_refused([&] { forward(whole, third); }, "[swiglu] argument 'gu' is i32, needed a floating type");
}

}  // namespace
}  // namespace pleat::kernels::testing
