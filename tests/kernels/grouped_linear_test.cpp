// Expert matrices and activation: values, gradients, idle experts, poisoned rows, skewed loads.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/kernel_support.h"

namespace pleat::kernels::testing {
namespace {

using program::KernelKind;
using program::Phase;
using tensor::Dtype;

Tensor offsets_of(const std::vector<int64_t>& counts) {
  std::vector<double> offsets = {0};
  for (int64_t c : counts) offsets.push_back(offsets.back() + static_cast<double>(c));
  return Tensor::of(Dtype::I32, {static_cast<int64_t>(offsets.size())}, offsets);
}

// Rows from `used` on become NaN.
void poison(Tensor& t, int64_t used) {
  const int64_t width = t.size() / t.shape[0];
  for (int64_t i = used * width; i < t.size(); ++i) t.set(i, NAN);
}

void expect_poisoned(const Tensor& t, int64_t used) {
  const int64_t width = t.size() / t.shape[0];
  for (int64_t i = used * width; i < t.size(); ++i) ASSERT_TRUE(std::isnan(t.at(i)));
}

struct Load {
  std::vector<int64_t> counts;
  int64_t in, out;
};
const std::vector<Load>& loads() {
  static const std::vector<Load> all = {
      {{3, 0, 5, 1}, 7, 5}, {{0, 0, 9}, 16, 24},        {{0, 0, 0}, 4, 4},
      {{1}, 1, 1},          {{300, 2, 0, 17}, 40, 400}, {{5, 270, 0}, 300, 33},
  };
  return all;
}

TEST(GroupedLinear, AllPhasesAgreeWithPlainLoopsThreeTimes) {
  for (const Dtype C : {Dtype::F32, Dtype::F64})
    for (const Load& l : loads()) {
      const int64_t E = static_cast<int64_t>(l.counts.size()), in_ = l.in, out_ = l.out;
      Tensor offsets = offsets_of(l.counts);
      const int64_t used = static_cast<int64_t>(offsets.at(E)), R = used + 4;
      Tensor x = Tensor::normal(C, {R, in_}, 1), w = Tensor::normal(C, {E, out_, in_}, 2),
             dy = Tensor::normal(C, {R, out_}, 3);
      poison(x, used), poison(dy, used);
      const double eps = C == Dtype::F32 ? 1.2e-7 : 2.3e-16;
      std::vector<Tensor> first;
      for (int round = 0; round < 3; ++round) {
        Tensor y = Tensor::nan(C, {R, out_}), dx = Tensor::nan(C, {R, in_}),
               dw = Tensor::nan(C, {E, out_, in_});
        const int threads = round == 0 ? 1 : 2 * round;
        call(KernelKind::grouped_linear, Phase::Forward, {in(x), in(w), in(offsets), out(y)}, {}, threads);
        call(KernelKind::grouped_linear, Phase::BackwardInput, {in(dy), in(w), in(offsets), out(dx)}, {},
             threads);
        call(KernelKind::grouped_linear, Phase::BackwardWeight, {in(dy), in(x), in(offsets), out(dw)}, {},
             threads);
        expect_poisoned(y, used), expect_poisoned(dx, used);
        if (first.empty()) first = {y, dx, dw};
        // NaN compares unequal, bits do not.
        EXPECT_TRUE(first[0].bytes == y.bytes && first[1].bytes == dx.bytes && first[2].bytes == dw.bytes);
      }
      Tensor twice = first[2];
      call(KernelKind::grouped_linear, Phase::BackwardWeight, {in(dy), in(x), in(offsets), add(twice)});
      for (int64_t e = 0; e < E; ++e) {
        const int64_t r0 = static_cast<int64_t>(offsets.at(e)), r1 = static_cast<int64_t>(offsets.at(e + 1));
        for (int64_t o = 0; o < out_; ++o)
          for (int64_t r = r0; r < r1; ++r) {
            double sum = 0;
            for (int64_t i = 0; i < in_; ++i) sum += x.at(r * in_ + i) * w.at((e * out_ + o) * in_ + i);
            ASSERT_NEAR(first[0].at(r * out_ + o), sum, 4 * static_cast<double>(in_) * eps);
          }
        for (int64_t i = 0; i < in_; ++i) {
          for (int64_t r = r0; r < r1; ++r) {
            double sum = 0;
            for (int64_t o = 0; o < out_; ++o) sum += dy.at(r * out_ + o) * w.at((e * out_ + o) * in_ + i);
            ASSERT_NEAR(first[1].at(r * in_ + i), sum, 4 * static_cast<double>(out_) * eps);
          }
          for (int64_t o = 0; o < out_; ++o) {
            double sum = 0;
            for (int64_t r = r0; r < r1; ++r) sum += dy.at(r * out_ + o) * x.at(r * in_ + i);
            const int64_t at = (e * out_ + o) * in_ + i;
            if (r0 == r1) {
              ASSERT_EQ(first[2].at(at), 0.0);
            }
            ASSERT_NEAR(first[2].at(at), sum, 4 * static_cast<double>(r1 - r0) * eps);
            ASSERT_NEAR(twice.at(at), 2 * sum, 12 * static_cast<double>(r1 - r0) * eps);
          }
        }
      }
    }
}

TEST(GroupedLinear, IdleExpertsAccumulateNothing) {
  Tensor offsets = offsets_of({0, 4, 0}), x = Tensor::normal(Dtype::F32, {4, 3}, 1),
         dy = Tensor::normal(Dtype::F32, {4, 2}, 2);
  Tensor keep = Tensor::normal(Dtype::F32, {3, 2, 3}, 3), dw = keep;
  call(KernelKind::grouped_linear, Phase::BackwardWeight, {in(dy), in(x), in(offsets), add(dw)});
  for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(dw.at(i), keep.at(i));
  for (int64_t i = 6; i < 12; ++i) EXPECT_NE(dw.at(i), keep.at(i));
  for (int64_t i = 12; i < 18; ++i) EXPECT_EQ(dw.at(i), keep.at(i));
}

TEST(GroupedLinear, RefusesOtherShapes) {
  Tensor offsets = offsets_of({1, 1}), x = Tensor::zeros(Dtype::F32, {2, 3}),
         w = Tensor::zeros(Dtype::F32, {2, 5, 4}), y = Tensor::zeros(Dtype::F32, {2, 5});
  const auto message = [&] {
    try {
      call(KernelKind::grouped_linear, Phase::Forward, {in(x), in(w), in(offsets), out(y)});
    } catch (const base::Error& e) {
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(message(), "[grouped_linear] argument 'x' is [2, 3], needed [2, 4]");
  x = Tensor::zeros(Dtype::F32, {2, 4});
  EXPECT_EQ(message(), "accepted");
  y = Tensor::zeros(Dtype::F64, {2, 5});
  EXPECT_EQ(message(), "[grouped_linear] argument 'y' is f64, needed f32");
  offsets = offsets_of({1, 1, 1});
  EXPECT_EQ(message(), "[grouped_linear] argument 'offsets' is [4], needed [3]");
}

TEST(ExpertSwiglu, ValuesAndGradients) {
  for (const auto& [C, Rt] :
       {std::pair{Dtype::F32, Dtype::F32}, {Dtype::F32, Dtype::F64}, {Dtype::F64, Dtype::F64}})
    for (int64_t f : {1, 15, 16, 37, 64}) {
      Tensor offsets = offsets_of({2, 0, 70});
      const int64_t used = 72, R = 75;
      Tensor gu = Tensor::normal(C, {R, 2 * f}, 1, 2), p = Tensor::normal(Rt, {R}, 2),
             da = Tensor::normal(C, {R, f}, 3);
      poison(gu, used), poison(p, used), poison(da, used);
      Tensor a = Tensor::nan(C, {R, f}), dgu = Tensor::nan(C, {R, 2 * f}), dp = Tensor::nan(Rt, {R});
      call(KernelKind::expert_swiglu, Phase::Forward, {in(gu), in(p), in(offsets), out(a)});
      call(KernelKind::expert_swiglu, Phase::BackwardInput,
           {in(da), in(gu), in(p), in(offsets), out(dgu), out(dp)});
      expect_poisoned(a, used), expect_poisoned(dgu, used), expect_poisoned(dp, used);
      const double eps = C == Dtype::F32 ? 2e-6 : 1e-14;
      for (int64_t r = 0; r < used; ++r) {
        double sum = 0, size = 1;
        for (int64_t i = 0; i < f; ++i) {
          const double g = gu.at(r * 2 * f + i), u = gu.at(r * 2 * f + f + i), s = 1 / (1 + std::exp(-g)),
                       d = da.at(r * f + i);
          ASSERT_NEAR(a.at(r * f + i), g * s * u * p.at(r), eps * (1 + std::abs(g * u * p.at(r))));
          ASSERT_NEAR(dgu.at(r * 2 * f + f + i), d * p.at(r) * g * s, eps * (1 + std::abs(d * p.at(r) * g)));
          ASSERT_NEAR(dgu.at(r * 2 * f + i), d * p.at(r) * u * s * (1 + g * (1 - s)),
                      2 * eps * (1 + std::abs(d * p.at(r) * u * (1 + std::abs(g)))));
          sum += d * g * s * u;
          size += std::abs(d * g * u);
        }
        ASSERT_NEAR(dp.at(r), sum, eps * size);
      }
      if (C != Dtype::F64 || f > 16) continue;
      const auto loss = [&] {
        Tensor y = Tensor::zeros(C, {R, f});
        call(KernelKind::expert_swiglu, Phase::Forward, {in(gu), in(p), in(offsets), out(y)});
        double total = 0;
        for (int64_t i = 0; i < used * f; ++i) total += y.at(i) * da.at(i);
        return total;
      };
      const auto head = [&](const std::vector<double>& v, int64_t n) {
        return std::vector<double>(v.begin(), v.begin() + n);
      };
      EXPECT_LE(norm_error(head(dp.numbers(), used), head(numeric_gradient(p, loss), used)), 1e-6);
      EXPECT_LE(norm_error(head(dgu.numbers(), used * 2 * f), head(numeric_gradient(gu, loss), used * 2 * f)),
                1e-6);
    }
}

TEST(ExpertSwiglu, BitsDoNotDependOnThreads) {
  Tensor offsets = offsets_of({200, 0, 301}), gu = Tensor::normal(Dtype::F32, {501, 94}, 1),
         p = Tensor::normal(Dtype::F32, {501}, 2), da = Tensor::normal(Dtype::F32, {501, 47}, 3);
  std::vector<Tensor> first;
  for (int threads : {1, 2, 4}) {
    Tensor a = Tensor::nan(Dtype::F32, {501, 47}), dgu = Tensor::nan(Dtype::F32, {501, 94}),
           dp = Tensor::nan(Dtype::F32, {501});
    call(KernelKind::expert_swiglu, Phase::Forward, {in(gu), in(p), in(offsets), out(a)}, {}, threads);
    call(KernelKind::expert_swiglu, Phase::BackwardInput,
         {in(da), in(gu), in(p), in(offsets), out(dgu), out(dp)}, {}, threads);
    const std::vector<Tensor> got{a, dgu, dp};
    if (first.empty()) first = got;
    EXPECT_EQ(got, first);
  }
}

}  // namespace
}  // namespace pleat::kernels::testing
