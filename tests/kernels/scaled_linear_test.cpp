// Products of codes, recipe fp8, against the same sums in double over the values of the codes.
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "kernels/kernel_support.h"

namespace pleat::kernels::testing {
namespace {

using program::KernelKind;
using program::Phase;
using tensor::Dtype;

const program::AttrSet kFp8 = {{"recipe", 1}};

int64_t blocks(int64_t n) { return (n + 127) / 128; }
int64_t room_for(int64_t rows, int64_t experts) { return (rows + experts * 127 + 127) / 128 * 128; }

struct Coded {
  Tensor codes, scale;
};
Coded rows_of(Tensor& x, Pass offsets) {
  Coded made{Tensor::zeros(Dtype::E4M3, x.shape),
             Tensor::zeros(Dtype::F32, {x.shape[0], blocks(x.shape[1])})};
  call(KernelKind::quantize, Phase::Forward,
       {in(x), offsets, none(), none(), out(made.codes), out(made.scale), none(), none(), none(), none()},
       kFp8);
  return made;
}
Coded columns_of(Coded& rows, int64_t experts, Pass offsets) {
  const int64_t n = rows.codes.shape[1], room = room_for(rows.codes.shape[0], experts);
  Coded made{Tensor::nan(Dtype::E4M3, {room, n}), Tensor::nan(Dtype::F32, {room / 128, n})};
  call(KernelKind::turn_codes, Phase::BackwardWeight,
       {in(rows.codes), in(rows.scale), offsets, out(made.codes), out(made.scale)}, kFp8);
  return made;
}
Coded weight_of(Tensor& w, bool turned) {
  std::vector<int64_t> shape = w.shape;
  const size_t rank = shape.size();
  if (turned) std::swap(shape[rank - 1], shape[rank - 2]);
  std::vector<int64_t> scale = shape;
  scale[rank - 1] = blocks(scale[rank - 1]), scale[rank - 2] = blocks(scale[rank - 2]);
  Coded made{Tensor::zeros(Dtype::E4M3, shape), Tensor::zeros(Dtype::F32, scale)};
  call(KernelKind::quantize_weight, turned ? Phase::BackwardInput : Phase::Forward,
       turned ? std::vector<Pass>{in(w), out(made.codes), out(made.scale)}
              : std::vector<Pass>{in(w), none(), out(made.codes), out(made.scale), none(), none()},
       {{"recipe", 1}, {"turned", turned ? 1.0 : 0.0}});
  return made;
}

// Numbers of codes: rows, a matrix of a weight, columns.
double of_rows(const Coded& c, int64_t r, int64_t i) {
  return c.codes.at(r * c.codes.shape[1] + i) * c.scale.at(r * c.scale.shape[1] + i / 128);
}
double of_weight(const Coded& c, int64_t e, int64_t r, int64_t i) {
  const size_t rank = c.codes.shape.size();
  const int64_t rows = c.codes.shape[rank - 2], n = c.codes.shape[rank - 1], down = c.scale.shape[rank - 2],
                across = c.scale.shape[rank - 1];
  return c.codes.at((e * rows + r) * n + i) * c.scale.at((e * down + r / 128) * across + i / 128);
}
double of_columns(const Coded& c, int64_t r, int64_t i) {
  return c.codes.at(i * c.codes.shape[0] + r) * c.scale.at(r / 128 * c.scale.shape[1] + i);
}

// A sum of `terms` products whose sizes add up to `sizes`, in T, and a last addition.
void expect_sum(Dtype dtype, double got, double sum, double sizes, int64_t terms) {
  const double unit = dtype == Dtype::F32 ? 0x1p-24 : 0x1p-53;
  ASSERT_NEAR(got, sum, double(terms + 4) * unit * sizes + 1e-300);
}

struct Case {
  Dtype dtype;
  int64_t rows, in, out;
};
class ScaledLinear : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Shapes, ScaledLinear,
                         ::testing::Values(Case{Dtype::F32, 1, 1, 1}, Case{Dtype::F64, 37, 130, 70},
                                           Case{Dtype::F32, 65, 257, 33}, Case{Dtype::F32, 130, 64, 200}));

TEST_P(ScaledLinear, SumsWhatItsCodesSay) {
  const auto [dtype, rows, n, m] = GetParam();
  Tensor x = Tensor::normal(dtype, {rows, n}, 1), w = Tensor::normal(dtype, {m, n}, 2, 0.1),
         dy = Tensor::normal(dtype, {rows, m}, 3, 0.01), bias = Tensor::normal(dtype, {m}, 4),
         residual = Tensor::normal(dtype, {rows, m}, 5);
  Coded cx = rows_of(x, none()), cw = weight_of(w, false), ct = weight_of(w, true), cdy = rows_of(dy, none());
  Coded xc = columns_of(cx, 0, none()), dyc = columns_of(cdy, 0, none());
  for (const bool more : {false, true}) {
    Tensor y = Tensor::nan(dtype, {rows, m}), dx = Tensor::nan(dtype, {rows, n}),
           dw = Tensor::nan(dtype, {m, n});
    Tensor dx0 = Tensor::normal(dtype, {rows, n}, 6), dw0 = Tensor::normal(dtype, {m, n}, 7);
    if (more) dx = dx0, dw = dw0;
    const auto run = [&](int threads) {
      call(KernelKind::scaled_linear, Phase::Forward,
           {in(cx.codes), in(cx.scale), in(cw.codes), in(cw.scale), more ? in(bias) : none(),
            more ? in(residual) : none(), out(y)},
           kFp8, threads);
      call(KernelKind::scaled_linear, Phase::BackwardInput,
           {in(cdy.codes), in(cdy.scale), in(ct.codes), in(ct.scale), more ? add(dx) : out(dx)}, kFp8,
           threads);
      call(KernelKind::scaled_linear, Phase::BackwardWeight,
           {in(dyc.codes), in(dyc.scale), in(xc.codes), in(xc.scale), more ? add(dw) : out(dw)}, kFp8,
           threads);
    };
    run(2);
    for (int64_t t = 0; t < rows; ++t)
      for (int64_t o = 0; o < m; ++o) {
        double sum = more ? bias.at(o) + residual.at(t * m + o) : 0, sizes = std::abs(sum) + (more ? 4 : 0);
        for (int64_t i = 0; i < n; ++i) {
          const double term = of_rows(cx, t, i) * of_weight(cw, 0, o, i);
          sum += term, sizes += std::abs(term);
        }
        expect_sum(dtype, y.at(t * m + o), sum, sizes, n);
      }
    for (int64_t t = 0; t < rows; ++t)
      for (int64_t i = 0; i < n; ++i) {
        double sum = more ? dx0.at(t * n + i) : 0, sizes = std::abs(sum);
        for (int64_t o = 0; o < m; ++o) {
          const double term = of_rows(cdy, t, o) * of_weight(ct, 0, i, o);
          sum += term, sizes += std::abs(term);
        }
        expect_sum(dtype, dx.at(t * n + i), sum, sizes, m);
      }
    for (int64_t o = 0; o < m; ++o)
      for (int64_t i = 0; i < n; ++i) {
        double sum = more ? dw0.at(o * n + i) : 0, sizes = std::abs(sum);
        for (int64_t t = 0; t < rows; ++t) {
          const double term = of_columns(dyc, t, o) * of_columns(xc, t, i);
          sum += term, sizes += std::abs(term);
        }
        expect_sum(dtype, dw.at(o * n + i), sum, sizes, rows);
      }
    if (more) continue;
    const Tensor y2 = y, dx2 = dx, dw2 = dw;
    for (const int threads : {1, 4}) {
      run(threads);
      EXPECT_TRUE(y == y2 && dx == dx2 && dw == dw2) << threads;
    }
  }
}

TEST(ScaledGroupedLinear, SumsWhatItsCodesSay) {
  const int64_t E = 4, n = 140, m = 36, R = 320;
  for (const Dtype dtype : {Dtype::F32, Dtype::F64}) {
    Tensor offsets = Tensor::of(Dtype::I32, {E + 1}, {0, 131, 131, 132, 300});  // the second has none
    Tensor x = Tensor::normal(dtype, {R, n}, 1), w = Tensor::normal(dtype, {E, m, n}, 2, 0.1),
           dy = Tensor::normal(dtype, {R, m}, 3, 0.01);
    Coded cx = rows_of(x, in(offsets)), cw = weight_of(w, false), ct = weight_of(w, true),
          cdy = rows_of(dy, in(offsets));
    Coded xc = columns_of(cx, E, in(offsets)), dyc = columns_of(cdy, E, in(offsets));
    for (const bool more : {false, true}) {
      Tensor y = Tensor::nan(dtype, {R, m}), dx = Tensor::nan(dtype, {R, n}),
             dw = Tensor::nan(dtype, {E, m, n});
      const Tensor dw0 = Tensor::normal(dtype, {E, m, n}, 7);
      if (more) dw = dw0;
      call(KernelKind::scaled_grouped_linear, Phase::Forward,
           {in(cx.codes), in(cx.scale), in(cw.codes), in(cw.scale), in(offsets), out(y)}, kFp8);
      call(KernelKind::scaled_grouped_linear, Phase::BackwardInput,
           {in(cdy.codes), in(cdy.scale), in(ct.codes), in(ct.scale), in(offsets), out(dx)}, kFp8);
      call(KernelKind::scaled_grouped_linear, Phase::BackwardWeight,
           {in(dyc.codes), in(dyc.scale), in(xc.codes), in(xc.scale), in(offsets), more ? add(dw) : out(dw)},
           kFp8);
      int64_t begin = 0;
      for (int64_t e = 0; e < E; ++e) {
        const auto first = int64_t(offsets.at(e)), last = int64_t(offsets.at(e + 1));
        for (int64_t t = first; t < last; ++t) {
          for (int64_t o = 0; o < m; ++o) {
            double sum = 0, sizes = 0;
            for (int64_t i = 0; i < n; ++i) {
              const double term = of_rows(cx, t, i) * of_weight(cw, e, o, i);
              sum += term, sizes += std::abs(term);
            }
            expect_sum(dtype, y.at(t * m + o), sum, sizes, n);
          }
          for (int64_t i = 0; i < n; ++i) {
            double sum = 0, sizes = 0;
            for (int64_t o = 0; o < m; ++o) {
              const double term = of_rows(cdy, t, o) * of_weight(ct, e, i, o);
              sum += term, sizes += std::abs(term);
            }
            expect_sum(dtype, dx.at(t * n + i), sum, sizes, m);
          }
        }
        for (int64_t o = 0; o < m; ++o)
          for (int64_t i = 0; i < n; ++i) {
            const int64_t at = (e * m + o) * n + i;
            double sum = more ? dw0.at(at) : 0, sizes = std::abs(sum);
            for (int64_t t = 0; t < last - first; ++t) {
              const double term = of_columns(dyc, begin + t, o) * of_columns(xc, begin + t, i);
              sum += term, sizes += std::abs(term);
            }
            if (first == last) {
              ASSERT_EQ(dw.at(at), sum);  // zeros written, or left as it was
              continue;
            }
            expect_sum(dtype, dw.at(at), sum, sizes, last - first);
          }
        begin += (last - first + 127) / 128 * 128;
      }
      EXPECT_TRUE(std::isnan(y.at(300 * m)) && std::isnan(dx.at(300 * n)));  // rows of no expert
    }
  }
}

// How much is lost against the product of the numbers themselves: codes have four bits, so each number is off by at most
// 1/16 and by 2.3 % in the root mean square where its block is even; a product of two by 3 to 4 %, and so is a sum of
// many.
TEST(ScaledLinear, IsNearTheProductOfTheNumbers) {
  const int64_t rows = 64, n = 512, m = 48;
  Tensor x = Tensor::normal(Dtype::F32, {rows, n}, 1), w = Tensor::normal(Dtype::F32, {m, n}, 2, 0.1);
  Coded cx = rows_of(x, none()), cw = weight_of(w, false);
  Tensor y = Tensor::nan(Dtype::F32, {rows, m}), wide = Tensor::nan(Dtype::F32, {rows, m});
  call(KernelKind::scaled_linear, Phase::Forward,
       {in(cx.codes), in(cx.scale), in(cw.codes), in(cw.scale), none(), none(), out(y)}, kFp8);
  call(KernelKind::linear, Phase::Forward, {in(x), in(w), none(), none(), out(wide)});
  const double error = norm_error(y.numbers(), wide.numbers());
  EXPECT_LT(error, 0.045);
  EXPECT_GT(error, 0.01);
}

TEST(ScaledLinear, ShapesThatDoNotFitAreRefused) {
  Tensor x = Tensor::normal(Dtype::F32, {8, 64}, 1), w = Tensor::normal(Dtype::F32, {16, 64}, 2),
         y = Tensor::nan(Dtype::F32, {8, 16}), narrow = Tensor::nan(Dtype::F32, {8, 15});
  Coded cx = rows_of(x, none()), cw = weight_of(w, false), ct = weight_of(w, true);
  const auto forward = [&](Coded& weight, Tensor& to, Tensor& from) {
    call(KernelKind::scaled_linear, Phase::Forward,
         {in(from), in(cx.scale), in(weight.codes), in(weight.scale), none(), none(), out(to)}, kFp8);
  };
  EXPECT_NO_THROW(forward(cw, y, cx.codes));
  EXPECT_THROW(forward(ct, y, cx.codes), base::Error);
  EXPECT_THROW(forward(cw, narrow, cx.codes), base::Error);
  EXPECT_THROW(forward(cw, y, x), base::Error);  // numbers, not codes
}

}  // namespace
}  // namespace pleat::kernels::testing
