#include "kernels/dense_support.h"

namespace pleat::kernels::testing {
namespace {

using program::KernelKind;
using program::Phase;
using tensor::Dtype;

void forward(Tensor& gu, Tensor& a, int threads = 2) {
  call(KernelKind::swiglu, Phase::Forward, {in(gu), out(a)}, {}, threads);
}
void backward(Tensor& da, Tensor& gu, Tensor& dgu, int threads = 2) {
  call(KernelKind::swiglu, Phase::BackwardInput, {in(da), in(gu), out(dgu)}, {}, threads);
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

TEST(Swiglu, RefusesBadShapes) {
  Tensor gu = Tensor::zeros(Dtype::F32, {2, 6}), a = Tensor::zeros(Dtype::F32, {2, 4});
  expect_refused([&] { forward(gu, a); }, "[swiglu] argument 'gu' is [2, 6], needed [2, 8]");
  expect_refused([&] { backward(a, gu, gu); }, "[swiglu] argument 'gu' is [2, 6], needed [2, 8]");
  Tensor whole = Tensor::zeros(Dtype::I32, {2, 6}), third = Tensor::zeros(Dtype::I32, {2, 3});
  expect_refused([&] { forward(whole, third); }, "[swiglu] argument 'gu' is i32, needed f32 or f64");
}

}  // namespace
}  // namespace pleat::kernels::testing
