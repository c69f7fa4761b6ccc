// Expert matrices and activation: values, gradients, idle experts, poisoned rows, skewed loads.
#include <gtest/gtest.h>

#include <algorithm>
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

const program::AttrSet kSilu = {{"activation", 0}};
const program::AttrSet kClamped = {{"activation", 1}, {"alpha", 1.702}, {"limit", 1.5}};

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
        call(KernelKind::grouped_linear, Phase::Forward, {in(x), in(w), in(offsets), none(), none(), out(y)},
             {}, threads);
        call(KernelKind::grouped_linear, Phase::BackwardInput,
             {in(dy), in(w), in(offsets), none(), out(dx), none()}, {}, threads);
        call(KernelKind::grouped_linear, Phase::BackwardWeight,
             {in(dy), in(x), in(offsets), none(), out(dw), none()}, {}, threads);
        expect_poisoned(y, used), expect_poisoned(dx, used);
        if (first.empty()) first = {y, dx, dw};
        // NaN compares unequal, bits do not.
        EXPECT_TRUE(first[0].bytes == y.bytes && first[1].bytes == dx.bytes && first[2].bytes == dw.bytes);
      }
      Tensor twice = first[2];
      call(KernelKind::grouped_linear, Phase::BackwardWeight,
           {in(dy), in(x), in(offsets), none(), add(twice), none()});
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
  call(KernelKind::grouped_linear, Phase::BackwardWeight,
       {in(dy), in(x), in(offsets), none(), add(dw), none()});
  for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(dw.at(i), keep.at(i));
  for (int64_t i = 6; i < 12; ++i) EXPECT_NE(dw.at(i), keep.at(i));
  for (int64_t i = 12; i < 18; ++i) EXPECT_EQ(dw.at(i), keep.at(i));
}

struct BiasRun {
  Tensor offsets, x, w, dy, bias, scale;
  Tensor y, dx, dscale, dw, dbias;
  int64_t used;
  bool scaled;
  BiasRun(const Load& l, Dtype C, Dtype Rt, bool with_scale)
      : offsets(offsets_of(l.counts)),
        used(static_cast<int64_t>(offsets.at(offsets.size() - 1))),
        scaled(with_scale) {
    const int64_t E = static_cast<int64_t>(l.counts.size()), R = used + 4;
    x = Tensor::normal(C, {R, l.in}, 1), w = Tensor::normal(C, {E, l.out, l.in}, 2);
    dy = Tensor::normal(C, {R, l.out}, 3), bias = Tensor::normal(C, {E, l.out}, 4);
    scale = Tensor::normal(Rt, {R}, 5);
    poison(x, used), poison(dy, used), poison(scale, used);
    y = Tensor::nan(C, {R, l.out}), dx = Tensor::nan(C, {R, l.in}), dscale = Tensor::nan(Rt, {R});
    dw = Tensor::nan(C, {E, l.out, l.in}), dbias = Tensor::nan(C, {E, l.out});
  }
  void forward(int threads = 2) {
    call(KernelKind::grouped_linear, Phase::Forward,
         {in(x), in(w), in(offsets), in(bias), scaled ? in(scale) : none(), out(y)}, {}, threads);
  }
  void backward(Pass to_scale, Pass to_bias, int threads = 2) {
    call(KernelKind::grouped_linear, Phase::BackwardInput,
         {in(dy), in(w), in(offsets), scaled ? in(bias) : none(), out(dx), scaled ? to_scale : none()}, {},
         threads);
    call(KernelKind::grouped_linear, Phase::BackwardWeight,
         {in(dy), in(x), in(offsets), scaled ? in(scale) : none(), out(dw), to_bias}, {}, threads);
  }
  double loss() {
    forward();
    double sum = 0;
    for (int64_t i = 0; i < used * y.shape[1]; ++i) sum += y.at(i) * dy.at(i);
    return sum;
  }
};

