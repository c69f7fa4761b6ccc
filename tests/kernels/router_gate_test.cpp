// The gate in all type pairs, jitter and forced routing.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/kernel_support.h"

namespace pleat::kernels::testing {
namespace {

using program::KernelKind;
using program::Phase;
using tensor::Dtype;

struct Pair {
  Dtype compute, router;
};
constexpr Pair kPairs[] = {{Dtype::F32, Dtype::F32}, {Dtype::F32, Dtype::F64}, {Dtype::F64, Dtype::F64}};

// Bound for sums of n products of about unit size.
double bound(Dtype dtype, int64_t n) {
  return 4 * std::sqrt(static_cast<double>(n)) * std::sqrt(static_cast<double>(n)) *
         (dtype == Dtype::F32 ? 1.2e-7 : 2.3e-16);
}

TEST(RouterGate, AllPhasesAgreeWithPlainLoops) {
  for (const Pair p : kPairs)
    for (const auto& [T, h, E] : {std::array<int64_t, 3>{1, 1, 1}, {70, 300, 67}, {131, 64, 16}}) {
      Tensor x = Tensor::normal(p.compute, {T, h}, 1), w = Tensor::normal(p.compute, {E, h}, 2);
      Tensor bias = Tensor::normal(p.compute, {E}, 3), logits = Tensor::nan(p.router, {T, E});
      call(KernelKind::router_gate, Phase::Forward, {in(x), in(w), in(bias), out(logits)});
      for (int64_t t = 0; t < T; ++t)
        for (int64_t e = 0; e < E; ++e) {
          double sum = bias.at(e);
          for (int64_t c = 0; c < h; ++c) sum += x.at(t * h + c) * w.at(e * h + c);
          ASSERT_NEAR(logits.at(t * E + e), sum, bound(p.router, h));
        }
      Tensor dlogits = Tensor::normal(p.router, {T, E}, 4), dx = Tensor::nan(p.compute, {T, h});
      call(KernelKind::router_gate, Phase::BackwardInput, {in(dlogits), in(w), out(dx)});
      Tensor dx2 = dx;
      call(KernelKind::router_gate, Phase::BackwardInput, {in(dlogits), in(w), add(dx2)});
      for (int64_t t = 0; t < T; ++t)
        for (int64_t c = 0; c < h; ++c) {
          double sum = 0;
          for (int64_t e = 0; e < E; ++e) sum += dlogits.at(t * E + e) * w.at(e * h + c);
          ASSERT_NEAR(dx.at(t * h + c), sum, bound(p.compute, E));
          ASSERT_NEAR(dx2.at(t * h + c), 2 * sum, 3 * bound(p.compute, E));
        }
      Tensor dw = Tensor::nan(p.compute, {E, h}), dbias = Tensor::nan(p.compute, {E});
      call(KernelKind::router_gate, Phase::BackwardWeight, {in(dlogits), in(x), out(dw), out(dbias)});
      Tensor dw2 = dw, dbias2 = dbias;
      call(KernelKind::router_gate, Phase::BackwardWeight, {in(dlogits), in(x), add(dw2), add(dbias2)});
      for (int64_t e = 0; e < E; ++e) {
        double bias_sum = 0;
        for (int64_t t = 0; t < T; ++t) bias_sum += dlogits.at(t * E + e);
        ASSERT_NEAR(dbias.at(e), bias_sum, bound(p.compute, T));
        ASSERT_NEAR(dbias2.at(e), 2 * bias_sum, 3 * bound(p.compute, T));
        for (int64_t c = 0; c < h; ++c) {
          double sum = 0;
          for (int64_t t = 0; t < T; ++t) sum += dlogits.at(t * E + e) * x.at(t * h + c);
          ASSERT_NEAR(dw.at(e * h + c), sum, bound(p.compute, T));
          ASSERT_NEAR(dw2.at(e * h + c), 2 * sum, 3 * bound(p.compute, T));
        }
      }
    }
}

// A float model with a double router: products of float numbers are exact in double, so the logits are far
// closer than float.
TEST(RouterGate, WideRouterMultipliesWide) {
  const int64_t T = 9, h = 400, E = 5;
  Tensor x = Tensor::normal(Dtype::F32, {T, h}, 1), w = Tensor::normal(Dtype::F32, {E, h}, 2);
  Tensor logits = Tensor::nan(Dtype::F64, {T, E});
  call(KernelKind::router_gate, Phase::Forward, {in(x), in(w), none(), out(logits)});
  for (int64_t t = 0; t < T; ++t)
    for (int64_t e = 0; e < E; ++e) {
      double sum = 0;
      for (int64_t c = 0; c < h; ++c) sum += x.at(t * h + c) * w.at(e * h + c);
      EXPECT_NEAR(logits.at(t * E + e), sum, 1e-12);
    }
}

TEST(RouterGate, BitsDoNotDependOnThreads) {
  for (const Pair p : kPairs) {
    const int64_t T = 333, h = 290, E = 20;
    Tensor x = Tensor::normal(p.compute, {T, h}, 1), w = Tensor::normal(p.compute, {E, h}, 2),
           d = Tensor::normal(p.router, {T, E}, 3);
    std::vector<Tensor> first;
    for (int threads : {1, 2, 4}) {
      Tensor logits = Tensor::nan(p.router, {T, E}), dx = Tensor::nan(p.compute, {T, h}),
             dw = Tensor::nan(p.compute, {E, h});
      call(KernelKind::router_gate, Phase::Forward, {in(x), in(w), none(), out(logits)}, {}, threads);
      call(KernelKind::router_gate, Phase::BackwardInput, {in(d), in(w), out(dx)}, {}, threads);
      call(KernelKind::router_gate, Phase::BackwardWeight, {in(d), in(x), out(dw), none()}, {}, threads);
      const std::vector<Tensor> got{logits, dx, dw};
      if (first.empty()) first = got;
      EXPECT_EQ(got, first);
    }
  }
}

TEST(RouterGate, RefusesOtherShapesAndTypes) {
  Tensor x = Tensor::zeros(Dtype::F64, {3, 4}), w = Tensor::zeros(Dtype::F64, {2, 5}),
         logits = Tensor::zeros(Dtype::F64, {3, 2});
  const auto message = [&] {
    try {
      call(KernelKind::router_gate, Phase::Forward, {in(x), in(w), none(), out(logits)});
    } catch (const base::Error& e) {
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(message(), "[router_gate] argument 'w' is [2, 5], needed [2, 4]");
  w = Tensor::zeros(Dtype::F64, {2, 4});
  EXPECT_EQ(message(), "accepted");
  logits = Tensor::zeros(Dtype::F32, {3, 2});
  EXPECT_NE(message().find("compute type f64 with router type f32 is not supported"), std::string::npos);
}

Tensor rng_of(double seed, double step) { return Tensor::of(Dtype::I64, {2}, {seed, step}); }

TEST(RouterNoise, JitterIsKeyedByTokenAndKeepsItsRange) {
  const int64_t T = 40, h = 9;
  Tensor x = Tensor::of(Dtype::F64, {T, h}, std::vector<double>(T * h, 1.0)), rng = rng_of(7, 3);
  std::vector<double> tokens(T), reversed(T);
  for (int64_t t = 0; t < T; ++t) tokens[t] = 1000.0 + t, reversed[t] = 1000.0 + T - 1 - t;
  Tensor index = Tensor::of(Dtype::I64, {T}, tokens), back = Tensor::of(Dtype::I64, {T}, reversed);
  const auto run = [&](Tensor& rng_key, Tensor& token_index, double layer) {
    Tensor y = Tensor::nan(Dtype::F64, {T, h});
    call(KernelKind::jitter, Phase::Forward, {in(x), in(rng_key), in(token_index), out(y)},
         {{"eps", 0.1}, {"layer", layer}});
    return y;
  };
  Tensor y = run(rng, index, 2), mirrored = run(rng, back, 2);
  double mean = 0, low = 2, high = 0;
  for (int64_t t = 0; t < T; ++t)
    for (int64_t c = 0; c < h; ++c) {
      const double v = y.at(t * h + c);
      EXPECT_EQ(v, mirrored.at((T - 1 - t) * h + c));
      mean += v / (T * h);
      low = std::min(low, v), high = std::max(high, v);
    }
  EXPECT_GE(low, 0.9);
  EXPECT_LE(high, 1.1);
  EXPECT_GT(high - low, 0.19);
  EXPECT_NEAR(mean, 1, 0.02);
  EXPECT_FALSE(y == run(rng, index, 3));
  Tensor later = rng_of(7, 4);
  EXPECT_FALSE(y == run(later, index, 2));
  // Linear in x, so backward is the same product; accumulating adds it.
  Tensor dx = Tensor::nan(Dtype::F64, {T, h});
  call(KernelKind::jitter, Phase::BackwardInput, {in(x), in(rng), in(index), out(dx)},
       {{"eps", 0.1}, {"layer", 2}}, 4);
  EXPECT_EQ(dx, y);
  call(KernelKind::jitter, Phase::BackwardInput, {in(x), in(rng), in(index), add(dx)},
       {{"eps", 0.1}, {"layer", 2}});
  for (int64_t i = 0; i < T * h; ++i) EXPECT_EQ(dx.at(i), 2 * y.at(i));
  EXPECT_THROW(call(KernelKind::jitter, Phase::Forward, {in(x), in(rng), in(index), out(dx)},
                    {{"eps", 1.5}, {"layer", 2}}),
               base::Error);
}

TEST(RouterNoise, ForcedLogitsAreNormalAndBiasIsShared) {
  const int64_t T = 4000, E = 4;
  Tensor logits = Tensor::nan(Dtype::F64, {T, E}), rng = rng_of(1, 5), later = rng_of(1, 6);
  std::vector<double> tokens(T);
  for (int64_t t = 0; t < T; ++t) tokens[t] = t;
  Tensor index = Tensor::of(Dtype::I64, {T}, tokens);
  const auto run = [&](Tensor& key, double bias_std, int threads = 2, double loaded = 0) {
    Tensor forced = Tensor::nan(Dtype::F64, {T, E});
    call(KernelKind::router_force, Phase::Forward, {in(logits), in(key), in(index), out(forced)},
         {{"bias_std", bias_std}, {"layer", 6}, {"loaded_bias", loaded}}, threads);
    return forced;
  };
  Tensor plain = run(rng, 0);
  double mean = 0, square = 0;
  for (double v : plain.numbers()) mean += v / (T * E), square += v * v / (T * E);
  EXPECT_NEAR(mean, 0, 0.03);
  EXPECT_NEAR(square, 1, 0.05);
  EXPECT_EQ(plain, run(rng, 0, 4));
  const auto bias_of = [&](Tensor& key, double std_dev) {
    Tensor biased = run(key, std_dev), base = run(key, 0);
    std::vector<double> bias(E);
    for (int64_t e = 0; e < E; ++e) bias[e] = biased.at(e) - base.at(e);
    for (int64_t i = 0; i < T * E; ++i) EXPECT_NEAR(biased.at(i) - base.at(i), bias[i % E], 1e-14);
    return bias;
  };
  EXPECT_GT(norm_error(bias_of(rng, 2), bias_of(later, 2)), 0.1);      // drawn per step
  EXPECT_LT(norm_error(bias_of(rng, -2), bias_of(later, -2)), 1e-13);  // once per layer
  const Tensor loaded = run(rng, 0, 2, 1.5);                           // for expert 6 mod 4
  for (int64_t i = 0; i < T * E; ++i) EXPECT_NEAR(loaded.at(i), plain.at(i) + (i % E == 2 ? 1.5 : 0), 1e-14);
}

}  // namespace
}  // namespace pleat::kernels::testing
