#include "kernels/dense_support.h"
#include "kernels/linear/gemm.h"

namespace pleat::kernels::testing {
namespace {

using program::KernelKind;
using program::Phase;
using tensor::Dtype;

void forward(Tensor& x, Tensor& w, Pass bias, Pass residual, Tensor& y, int threads = 2) {
  call(KernelKind::linear, Phase::Forward, {in(x), in(w), bias, residual, out(y)}, {}, threads);
}
void backward_input(Tensor& dy, Tensor& w, Pass dx, int threads = 2) {
  call(KernelKind::linear, Phase::BackwardInput, {in(dy), in(w), dx}, {}, threads);
}
void backward_weight(Tensor& dy, Tensor& x, Pass dw, Pass dbias, int threads = 2) {
  call(KernelKind::linear, Phase::BackwardWeight, {in(dy), in(x), dw, dbias}, {}, threads);
}

// Plain loops in double.
struct Expected {
  std::vector<double> y, dx, dw, dbias;
  Expected(const Tensor& x, const Tensor& w, const Tensor* bias, const Tensor* residual, const Tensor& dy)
      : dx(static_cast<size_t>(x.size())),
        dw(static_cast<size_t>(w.size())),
        dbias(static_cast<size_t>(w.shape[0])) {
    const int64_t rows = x.shape[0], n = x.shape[1], m = w.shape[0];
    for (int64_t t = 0; t < rows; ++t)
      for (int64_t o = 0; o < m; ++o) {
        double sum = (bias ? bias->at(o) : 0) + (residual ? residual->at(t * m + o) : 0);
        const double g = dy.at(t * m + o);
        dbias[static_cast<size_t>(o)] += g;
        for (int64_t i = 0; i < n; ++i) {
          sum += x.at(t * n + i) * w.at(o * n + i);
          dx[static_cast<size_t>(t * n + i)] += g * w.at(o * n + i);
          dw[static_cast<size_t>(o * n + i)] += g * x.at(t * n + i);
        }
        y.push_back(sum);
      }
  }
};

std::vector<double> plus(std::vector<double> a, const Tensor& b) {
  for (int64_t i = 0; i < b.size(); ++i) a[static_cast<size_t>(i)] += b.at(i);
  return a;
}

struct Case {
  Dtype dtype;
  int64_t rows, inner, outer;
};
class Linear : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Shapes, Linear,
                         ::testing::Values(Case{Dtype::F32, 1, 1, 1}, Case{Dtype::F64, 3, 5, 7},
                                           Case{Dtype::F32, 37, 19, 130}, Case{Dtype::F64, 129, 65, 33},
                                           Case{Dtype::F32, 301, 70, 97}, Case{Dtype::F64, 0, 4, 3},
                                           Case{Dtype::F32, 600, 33, 257}));

TEST_P(Linear, AgreesWithPlainLoops) {
  const auto [dtype, rows, inner, outer] = GetParam();
  Tensor x = Tensor::normal(dtype, {rows, inner}, 1), w = Tensor::normal(dtype, {outer, inner}, 2);
  Tensor bias = Tensor::normal(dtype, {outer}, 3), residual = Tensor::normal(dtype, {rows, outer}, 4);
  Tensor dy = Tensor::normal(dtype, {rows, outer}, 5);
  const auto bound = [&, dtype = dtype](int64_t length) {
    return dtype == Dtype::F32 ? float_bound(length) : 1e-13;
  };
  for (int which = 0; which < 4; ++which) {
    const bool has_bias = which & 1, has_residual = which & 2;
    const Expected want(x, w, has_bias ? &bias : nullptr, has_residual ? &residual : nullptr, dy);
    Tensor y = Tensor::nan(dtype, {rows, outer});
    forward(x, w, has_bias ? in(bias) : none(), has_residual ? in(residual) : none(), y);
    EXPECT_LE(norm_error(y.numbers(), want.y), bound(inner)) << which;
  }
  const Expected want(x, w, nullptr, nullptr, dy);
  Tensor dx = Tensor::nan(dtype, {rows, inner}), dw = Tensor::nan(dtype, {outer, inner}),
         db = Tensor::nan(dtype, {outer});
  backward_input(dy, w, out(dx));
  backward_weight(dy, x, out(dw), out(db));
  EXPECT_LE(norm_error(dx.numbers(), want.dx), bound(outer));
  EXPECT_LE(norm_error(dw.numbers(), want.dw), bound(rows));
  EXPECT_LE(norm_error(db.numbers(), want.dbias), bound(1));
  Tensor only_dw = Tensor::nan(dtype, {outer, inner});
  backward_weight(dy, x, out(only_dw), none());
  EXPECT_TRUE(only_dw == dw);

  Tensor sum_x = Tensor::normal(dtype, {rows, inner}, 6), sum_w = Tensor::normal(dtype, {outer, inner}, 7);
  Tensor sum_b = Tensor::normal(dtype, {outer}, 8);
  const auto want_x = plus(want.dx, sum_x), want_w = plus(want.dw, sum_w), want_b = plus(want.dbias, sum_b);
  backward_input(dy, w, add(sum_x));
  backward_weight(dy, x, add(sum_w), add(sum_b));
  EXPECT_LE(norm_error(sum_x.numbers(), want_x), bound(outer));
  EXPECT_LE(norm_error(sum_w.numbers(), want_w), bound(rows));
  EXPECT_LE(norm_error(sum_b.numbers(), want_b), bound(1));
}

TEST(LinearKernel, GradientsAgreeWithDifferences) {
  Tensor x = Tensor::normal(Dtype::F64, {4, 3}, 1), w = Tensor::normal(Dtype::F64, {5, 3}, 2);
  Tensor bias = Tensor::normal(Dtype::F64, {5}, 3), dy = Tensor::normal(Dtype::F64, {4, 5}, 4);
  Tensor y = Tensor::zeros(Dtype::F64, {4, 5});
  const auto f = [&] {
    forward(x, w, in(bias), none(), y);
    return dot(y, dy);
  };
  Tensor dx = Tensor::nan(Dtype::F64, {4, 3}), dw = Tensor::nan(Dtype::F64, {5, 3}),
         db = Tensor::nan(Dtype::F64, {5});
  backward_input(dy, w, out(dx));
  backward_weight(dy, x, out(dw), out(db));
  EXPECT_LE(norm_error(dx.numbers(), numeric_gradient(x, f)), 1e-6);
  EXPECT_LE(norm_error(dw.numbers(), numeric_gradient(w, f)), 1e-6);
  EXPECT_LE(norm_error(db.numbers(), numeric_gradient(bias, f)), 1e-6);
}

TEST(LinearKernel, ResidualMayBeTheOutput) {
  Tensor x = Tensor::normal(Dtype::F32, {70, 33}, 1), w = Tensor::normal(Dtype::F32, {41, 33}, 2);
  Tensor bias = Tensor::normal(Dtype::F32, {41}, 3), residual = Tensor::normal(Dtype::F32, {70, 41}, 4);
  Tensor apart = Tensor::nan(Dtype::F32, {70, 41});
  forward(x, w, in(bias), in(residual), apart);
  forward(x, w, in(bias), in(residual), residual);
  EXPECT_TRUE(apart == residual);
}

TEST(LinearKernel, SameBitsForAnyThreads) {
  Tensor x = Tensor::normal(Dtype::F32, {531, 67}, 1), w = Tensor::normal(Dtype::F32, {203, 67}, 2);
  Tensor bias = Tensor::normal(Dtype::F32, {203}, 3), dy = Tensor::normal(Dtype::F32, {531, 203}, 4);
  ASSERT_GT(gemm_tiling(531, 203, 67).num_tiles(), 1);
  expect_same_bits([&](int threads) {
    Tensor y = Tensor::nan(Dtype::F32, {531, 203}), dx = Tensor::nan(Dtype::F32, {531, 67});
    Tensor dw = Tensor::nan(Dtype::F32, {203, 67}), db = Tensor::nan(Dtype::F32, {203});
    forward(x, w, in(bias), none(), y, threads);
    backward_input(dy, w, out(dx), threads);
    backward_weight(dy, x, out(dw), out(db), threads);
    return std::vector{y, dx, dw, db};
  });
}

TEST(GemmTiling, CoversEveryElementOnce) {
  for (int64_t m : {0, 1, 63, 64, 65, 255, 513, 2049, 70000})
    for (int64_t n : {0, 1, 100, 4097, 9000})
      for (int64_t k : {0, 1, 300, 100000}) {
        const GemmTiling tiling = gemm_tiling(m, n, k);
        int64_t area = 0, row = 0, column = 0;
        for (int64_t i = 0; i < tiling.num_tiles(); ++i) {
          const GemmTiling::Tile t = tiling.tile(i);
          ASSERT_EQ(t.row, row);
          ASSERT_EQ(t.column, column);
          ASSERT_GT(t.num_rows, 0);
          ASSERT_GT(t.num_columns, 0);
          area += t.num_rows * t.num_columns;
          column = t.column + t.num_columns == n ? 0 : t.column + t.num_columns;
          if (column == 0) row += t.num_rows;
        }
        ASSERT_EQ(area, m * n);
      }
  // The benchmark's shapes keep two and four threads evenly busy.
  for (auto [m, n, k] : {std::tuple{2048, 512, 256}, {2048, 4096, 256}, {512, 256, 2048}, {256, 256, 2048}})
    EXPECT_EQ(gemm_tiling(m, n, k).num_tiles() % 4, 0);
  EXPECT_EQ(gemm_tiling(16, 16, 16).num_tiles(), 1);
}

TEST(LinearKernel, RefusesBadShapes) {
  Tensor x = Tensor::zeros(Dtype::F32, {2, 3}), w = Tensor::zeros(Dtype::F32, {4, 5}),
         y = Tensor::zeros(Dtype::F32, {2, 4});
  expect_refused([&] { forward(x, w, none(), none(), y); }, "[linear] argument 'w' is [4, 5], needed [4, 3]");
  Tensor good = Tensor::zeros(Dtype::F32, {4, 3}), bias = Tensor::zeros(Dtype::F32, {3});
  expect_refused([&] { forward(x, good, in(bias), none(), y); },
                 "[linear] argument 'bias' is [3], needed [4]");
  Tensor wide = Tensor::zeros(Dtype::F64, {4, 3});
  expect_refused([&] { forward(x, wide, none(), none(), y); }, "[linear] argument 'w' is f64, needed f32");
  expect_refused([&] { backward_input(y, w, out(x)); }, "[linear] argument 'dx' is [2, 3], needed [2, 5]");
  expect_refused([&] { backward_weight(y, x, out(w), none()); },
                 "[linear] argument 'dw' is [4, 5], needed [4, 3]");
  Tensor flat = Tensor::zeros(Dtype::F32, {6});
  expect_refused([&] { forward(flat, good, none(), none(), y); }, "argument 'x' has 1 dimensions, needed 2");
}

}  // namespace
}  // namespace pleat::kernels::testing