TEST(GroupedLinear, BiasAgreesWithPlainLoopsInBothModesAndForAnyThreads) {
  for (const auto& [C, Rt] :
       {std::pair{Dtype::F32, Dtype::F32}, {Dtype::F32, Dtype::F64}, {Dtype::F64, Dtype::F64}})
    for (bool scaled : {false, true})
      for (const Load& l : loads()) {
        BiasRun r(l, C, Rt, scaled);
        const int64_t E = static_cast<int64_t>(l.counts.size());
        r.forward(1);
        r.backward(out(r.dscale), out(r.dbias), 1);
        expect_poisoned(r.y, r.used), expect_poisoned(r.dx, r.used), expect_poisoned(r.dscale, r.used);
        for (int threads : {2, 4}) {
          BiasRun other(l, C, Rt, scaled);
          other.forward(threads);
          other.backward(out(other.dscale), out(other.dbias), threads);
          EXPECT_TRUE(other.y.bytes == r.y.bytes && other.dx.bytes == r.dx.bytes &&
                      other.dw.bytes == r.dw.bytes);
          EXPECT_TRUE(other.dscale.bytes == r.dscale.bytes && other.dbias.bytes == r.dbias.bytes);
        }
        // The product is the one without a bias; only what the bias adds is new here.
        Tensor product = Tensor::nan(C, r.y.shape);
        call(KernelKind::grouped_linear, Phase::Forward,
             {in(r.x), in(r.w), in(r.offsets), none(), none(), out(product)});
        Tensor sum_scale = Tensor::normal(Rt, r.dscale.shape, 7),
               sum_bias = Tensor::normal(C, r.dbias.shape, 8);
        const Tensor start_scale = sum_scale, start_bias = sum_bias;
        r.backward(add(sum_scale), add(sum_bias));
        const double eps = C == Dtype::F32 ? 1.2e-7 : 2.3e-16;
        for (int64_t e = 0; e < E; ++e) {
          const int64_t r0 = static_cast<int64_t>(r.offsets.at(e)),
                        r1 = static_cast<int64_t>(r.offsets.at(e + 1));
          for (int64_t row = r0; row < r1; ++row) {
            const double s = scaled ? r.scale.at(row) : 1;
            double dot = 0, size = 1;
            for (int64_t o = 0; o < l.out; ++o) {
              const double b = r.bias.at(e * l.out + o), base = product.at(row * l.out + o);
              ASSERT_NEAR(r.y.at(row * l.out + o), base + b * s,
                          2 * eps * (std::abs(base) + std::abs(b * s)));
              dot += r.dy.at(row * l.out + o) * b;
              size += std::abs(r.dy.at(row * l.out + o) * b);
            }
            if (!scaled) continue;
            ASSERT_NEAR(r.dscale.at(row), dot, 2 * eps * size);
            ASSERT_NEAR(sum_scale.at(row), start_scale.at(row) + dot,
                        4 * eps * (size + std::abs(start_scale.at(row))));
          }
          for (int64_t o = 0; o < l.out; ++o) {
            double sum = 0, size = 1;
            for (int64_t row = r0; row < r1; ++row) {
              sum += r.dy.at(row * l.out + o) * (scaled ? r.scale.at(row) : 1);
              size += std::abs(sum);
            }
            const int64_t at = e * l.out + o;
            if (r0 == r1) {
              ASSERT_EQ(r.dbias.at(at), 0.0);
              ASSERT_EQ(sum_bias.at(at), start_bias.at(at));
            }
            ASSERT_NEAR(r.dbias.at(at), sum, 2 * eps * size);
            ASSERT_NEAR(sum_bias.at(at), start_bias.at(at) + sum,
                        4 * eps * (size + std::abs(start_bias.at(at))));
          }
        }
      }
}

TEST(GroupedLinear, BiasGradientsAgreeWithDifferences) {
  for (bool scaled : {false, true}) {
    BiasRun r({{3, 0, 5, 1}, 4, 6}, Dtype::F64, Dtype::F64, scaled);
    r.backward(out(r.dscale), out(r.dbias));
    const auto used_part = [&](const std::vector<double>& v, int64_t width) {
      return std::vector<double>(v.begin(), v.begin() + r.used * width);
    };
    const auto loss = [&] { return r.loss(); };
    EXPECT_LE(norm_error(r.dbias.numbers(), numeric_gradient(r.bias, loss)), 1e-6);
    EXPECT_LE(norm_error(r.dw.numbers(), numeric_gradient(r.w, loss)), 1e-6);
    EXPECT_LE(norm_error(used_part(r.dx.numbers(), 4), used_part(numeric_gradient(r.x, loss), 4)), 1e-6);
    if (scaled) {
      EXPECT_LE(norm_error(used_part(r.dscale.numbers(), 1), used_part(numeric_gradient(r.scale, loss), 1)),
                1e-6);
    }
  }
}

