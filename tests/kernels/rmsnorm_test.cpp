#include "kernels/dense_support.h"

namespace pleat::kernels::testing {
namespace {

using program::KernelKind;
using program::Phase;
using tensor::Dtype;

const program::AttrSet kAttrs = {{"eps", 1e-5}};

void forward(Tensor& x, Tensor& w, Tensor& y, Tensor& rstd, int threads = 2) {
  call(KernelKind::rmsnorm, Phase::Forward, {in(x), in(w), out(y), out(rstd)}, kAttrs, threads);
}
void backward_input(Tensor& dy, Tensor& x, Tensor& w, Tensor& rstd, Pass dresidual, Pass dx,
                    int threads = 2) {
  call(KernelKind::rmsnorm, Phase::BackwardInput, {in(dy), in(x), in(w), in(rstd), dresidual, dx}, kAttrs,
       threads);
}
void backward_weight(Tensor& dy, Tensor& x, Tensor& rstd, Pass dw, int threads = 2) {
  call(KernelKind::rmsnorm, Phase::BackwardWeight, {in(dy), in(x), in(rstd), dw}, kAttrs, threads);
}

TEST(RmsNorm, ForwardAgreesWithPlainLoops) {
  for (Dtype dtype : {Dtype::F32, Dtype::F64})
    for (auto [rows, width] : {std::pair<int64_t, int64_t>{5, 1}, {7, 45}, {301, 130}, {0, 8}}) {
      Tensor x = Tensor::normal(dtype, {rows, width}, 1, 3.0), w = Tensor::normal(dtype, {width}, 2);
      Tensor y = Tensor::nan(dtype, {rows, width}), rstd = Tensor::nan(dtype, {rows});
      forward(x, w, y, rstd);
      std::vector<double> want_y, want_rstd;
      for (int64_t t = 0; t < rows; ++t) {
        double squares = 0;
        for (int64_t j = 0; j < width; ++j) squares += x.at(t * width + j) * x.at(t * width + j);
        const double r = 1 / std::sqrt(squares / static_cast<double>(width) + 1e-5);
        want_rstd.push_back(r);
        for (int64_t j = 0; j < width; ++j) want_y.push_back(x.at(t * width + j) * r * w.at(j));
      }
      const double bound = dtype == Dtype::F32 ? 4e-7 : 1e-14;
      EXPECT_LE(norm_error(y.numbers(), want_y), bound);
      EXPECT_LE(norm_error(rstd.numbers(), want_rstd), bound);
    }
}

TEST(RmsNorm, GradientsAgreeWithDifferences) {
  const int64_t rows = 5, width = 19;
  Tensor x = Tensor::normal(Dtype::F64, {rows, width}, 1), w = Tensor::normal(Dtype::F64, {width}, 2);
  Tensor dy = Tensor::normal(Dtype::F64, {rows, width}, 3),
         dresidual = Tensor::normal(Dtype::F64, {rows, width}, 4);
  Tensor y = Tensor::zeros(Dtype::F64, {rows, width}), rstd = Tensor::zeros(Dtype::F64, {rows});
  const auto f = [&] {
    forward(x, w, y, rstd);
    return dot(y, dy);
  };
  const std::vector<double> numeric_x = numeric_gradient(x, f), numeric_w = numeric_gradient(w, f);
  f();
  Tensor dx = Tensor::nan(Dtype::F64, {rows, width}), dw = Tensor::nan(Dtype::F64, {width});
  backward_input(dy, x, w, rstd, none(), out(dx));
  backward_weight(dy, x, rstd, out(dw));
  EXPECT_LE(norm_error(dx.numbers(), numeric_x), 1e-6);
  EXPECT_LE(norm_error(dw.numbers(), numeric_w), 1e-6);

  const auto sum_of = [&](std::vector<const Tensor*> parts) {
    std::vector<double> sum(static_cast<size_t>(dx.size()));
    for (const Tensor* part : parts)
      for (int64_t i = 0; i < part->size(); ++i) sum[static_cast<size_t>(i)] += part->at(i);
    return sum;
  };
  Tensor start = Tensor::normal(Dtype::F64, {rows, width}, 5);
  Tensor with_residual = Tensor::nan(Dtype::F64, {rows, width}), added = start, both = start,
         in_place = dresidual;
  backward_input(dy, x, w, rstd, in(dresidual), out(with_residual));
  EXPECT_LE(norm_error(with_residual.numbers(), sum_of({&dx, &dresidual})), 1e-14);
  backward_input(dy, x, w, rstd, none(), add(added));
  EXPECT_LE(norm_error(added.numbers(), sum_of({&dx, &start})), 1e-14);
  backward_input(dy, x, w, rstd, in(dresidual), add(both));
  EXPECT_LE(norm_error(both.numbers(), sum_of({&dx, &start, &dresidual})), 1e-14);
  backward_input(dy, x, w, rstd, in(in_place), out(in_place));
  EXPECT_TRUE(in_place == with_residual);
  Tensor dw_start = Tensor::normal(Dtype::F64, {width}, 6), dw_sum = dw_start;
  backward_weight(dy, x, rstd, add(dw_sum));
  for (int64_t j = 0; j < width; ++j) EXPECT_NEAR(dw_sum.at(j), dw.at(j) + dw_start.at(j), 1e-13);
}

TEST(RmsNorm, FloatGradientsAgreeWithDouble) {
  const int64_t rows = 301, width = 131;
  Tensor x = Tensor::normal(Dtype::F32, {rows, width}, 1), w = Tensor::normal(Dtype::F32, {width}, 2);
  Tensor dy = Tensor::normal(Dtype::F32, {rows, width}, 3);
  const auto run = [&](Dtype dtype) {
    Tensor a = as_dtype(x, dtype), b = as_dtype(w, dtype), g = as_dtype(dy, dtype);
    Tensor y = Tensor::nan(dtype, {rows, width}), rstd = Tensor::nan(dtype, {rows});
    Tensor dx = Tensor::nan(dtype, {rows, width}), dw = Tensor::nan(dtype, {width});
    forward(a, b, y, rstd);
    backward_input(g, a, b, rstd, none(), out(dx));
    backward_weight(g, a, rstd, out(dw));
    return std::vector{dx.numbers(), dw.numbers()};
  };
  const auto narrow = run(Dtype::F32), wide = run(Dtype::F64);
  // The sums are in double: a few roundings per element remain, whatever the length.
  for (size_t i = 0; i < 2; ++i) EXPECT_LE(norm_error(narrow[i], wide[i]), float_bound(1));
}

TEST(RmsNorm, SameBitsForAnyThreads) {
  const int64_t rows = 300, width = 131;
  Tensor x = Tensor::normal(Dtype::F32, {rows, width}, 1), w = Tensor::normal(Dtype::F32, {width}, 2);
  Tensor dy = Tensor::normal(Dtype::F32, {rows, width}, 3);
  expect_same_bits([&](int threads) {
    Tensor y = Tensor::nan(Dtype::F32, {rows, width}), rstd = Tensor::nan(Dtype::F32, {rows});
    Tensor dx = Tensor::nan(Dtype::F32, {rows, width}), dw = Tensor::nan(Dtype::F32, {width});
    forward(x, w, y, rstd, threads);
    backward_input(dy, x, w, rstd, none(), out(dx), threads);
    backward_weight(dy, x, rstd, out(dw), threads);
    return std::vector{y, rstd, dx, dw};
  });
}

TEST(RmsNorm, RefusesBadShapes) {
  Tensor x = Tensor::zeros(Dtype::F32, {2, 3}), w = Tensor::zeros(Dtype::F32, {4}),
         rstd = Tensor::zeros(Dtype::F32, {2});
  expect_refused([&] { forward(x, w, x, rstd); }, "[rmsnorm] argument 'w' is [4], needed [3]");
  Tensor good = Tensor::zeros(Dtype::F32, {3}), long_rstd = Tensor::zeros(Dtype::F32, {3});
  expect_refused([&] { forward(x, good, x, long_rstd); }, "[rmsnorm] argument 'rstd' is [3], needed [2]");
  expect_refused([&] { backward_weight(x, x, rstd, out(w)); }, "[rmsnorm] argument 'dw' is [4], needed [3]");
  expect_refused(
      [&] {
        call(KernelKind::rmsnorm, Phase::Forward, {in(x), in(good), out(x), out(rstd)});
      },
      "'eps' is missing");
}

}  // namespace
}  // namespace pleat::kernels::testing
