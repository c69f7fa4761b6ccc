#include "kernels/dense_support.h"

namespace pleat::kernels::testing {
namespace {

using program::KernelKind;
using program::Phase;
using tensor::Dtype;

void forward(Tensor& logits, Tensor& labels, Tensor& mask, Pass loss, Pass token_loss, int threads = 2) {
  call(KernelKind::cross_entropy, Phase::Forward, {in(logits), in(labels), in(mask), loss, token_loss}, {},
       threads);
}
void backward(Tensor& labels, Tensor& mask, Tensor& norm, Tensor& logits, Pass loss, int threads = 2) {
  call(KernelKind::cross_entropy, Phase::BackwardInput, {in(labels), in(mask), in(norm), add(logits), loss},
       {}, threads);
}

struct Batch {
  Tensor logits, labels, mask, norm = Tensor::of(Dtype::F64, {1}, {0.125});
  Batch(Dtype dtype, int64_t rows, int64_t vocabulary, double scale = 3.0)
      : logits(Tensor::normal(dtype, {rows, vocabulary}, 1, scale)),
        labels(Tensor::zeros(Dtype::I32, {rows})),
        mask(Tensor::zeros(Dtype::U8, {rows})) {
    for (int64_t t = 0; t < rows; ++t) {
      labels.set(t, static_cast<double>(t * 7 % vocabulary));
      mask.set(t, t % 5 != 2);
    }
  }
};

double row_loss(const Tensor& logits, int64_t t, int64_t label) {
  const int64_t n = logits.shape[1];
  long double sum = 0;
  for (int64_t j = 0; j < n; ++j) sum += std::exp(static_cast<long double>(logits.at(t * n + j)));
  return static_cast<double>(std::log(sum)) - logits.at(t * n + label);
}

TEST(CrossEntropy, Golden) {
  for (Dtype dtype : {Dtype::F32, Dtype::F64}) {
    Tensor logits = Tensor::of(dtype, {1, 4}, {0, 1, 2, 3}), labels = Tensor::of(Dtype::I32, {1}, {3});
    Tensor mask = Tensor::of(Dtype::U8, {1}, {1}), loss = Tensor::nan(Dtype::F64, {2}),
           norm = Tensor::of(Dtype::F64, {1}, {1});
    const double bound = dtype == Dtype::F32 ? 1e-7 : 5e-11;
    forward(logits, labels, mask, out(loss), none());
    EXPECT_NEAR(loss.at(0), 0.4401896986, bound);
    EXPECT_EQ(loss.at(1), 1);
    loss = Tensor::nan(Dtype::F64, {2});
    backward(labels, mask, norm, logits, out(loss));
    EXPECT_NEAR(loss.at(0), 0.4401896986, bound);
    EXPECT_NEAR(logits.at(3), std::exp(-0.4401896986) - 1, 1e-7);
  }
}

TEST(CrossEntropy, AgreesWithPlainLoopsForOddSizes) {
  for (Dtype dtype : {Dtype::F32, Dtype::F64})
    for (auto [rows, vocabulary] :
         {std::pair<int64_t, int64_t>{1, 1}, {7, 3}, {33, 100}, {41, 2500}, {0, 9}}) {
      Batch b(dtype, rows, vocabulary);
      Tensor loss = Tensor::nan(Dtype::F64, {2}), token_loss = Tensor::nan(dtype, {rows});
      forward(b.logits, b.labels, b.mask, out(loss), out(token_loss));
      double sum = 0, tokens = 0;
      std::vector<double> each, gradient;
      for (int64_t t = 0; t < rows; ++t) {
        const int64_t label = static_cast<int64_t>(b.labels.at(t));
        const double value = b.mask.at(t) != 0 ? row_loss(b.logits, t, label) : 0;
        each.push_back(value), sum += value, tokens += b.mask.at(t);
        const double lse = value + b.logits.at(t * vocabulary + label);
        for (int64_t j = 0; j < vocabulary; ++j)
          gradient.push_back(b.mask.at(t) != 0
                                 ? 0.125 * (std::exp(b.logits.at(t * vocabulary + j) - lse) - (j == label))
                                 : 0);
      }
      const double bound = dtype == Dtype::F32 ? float_bound(1) : 1e-14;
      EXPECT_NEAR(loss.at(0), sum, bound * (1 + sum));
      EXPECT_EQ(loss.at(1), tokens);
      EXPECT_LE(norm_error(token_loss.numbers(), each), bound);
      Tensor start = Tensor::of(Dtype::F64, {2}, {10, 3}), got = b.logits;
      backward(b.labels, b.mask, b.norm, got, add(start));
      EXPECT_LE(norm_error(got.numbers(), gradient), bound);
      EXPECT_NEAR(start.at(0), 10 + loss.at(0), bound * (10 + sum));
      EXPECT_EQ(start.at(1), 3 + tokens);
    }
}

TEST(CrossEntropy, GradientAgreesWithDifferences) {
  Batch b(Dtype::F64, 6, 11);
  Tensor loss = Tensor::zeros(Dtype::F64, {2});
  const auto numeric = numeric_gradient(b.logits, [&] {
    forward(b.logits, b.labels, b.mask, out(loss), none());
    return 0.125 * loss.at(0);
  });
  backward(b.labels, b.mask, b.norm, b.logits, out(loss));
  EXPECT_LE(norm_error(b.logits.numbers(), numeric), 1e-6);
}

TEST(CrossEntropy, LargeLogitsDoNotOverflow) {
  Tensor logits = Tensor::of(Dtype::F32, {2, 3}, {1e4, -1e4, 0, -3e38, 5, -3e38}),
         labels = Tensor::of(Dtype::I32, {2}, {1, 1});
  Tensor mask = Tensor::of(Dtype::U8, {2}, {1, 1}), loss = Tensor::nan(Dtype::F64, {2}),
         norm = Tensor::of(Dtype::F64, {1}, {1});
  backward(labels, mask, norm, logits, out(loss));
  EXPECT_EQ(loss.at(0), 2e4);
  EXPECT_EQ(logits.numbers(), (std::vector<double>{1, -1, 0, 0, 0, 0}));
}

TEST(CrossEntropy, MaskedRowsTakeNoPartAndNanIsNotHidden) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  Tensor logits = Tensor::zeros(Dtype::F32, {2, 2}), labels = Tensor::of(Dtype::I32, {2}, {-100, 0});
  logits.set(0, nan);
  logits.set(1, nan);
  ASSERT_EQ(logits.at(2), 0);
  Tensor mask = Tensor::of(Dtype::U8, {2}, {0, 1}), loss = Tensor::nan(Dtype::F64, {2}),
         norm = Tensor::of(Dtype::F64, {1}, {1});
  Tensor copy = logits, token_loss = Tensor::nan(Dtype::F32, {2});
  forward(copy, labels, mask, out(loss), out(token_loss));
  EXPECT_NEAR(loss.at(0), std::log(2.0), 1e-7);
  EXPECT_EQ(token_loss.at(0), 0);
  backward(labels, mask, norm, copy, out(loss));
  EXPECT_EQ(copy.numbers(), (std::vector<double>{0, 0, -0.5, 0.5}));