TEST(GroupedLinear, RefusesBiasesThatDoNotFit) {
  const auto message = [](const auto& f) {
    try {
      f();
    } catch (const base::Error& e) {
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  const auto good = [] { return BiasRun({{1, 1}, 4, 5}, Dtype::F32, Dtype::F32, true); };
  BiasRun r = good();
  const auto all = [&] {
    r.forward();
    r.backward(out(r.dscale), out(r.dbias));
  };
  EXPECT_EQ(message(all), "accepted");
  r.bias = Tensor::zeros(Dtype::F32, {2, 4});
  EXPECT_EQ(message(all), "[grouped_linear] argument 'bias' is [2, 4], needed [2, 5]");
  r = good(), r.scale = Tensor::zeros(Dtype::F32, {5});
  EXPECT_EQ(message(all), "[grouped_linear] argument 'row_scale' is [5], needed [6]");
  r = good(), r.dscale = Tensor::zeros(Dtype::F32, {5});
  EXPECT_EQ(message(all), "[grouped_linear] argument 'drow_scale' is [5], needed [6]");
  r = good(), r.dbias = Tensor::zeros(Dtype::F64, {2, 5});
  EXPECT_EQ(message(all), "[grouped_linear] argument 'dbias' is f64, needed f32");
  r = good();
  EXPECT_EQ(message([&] {
              call(KernelKind::grouped_linear, Phase::Forward,
                   {in(r.x), in(r.w), in(r.offsets), none(), in(r.scale), out(r.y)});
            }),
            "[grouped_linear] argument 'row_scale' needs 'bias'");
  EXPECT_EQ(message([&] {
              call(KernelKind::grouped_linear, Phase::BackwardInput,
                   {in(r.dy), in(r.w), in(r.offsets), in(r.bias), out(r.dx), none()});
            }),
            "[grouped_linear] arguments 'bias' and 'drow_scale' must be both present or both absent");
  EXPECT_EQ(message([&] {
              call(KernelKind::grouped_linear, Phase::BackwardWeight,
                   {in(r.dy), in(r.x), in(r.offsets), in(r.scale), out(r.dw), none()});
            }),
            "[grouped_linear] argument 'row_scale' needs 'dbias'");
}

TEST(GroupedLinear, RefusesOtherShapes) {
  Tensor offsets = offsets_of({1, 1}), x = Tensor::zeros(Dtype::F32, {2, 3}),
         w = Tensor::zeros(Dtype::F32, {2, 5, 4}), y = Tensor::zeros(Dtype::F32, {2, 5});
  const auto message = [&] {
    try {
      call(KernelKind::grouped_linear, Phase::Forward, {in(x), in(w), in(offsets), none(), none(), out(y)});
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
      call(KernelKind::expert_swiglu, Phase::Forward, {in(gu), in(p), in(offsets), out(a)}, kSilu);
      call(KernelKind::expert_swiglu, Phase::BackwardInput,
           {in(da), in(gu), in(p), in(offsets), out(dgu), out(dp)}, kSilu);
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
      const auto loss = [&, C = C] {
        Tensor y = Tensor::zeros(C, {R, f});
        call(KernelKind::expert_swiglu, Phase::Forward, {in(gu), in(p), in(offsets), out(y)}, kSilu);
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
  for (const program::AttrSet& attrs : {kSilu, kClamped}) {
    std::vector<Tensor> first;
    for (int threads : {1, 2, 4}) {
      Tensor a = Tensor::nan(Dtype::F32, {501, 47}), dgu = Tensor::nan(Dtype::F32, {501, 94}),
             dp = Tensor::nan(Dtype::F32, {501});
      call(KernelKind::expert_swiglu, Phase::Forward, {in(gu), in(p), in(offsets), out(a)}, attrs, threads);
      call(KernelKind::expert_swiglu, Phase::BackwardInput,
           {in(da), in(gu), in(p), in(offsets), out(dgu), out(dp)}, attrs, threads);
      const std::vector<Tensor> got{a, dgu, dp};
      if (first.empty()) first = got;
      EXPECT_EQ(got, first);
    }
  }
}

// The clamped form, with every kind of element: inside, on and beyond each limit.
TEST(ExpertSwiglu, ClampedValuesAndGradients) {
  const double limit = 1.5, alpha = 1.702;
  for (const auto& [C, Rt] :
       {std::pair{Dtype::F32, Dtype::F32}, {Dtype::F32, Dtype::F64}, {Dtype::F64, Dtype::F64}})
    for (int64_t f : {1, 16, 37}) {
      Tensor offsets = offsets_of({2, 0, 70});
      const int64_t used = 72, R = 75;
      Tensor gu = Tensor::normal(C, {R, 2 * f}, 1, 2), p = Tensor::normal(Rt, {R}, 2),
             da = Tensor::normal(C, {R, f}, 3);
      gu.set(0, limit), gu.set(2 * f, -limit), gu.set(f, limit), gu.set(3 * f, -limit);
      poison(gu, used), poison(p, used), poison(da, used);
      Tensor a = Tensor::nan(C, {R, f}), dgu = Tensor::nan(C, {R, 2 * f}), dp = Tensor::nan(Rt, {R});
      call(KernelKind::expert_swiglu, Phase::Forward, {in(gu), in(p), in(offsets), out(a)}, kClamped);
      call(KernelKind::expert_swiglu, Phase::BackwardInput,
           {in(da), in(gu), in(p), in(offsets), out(dgu), out(dp)}, kClamped);
      expect_poisoned(a, used), expect_poisoned(dgu, used), expect_poisoned(dp, used);
      const double eps = C == Dtype::F32 ? 4e-6 : 2e-14;
      for (int64_t r = 0; r < used; ++r) {
        double sum = 0, size = 1;
        for (int64_t i = 0; i < f; ++i) {
          const double gate = gu.at(r * 2 * f + i), up = gu.at(r * 2 * f + f + i), d = da.at(r * f + i);
          const double g = std::min(gate, limit), u = std::clamp(up, -limit, limit),
                       s = 1 / (1 + std::exp(-alpha * g)), value = (u + 1) * g * s, dp_r = d * p.at(r);
          const double scale = 1 + 10 * std::abs(dp_r) * (1 + std::abs(g)) + std::abs(value * p.at(r));
          ASSERT_NEAR(a.at(r * f + i), value * p.at(r), eps * scale);
          ASSERT_NEAR(dgu.at(r * 2 * f + i),
                      gate <= limit ? dp_r * (u + 1) * (s + alpha * g * s * (1 - s)) : 0, eps * scale);
          ASSERT_NEAR(dgu.at(r * 2 * f + f + i), std::abs(up) <= limit ? dp_r * g * s : 0, eps * scale);
          sum += d * value;
          size += std::abs(d * value);
        }
        ASSERT_NEAR(dp.at(r), sum, eps * size);
      }
      // Both on the limit, exactly: the gradient passes.
      EXPECT_NE(dgu.at(0), 0.0);
      EXPECT_NE(dgu.at(f), 0.0);
      EXPECT_NE(dgu.at(3 * f), 0.0);
      Tensor total = Tensor::normal(Rt, {R}, 5);
      const Tensor start = total;
      Tensor again = Tensor::nan(C, {R, 2 * f});
      call(KernelKind::expert_swiglu, Phase::BackwardInput,
           {in(da), in(gu), in(p), in(offsets), out(again), add(total)}, kClamped);
      EXPECT_TRUE(again.bytes == dgu.bytes);
      for (int64_t r = 0; r < R; ++r) {
        if (r < used) {
          EXPECT_NEAR(total.at(r), start.at(r) + dp.at(r), eps * (1 + std::abs(dp.at(r))));
        } else {
          EXPECT_EQ(total.at(r), start.at(r));
        }
      }
      if (C != Dtype::F64 || f > 16) continue;
      // Differences need a neighbourhood without a kink.
      gu.set(0, 1.0), gu.set(2 * f, 1.0), gu.set(f, 1.0), gu.set(3 * f, 1.0);
      call(KernelKind::expert_swiglu, Phase::BackwardInput,
           {in(da), in(gu), in(p), in(offsets), out(dgu), out(dp)}, kClamped);
      const auto loss = [&, C = C] {
        Tensor y = Tensor::zeros(C, {R, f});
        call(KernelKind::expert_swiglu, Phase::Forward, {in(gu), in(p), in(offsets), out(y)}, kClamped);
        double sum = 0;
        for (int64_t i = 0; i < used * f; ++i) sum += y.at(i) * da.at(i);
        return sum;
      };
      const auto head = [&](const std::vector<double>& v, int64_t n) {
        return std::vector<double>(v.begin(), v.begin() + n);
      };
      EXPECT_LE(norm_error(head(dp.numbers(), used), head(numeric_gradient(p, loss), used)), 1e-6);
      EXPECT_LE(norm_error(head(dgu.numbers(), used * 2 * f), head(numeric_gradient(gu, loss), used * 2 * f)),
                1e-6);
    }
}

TEST(ExpertSwiglu, RefusesUnknownActivations) {
  Tensor offsets = offsets_of({2}), gu = Tensor::zeros(Dtype::F32, {2, 6}),
         p = Tensor::zeros(Dtype::F32, {2}), a = Tensor::zeros(Dtype::F32, {2, 3});
  const auto message = [&](const program::AttrSet& attrs) {
    try {
      call(KernelKind::expert_swiglu, Phase::Forward, {in(gu), in(p), in(offsets), out(a)}, attrs);
    } catch (const base::Error& e) {
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(message({{"activation", 2}}), "[expert_swiglu] activation is 2, needed 0 (silu) or 1 (clamped)");
  EXPECT_EQ(message({{"activation", 1}, {"alpha", 1}, {"limit", -1}}),
            "[expert_swiglu] limit -1 and alpha 1: needed a positive limit and a finite alpha");
  EXPECT_EQ(message({{"activation", 1}, {"alpha", 1}}), "stage attribute 'limit' is missing");
  EXPECT_EQ(message({}), "stage attribute 'activation' is missing");
}

}  // namespace
}  // namespace pleat::kernels::testing
