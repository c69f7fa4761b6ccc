// Choice and probabilities of the router against plain double loops; gradients against central differences
// with the routing held fixed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/kernel_support.h"

namespace pleat::kernels::testing {
namespace {

using program::AttrSet;
using program::KernelKind;
using program::Phase;
using tensor::Dtype;

struct Routing {
  int experts = 8, top_k = 2, score = 0, pre_softmax = 0, renormalize = 0;
  double scale = 1;
  int groups = 0, group_topk = 0, sinkhorn = 0, training = 1;

  AttrSet attrs() const {
    const auto n = [](int i) { return static_cast<double>(i); };
    return {{"experts", n(experts)},
            {"group_topk", n(group_topk)},
            {"group_score_topk", group_topk > 0 ? n(std::max(1, top_k / group_topk)) : 0.0},
            {"renormalize_single", 0.0},
            {"groups", n(groups)},
            {"pre_softmax", n(pre_softmax)},
            {"renormalize", n(renormalize)},
            {"scale", scale},
            {"score", n(score)},
            {"sinkhorn", n(sinkhorn)},
            {"top_k", n(top_k)},
            {"training", n(training)}};
  }
};

struct Routed {
  Tensor idx, probs, load, stats, scratch;
};

Routed poisoned(const Routing& s, Dtype r, int64_t tokens) {
  return {Tensor::nan(Dtype::I32, {tokens, s.top_k}), Tensor::nan(r, {tokens, s.top_k}),
          Tensor::nan(Dtype::I64, {s.experts}), Tensor::nan(Dtype::F64, {4}),
          Tensor::nan(r, {tokens, s.experts})};
}

Routed choose(const Routing& s, Tensor& logits, Tensor* bias, Tensor& valid, Tensor* given = nullptr,
              int threads = 2) {
  Routed out = poisoned(s, logits.dtype, logits.shape[0]);
  call(KernelKind::router_choose, Phase::Forward,
       {in(logits), bias ? in(*bias) : none(), in(valid), given ? in(*given) : none(), testing::out(out.idx),
        testing::out(out.probs), testing::out(out.load), testing::out(out.stats),
        s.sinkhorn ? testing::out(out.scratch) : none()},
       s.attrs(), threads);
  return out;
}

Tensor all_valid(int64_t tokens) { return Tensor::of(Dtype::U8, {tokens}, std::vector<double>(tokens, 1.0)); }

double point(int score, double x) {
  return score == 1 ? 1 / (1 + std::exp(-x)) : std::sqrt(std::log1p(std::exp(x)));
}

// The specification in words: sort all experts, keep groups by the sum of their best, weigh by unbiased
// scores.
struct Plain {
  std::vector<int> idx;
  std::vector<double> probs;
};
Plain plain(const Routing& s, std::vector<double> l, const std::vector<double>& bias) {
  const int E = s.experts, k = s.top_k;
  std::vector<double> all(E), key(E);
  double sum = 0;
  for (int e = 0; e < E; ++e) sum += std::exp(l[e]);
  for (int e = 0; e < E; ++e) {
    all[e] = s.score == 0 ? std::exp(l[e]) / sum : point(s.score, l[e]);
    key[e] = (s.score == 0 && !s.pre_softmax ? l[e] : all[e]) + bias[e];
  }
  std::vector<int> open;
  if (s.groups) {
    const int size = E / s.groups;
    std::vector<std::pair<double, int>> groups;
    for (int g = 0; g < s.groups; ++g) {
      std::vector<double> inside(key.begin() + g * size, key.begin() + (g + 1) * size);
      std::sort(inside.rbegin(), inside.rend());
      groups.push_back({-std::accumulate(inside.begin(), inside.begin() + k / s.group_topk, 0.0), g});
    }
    std::sort(groups.begin(), groups.end());
    for (int i = 0; i < s.group_topk; ++i)
      for (int j = 0; j < size; ++j) open.push_back(groups[i].second * size + j);
  } else {
    for (int e = 0; e < E; ++e) open.push_back(e);
  }
  std::sort(open.begin(), open.end(),
            [&](int a, int b) { return key[a] != key[b] ? key[a] > key[b] : a < b; });
  Plain out{{open.begin(), open.begin() + k}, {}};
  std::sort(out.idx.begin(), out.idx.end());
  double chosen = 0;
  for (int e : out.idx) chosen += s.score == 0 && !s.pre_softmax ? std::exp(l[e]) : all[e];
  for (int e : out.idx) {
    double p = s.score == 0 && !s.pre_softmax ? std::exp(l[e]) / chosen : all[e];
    if (s.renormalize && k > 1 && (s.score != 0 || s.pre_softmax)) p /= chosen;
    out.probs.push_back(p * s.scale);
  }
  return out;
}

std::vector<Routing> variants() {
  std::vector<Routing> out;
  out.push_back({});                                                        // softmax after
  out.push_back({.experts = 13, .top_k = 5, .scale = 1.5});                 // odd
  out.push_back({.pre_softmax = 1, .scale = 16});                           // DeepSeek-V2
  out.push_back({.top_k = 1, .pre_softmax = 1});                            // Switch
  out.push_back({.top_k = 3, .pre_softmax = 1, .renormalize = 1});          // HF norm_topk_prob
  out.push_back({.top_k = 3, .score = 1, .scale = 2.5});                    // sigmoid
  out.push_back({.top_k = 3, .score = 1, .renormalize = 1, .scale = 2.5});  // Kimi-K2
  out.push_back({.top_k = 1, .score = 1, .renormalize = 1});                // k = 1: score itself
  out.push_back({.top_k = 4, .score = 2, .renormalize = 1});                // sqrtsoftplus
  out.push_back({.top_k = 2, .score = 2});
  out.push_back(
      {.experts = 32, .top_k = 8, .score = 1, .renormalize = 1, .scale = 2.5, .groups = 8, .group_topk = 4});
  out.push_back({.experts = 12, .top_k = 4, .pre_softmax = 1, .groups = 4, .group_topk = 2});
  out.push_back({.experts = 12, .top_k = 3, .groups = 3, .group_topk = 2});  // 3 / 2 = 1 per group
  out.push_back({.experts = 150, .top_k = 6});                               // long rows
  out.push_back({.experts = 65, .top_k = 3, .score = 1, .renormalize = 1});
  out.push_back({.experts = 64, .top_k = 64, .pre_softmax = 1});  // everyone
  return out;
}

TEST(RouterChoose, AgreesWithSortingEveryVariant) {
  uint64_t seed = 1;
  for (const Routing& s : variants()) {
    const int64_t T = 133, E = s.experts, k = s.top_k;
    Tensor logits = Tensor::normal(Dtype::F64, {T, E}, ++seed, 2), valid = all_valid(T);
    Tensor bias = Tensor::normal(Dtype::F32, {E}, ++seed, 0.3);
    for (int64_t t = 0; t < T; t += 7) valid.set(t, 0);
    const bool biased = s.score != 0;
    Routed got = choose(s, logits, biased ? &bias : nullptr, valid);
    std::vector<double> load(E, 0.0), no_bias(E, 0.0);
    double largest = 0, squares = 0, number = 0;
    for (int64_t t = 0; t < T; ++t) {
      std::vector<double> row(E);
      for (int64_t e = 0; e < E; ++e) row[e] = logits.at(t * E + e);
      const Plain want = plain(s, row, biased ? bias.numbers() : no_bias);
      for (int64_t i = 0; i < k; ++i) {
        ASSERT_EQ(got.idx.at(t * k + i), want.idx[i]) << "token " << t;
        ASSERT_NEAR(got.probs.at(t * k + i), want.probs[i], 1e-13);
      }
      if (!valid.at(t)) continue;
      for (int e : want.idx) ++load[e];
      for (double x : row) largest = std::max(largest, std::abs(x)), squares += x * x, ++number;
    }
    EXPECT_EQ(got.load.numbers(), load);
    EXPECT_EQ(got.stats.at(0), largest);
    EXPECT_NEAR(got.stats.at(1), squares, 1e-9 * squares);
    EXPECT_EQ(got.stats.at(2), number);
    EXPECT_EQ(got.stats.at(3), 0);
  }
}

TEST(RouterChoose, GradientOfEveryVariant) {
  uint64_t seed = 100;
  std::vector<Routing> all = variants();
  all.push_back({.top_k = 1, .sinkhorn = 1});
  all.push_back({.top_k = 3, .scale = 2, .sinkhorn = 1});
  for (const Routing& s : all) {
    const int64_t T = 5, E = s.experts, k = s.top_k;
    Tensor logits = Tensor::normal(Dtype::F64, {T, E}, ++seed), valid = all_valid(T);
    Tensor dprobs = Tensor::normal(Dtype::F64, {T, k}, ++seed);
    Routed first = choose(s, logits, nullptr, valid);
    const auto loss = [&] { return dot(choose(s, logits, nullptr, valid, &first.idx).probs, dprobs); };
    const auto numeric = numeric_gradient(logits, loss);
    Tensor dlogits = Tensor::nan(Dtype::F64, {T, E});
    call(KernelKind::router_choose, Phase::BackwardInput,
         {in(dprobs), in(logits), in(first.idx), out(dlogits)}, s.attrs());
    EXPECT_LE(norm_error(dlogits.numbers(), numeric), 1e-6)
        << "score " << s.score << " pre " << s.pre_softmax;
    Tensor twice = dlogits;
    call(KernelKind::router_choose, Phase::BackwardInput, {in(dprobs), in(logits), in(first.idx), add(twice)},
         s.attrs());
    for (int64_t i = 0; i < T * E; ++i) EXPECT_NEAR(twice.at(i), 2 * dlogits.at(i), 1e-14);
  }
}

TEST(RouterChoose, TiesGoToTheLowerExpert) {
  for (const Routing s : {Routing{.experts = 6, .top_k = 3}, Routing{.experts = 6, .top_k = 3, .score = 1},
                          Routing{.experts = 6, .top_k = 2, .score = 1, .groups = 3, .group_topk = 1}}) {
    Tensor logits = Tensor::zeros(Dtype::F32, {2, 6}), valid = all_valid(2);
    logits.set(6 + 5, 1.0);
    Routed got = choose(s, logits, nullptr, valid);
    for (int i = 0; i < s.top_k; ++i) EXPECT_EQ(got.idx.at(i), i);
    EXPECT_EQ(got.idx.at(2 * s.top_k - 1), 5);
    EXPECT_EQ(got.idx.at(s.top_k), s.groups ? 4 : 0);
  }
}

TEST(RouterChoose, ReplayTakesIndicesAndMakesProbabilitiesAnew) {
  const Routing s{.experts = 4, .top_k = 2};
  Tensor logits = Tensor::of(Dtype::F64, {1, 4}, {3, 2, 1, 0}), valid = all_valid(1);
  Tensor given = Tensor::of(Dtype::I32, {1, 2}, {1, 3});
  Routed got = choose(s, logits, nullptr, valid, &given);
  EXPECT_EQ(got.idx, given);
  EXPECT_NEAR(got.probs.at(0), std::exp(2) / (std::exp(2) + 1), 1e-15);
  EXPECT_EQ(got.load.numbers(), (std::vector<double>{0, 1, 0, 1}));
  for (std::vector<double> bad : {std::vector<double>{1, 4}, {-1, 2}, {2, 2}, {3, 1}}) {
    given = Tensor::of(Dtype::I32, {1, 2}, bad);
    try {
      choose(s, logits, nullptr, valid, &given);
      ADD_FAILURE() << "accepted";
    } catch (const base::Error& e) {
      EXPECT_NE(std::string(e.what()).find("stored routing of token 0"), std::string::npos) << e.what();
    }
  }
}

TEST(RouterChoose, NanLogitsStayInRangeAndAreCarriedOn) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (Routing s : variants()) {
    const int64_t T = 3, E = s.experts, k = s.top_k;
    Tensor logits = Tensor::normal(Dtype::F32, {T, E}, 5), valid = all_valid(T);
    for (int64_t e = 0; e < E; ++e) logits.set(e, nan);
    logits.set(E + 1, nan);
    Routed got = choose(s, logits, nullptr, valid);
    for (int64_t t = 0; t < T; ++t)
      for (int64_t i = 0; i < k; ++i) {
        EXPECT_GE(got.idx.at(t * k + i), i ? got.idx.at(t * k + i - 1) + 1 : 0);
        EXPECT_LT(got.idx.at(t * k + i), E);
      }
    EXPECT_TRUE(std::isnan(got.probs.at(0)));
    EXPECT_TRUE(std::isnan(got.stats.at(1)));
    Routed again = choose(s, logits, nullptr, valid);
    EXPECT_EQ(got.idx, again.idx);
  }
}

TEST(RouterChoose, CountersAccumulate) {
  const Routing s{.experts = 4, .top_k = 2};
  Tensor a = Tensor::normal(Dtype::F64, {9, 4}, 1), b = Tensor::normal(Dtype::F64, {9, 4}, 2, 5),
         valid = all_valid(9);
  Routed first = choose(s, a, nullptr, valid), second = choose(s, b, nullptr, valid),
         both = poisoned(s, Dtype::F64, 9);
  both.load = first.load;
  both.stats = first.stats;
  call(KernelKind::router_choose, Phase::Forward,
       {in(b), none(), in(valid), none(), out(both.idx), out(both.probs), add(both.load), add(both.stats),
        none()},
       s.attrs());
  for (int e = 0; e < 4; ++e) EXPECT_EQ(both.load.at(e), first.load.at(e) + second.load.at(e));
  EXPECT_EQ(both.stats.at(0), std::max(first.stats.at(0), second.stats.at(0)));
  EXPECT_DOUBLE_EQ(both.stats.at(1), first.stats.at(1) + second.stats.at(1));
  EXPECT_EQ(both.stats.at(2), 72);
}

TEST(RouterChoose, SinkhornFollowsTheFixedPoint) {
  for (int k : {1, 2}) {
    const int64_t T = 37, E = 5;
    const Routing s{.experts = static_cast<int>(E), .top_k = k, .sinkhorn = 1};
    Tensor logits = Tensor::normal(Dtype::F64, {T, E}, 9), valid = all_valid(T);
    for (int64_t t = 0; t < T; ++t) logits.set(t * E, logits.at(t * E) + 2);  // everyone likes expert 0
    valid.set(3, 0);
    Routed got = choose(s, logits, nullptr, valid);
    std::vector<double> d0(T), d1(E, 1.0), old;
    double error = 1e9;
    while (error > 1e-4) {
      old = d1;
      for (int64_t t = 0; t < T; ++t) {
        double sum = 0;
        for (int64_t e = 0; e < E; ++e) sum += d1[e] * std::exp(logits.at(t * E + e));
        d0[t] = 1 / ((T - 1) * (sum + 1e-8));
      }
      error = 0;
      for (int64_t e = 0; e < E; ++e) {
        double sum = 0;
        for (int64_t t = 0; t < T; ++t) sum += t == 3 ? 0 : d0[t] * std::exp(logits.at(t * E + e));
        d1[e] = 1 / (E * (sum + 1e-8));
        error += std::abs(d1[e] - old[e]) / E;
      }
    }
    for (int64_t t = 0; t < T; ++t) {
      std::vector<double> key(E), row(E);
      double all = 0;
      for (int64_t e = 0; e < E; ++e) {
        row[e] = logits.at(t * E + e);
        key[e] = d1[e] * std::exp(row[e]) * d0[t];
        all += std::exp(row[e]);
        EXPECT_NEAR(got.scratch.at(t * E + e), key[e], 1e-12 * key[e]);
      }
      const Plain want =
          plain({.experts = static_cast<int>(E), .top_k = k}, key, std::vector<double>(E, 0.0));
      for (int i = 0; i < k; ++i) {
        EXPECT_EQ(got.idx.at(t * k + i), want.idx[i]);
        const double p = k == 1 ? point(1, row[want.idx[i]]) : std::exp(row[want.idx[i]]) / all;
        EXPECT_NEAR(got.probs.at(t * k + i), p, 1e-13);
      }
    }
    EXPECT_LT(got.load.at(0), 0.5 * T * k);
    Routing eval = s;
    eval.training = 0;
    Routed by_activation = choose(eval, logits, nullptr, valid);
    EXPECT_GT(by_activation.load.at(0), 0.7 * T);
    // Padding never changes what valid tokens choose.
    for (int64_t e = 0; e < E; ++e) logits.set(3 * E + e, 9.0 * static_cast<double>(e));
    Routed padded = choose(s, logits, nullptr, valid);
    EXPECT_EQ(padded.load, got.load);
  }
}

TEST(RouterChoose, FloatIsCloseToDouble) {
  for (const Routing& s : variants()) {
    const int64_t T = 50, E = s.experts;
    Tensor wide = Tensor::normal(Dtype::F64, {T, E}, 3), valid = all_valid(T);
    Tensor narrow = Tensor::of(Dtype::F32, {T, E}, wide.numbers());
    wide = Tensor::of(Dtype::F64, {T, E}, narrow.numbers());
    Routed want = choose(s, wide, nullptr, valid), got = choose(s, narrow, nullptr, valid, &want.idx);
    const double bound = s.scale * 16 * std::numeric_limits<float>::epsilon();
    for (int64_t i = 0; i < want.probs.size(); ++i) EXPECT_NEAR(got.probs.at(i), want.probs.at(i), bound);
  }
}

TEST(RouterChoose, BitsDoNotDependOnThreads) {
  std::vector<Routing> all = variants();
  all.push_back({.experts = 16, .top_k = 2, .sinkhorn = 1});
  for (const Routing& s : all) {
    const int64_t T = 700, E = s.experts, k = s.top_k;
    Tensor logits = Tensor::normal(Dtype::F32, {T, E}, 3), valid = all_valid(T),
           dprobs = Tensor::normal(Dtype::F32, {T, k}, 4);
    Routed one = choose(s, logits, nullptr, valid, nullptr, 1);
    Tensor d_one = Tensor::nan(Dtype::F32, {T, E});
    call(KernelKind::router_choose, Phase::BackwardInput, {in(dprobs), in(logits), in(one.idx), out(d_one)},
         s.attrs(), 1);
    for (int threads : {2, 4}) {
      Routed more = choose(s, logits, nullptr, valid, nullptr, threads);
      EXPECT_TRUE(one.idx == more.idx && one.probs == more.probs && one.load == more.load &&
                  one.stats == more.stats);
      Tensor d = Tensor::nan(Dtype::F32, {T, E});
      call(KernelKind::router_choose, Phase::BackwardInput, {in(dprobs), in(logits), in(one.idx), out(d)},
           s.attrs(), threads);
      EXPECT_EQ(d, d_one);
    }
  }
}

std::string refusal(const Routing& s, bool with_bias, int64_t width) {
  Tensor logits = Tensor::zeros(Dtype::F32, {2, width}), bias = Tensor::zeros(Dtype::F32, {s.experts}),
         valid = all_valid(2);
  try {
    choose(s, logits, with_bias ? &bias : nullptr, valid);
  } catch (const base::Error& e) {
    return e.what();
  }
  return "accepted";
}

TEST(RouterChoose, RefusesWhatDoesNotFit) {
  EXPECT_EQ(refusal({}, false, 8), "accepted");
  EXPECT_EQ(refusal({}, false, 7), "[router_choose] argument 'logits' is [2, 7], needed [2, 8]");
  EXPECT_NE(refusal({}, true, 8).find("expert bias needs score 1 or 2"), std::string::npos);
  EXPECT_NE(refusal({.top_k = 9}, false, 8).find("top_k is 9, needed 1 to 8"), std::string::npos);
  EXPECT_NE(refusal({.score = 3}, false, 8).find("score is 3"), std::string::npos);
  EXPECT_NE(refusal({.score = 1, .pre_softmax = 1}, false, 8).find("pre_softmax needs score 0"),
            std::string::npos);
  EXPECT_NE(refusal({.groups = 3, .group_topk = 1}, false, 8).find("do not divide into 3 groups"),
            std::string::npos);
  EXPECT_NE(refusal({.top_k = 3, .groups = 4, .group_topk = 1}, false, 8)
                .find("cannot choose 3 experts from 1 of 4"),
            std::string::npos);
  EXPECT_NE(refusal({.groups = 4}, false, 8).find("both be 0 or both positive"), std::string::npos);
  EXPECT_NE(refusal({.score = 1, .sinkhorn = 1}, false, 8).find("Sinkhorn needs score 0"), std::string::npos);
}

}  // namespace
}  // namespace pleat::kernels::testing