  Tensor bad = Tensor::of(Dtype::F32, {1, 20}, std::vector<double>(20, 1.0)),
         label = Tensor::of(Dtype::I32, {1}, {3});
  bad.set(17, nan);
  Tensor on = Tensor::of(Dtype::U8, {1}, {1});
  forward(bad, label, on, out(loss), none());
  EXPECT_TRUE(std::isnan(loss.at(0)));
}

TEST(CrossEntropy, SameBitsForAnyThreads) {
  for (int64_t rows : {77, 9001}) {
    const int64_t vocabulary = rows == 77 ? 1500 : 5;
    expect_same_bits([&](int threads) {
      Batch b(Dtype::F32, rows, vocabulary);
      Tensor loss = Tensor::nan(Dtype::F64, {2}), again = loss, token_loss = Tensor::nan(Dtype::F32, {rows});
      forward(b.logits, b.labels, b.mask, out(loss), out(token_loss), threads);
      backward(b.labels, b.mask, b.norm, b.logits, out(again), threads);
      return std::vector{loss, again, token_loss, b.logits};
    });
  }
}

TEST(CrossEntropy, RefusesBadLabelsAndShapes) {
  Batch b(Dtype::F32, 4, 5);
  Tensor loss = Tensor::zeros(Dtype::F64, {2}), before = b.logits;
  b.labels.set(3, 5);
  expect_refused([&] { forward(b.logits, b.labels, b.mask, out(loss), none()); },
                 "[cross_entropy] label 5 of row 3 is outside the vocabulary of 5");
  b.labels.set(3, -1);
  expect_refused([&] { backward(b.labels, b.mask, b.norm, b.logits, out(loss)); }, "label -1 of row 3");
  EXPECT_TRUE(b.logits == before);
  Tensor few = Tensor::zeros(Dtype::I32, {3}), wide = Tensor::zeros(Dtype::I64, {4});
  expect_refused([&] { forward(b.logits, few, b.mask, out(loss), none()); },
                 "[cross_entropy] argument 'labels' is [3], needed [4]");
  expect_refused([&] { forward(b.logits, wide, b.mask, out(loss), none()); },
                 "[cross_entropy] argument 'labels' is i64, needed i32");
  expect_refused(
      [&] {
        call(KernelKind::cross_entropy, Phase::BackwardInput,
             {in(b.labels), in(b.mask), in(b.norm), out(b.logits), out(loss)});
      },
      "argument 'logits' is changed in place");
}

}  // namespace
}  // namespace pleat::kernels::testing
