// Auxiliary losses: published golden values, finite differences, splits of a batch, padding, and the counters
// behind them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/kernel_support.h"

namespace pleat::kernels::testing {
namespace {

using program::AttrSet;
using program::KernelKind;
using program::Phase;
using tensor::Dtype;

struct Aux {
  int experts = 4, top_k = 2, score = 0;
  double micro = 0, seq = 0, global = 0, z = 0;
  int hf = 0, num_layers = 1;

  AttrSet attrs() const {
    return {{"experts", 1.0 * experts}, {"global_coef", global},          {"hf", 1.0 * hf},
            {"micro_coef", micro},      {"num_layers", 1.0 * num_layers}, {"score", 1.0 * score},
            {"seq_coef", seq},          {"top_k", 1.0 * top_k},           {"z_coef", z}};
  }
};

struct Batch {
  Tensor logits, valid, doc_start, norm;
};

Batch batch_of(Dtype dtype, int64_t tokens, int64_t experts, const std::vector<double>& numbers) {
  return {Tensor::of(dtype, {tokens, experts}, numbers),
          Tensor::of(Dtype::U8, {tokens}, std::vector<double>(tokens, 1.0)),
          Tensor::zeros(Dtype::I32, {tokens}), Tensor::of(Dtype::F64, {4}, {1e9, 1, 1, 1.0 / tokens})};
}

struct Result {
  Tensor dlogits, losses;
};

Result run(const Aux& aux, Batch& b, Tensor* counts = nullptr, Tensor* tokens = nullptr, int threads = 2) {
  Result r{Tensor::nan(b.logits.dtype, b.logits.shape), Tensor::nan(Dtype::F64, {4})};
  call(KernelKind::router_aux, Phase::BackwardInput,
       {in(b.logits), in(b.valid), in(b.doc_start), in(b.norm), counts ? in(*counts) : none(),
        tokens ? in(*tokens) : none(), out(r.dlogits), out(r.losses)},
       aux.attrs(), threads);
  return r;
}

double norm_of(const Tensor& t) { return std::sqrt(dot(t, t)); }

const std::vector<double> kGolden = {2, 1, 0, -1, 1.5, 0.5, -0.5, 0, 0, 2, 1, -2, 1, 0.9, -1, 0.3};

TEST(AuxLoss, GoldenValues) {
  Batch b = batch_of(Dtype::F64, 4, 4, kGolden);
  const Result micro = run({.micro = 1}, b);
  EXPECT_NEAR(micro.losses.at(0), 1.4294069721, 1e-9);
  EXPECT_NEAR(norm_of(micro.dlogits), 0.1513995485, 1e-9);
  EXPECT_NEAR(micro.dlogits.at(2 * 4 + 1), 0.0708534118, 1e-9);  // row 3, expert 2, counted from one
  for (int i : {1, 2, 3}) EXPECT_EQ(micro.losses.at(i), 0);

  Tensor counts = Tensor::nan(Dtype::I64, {4}), tokens = Tensor::nan(Dtype::I64, {1});
  call(KernelKind::router_count, Phase::Forward, {in(b.logits), in(b.valid), out(counts), out(tokens)},
       {{"experts", 4}, {"top_k", 2}});
  EXPECT_EQ(counts.numbers(), (std::vector<double>{3, 4, 1, 0}));
  EXPECT_EQ(tokens.at(0), 4);
  const Result hf = run({.micro = 1, .hf = 1}, b, &counts, &tokens);
  EXPECT_NEAR(hf.losses.at(0), 2.8588139443, 1e-9);

  b.doc_start = Tensor::of(Dtype::I32, {4}, {0, 0, 2, 2});
  b.norm.set(2, 0.5);
  EXPECT_NEAR(run({.seq = 1}, b).losses.at(1), 1.5381089491, 1e-9);
  b.norm.set(2, 1);
  b.valid = Tensor::of(Dtype::U8, {4}, {1, 1, 0, 0});
  EXPECT_NEAR(run({.seq = 1}, b).losses.at(1), 1.6731529122, 1e-9);
  b.valid = Tensor::of(Dtype::U8, {4}, {0, 0, 1, 1});
  EXPECT_NEAR(run({.seq = 1}, b).losses.at(1), 1.4030649860, 1e-9);
  b.valid = Tensor::of(Dtype::U8, {4}, {1, 1, 1, 1});
  EXPECT_NEAR(run({.z = 1}, b).losses.at(3), 4.9310051856, 1e-9);

  Batch one = batch_of(Dtype::F64, 3, 4, {2, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0});
  EXPECT_NEAR(run({.top_k = 1, .micro = 1}, one).losses.at(0), 2.8449383769, 1e-9);
}

TEST(AuxLoss, GlobalTypeDoesNotDependOnTheSplit) {
  // Two tokens repeated: every microbatch has the same expert shares.
  const auto total = [](const std::vector<int>& split) {
    Tensor counts = Tensor::zeros(Dtype::I64, {4}), tokens = Tensor::zeros(Dtype::I64, {1}),
           losses = Tensor::zeros(Dtype::F64, {4});
    std::vector<double> gradient;
    for (int size : split) {
      std::vector<double> numbers;
      for (int t = 0; t < size; ++t)
        numbers.insert(numbers.end(), kGolden.begin() + 8 * (t % 2), kGolden.begin() + 8 * (t % 2) + 4);
      Batch b = batch_of(Dtype::F64, size, 4, numbers);
      b.norm.set(3, 1.0 / 12);
      call(KernelKind::router_count, Phase::Forward, {in(b.logits), in(b.valid), add(counts), add(tokens)},
           {{"experts", 4}, {"top_k", 2}});
      Tensor dlogits = Tensor::nan(Dtype::F64, {size, 4});
      call(KernelKind::router_aux, Phase::BackwardInput,
           {in(b.logits), in(b.valid), in(b.doc_start), in(b.norm), in(counts), in(tokens), out(dlogits),
            add(losses)},
           Aux{.global = 1}.attrs());
      const auto part = dlogits.numbers();
      gradient.insert(gradient.end(), part.begin(), part.end());
    }
    gradient.push_back(losses.at(2));
    return gradient;
  };
  const auto even = total({4, 4, 4}), uneven = total({6, 2, 4}), whole = total({12});
  for (size_t i = 0; i < even.size(); ++i) {
    EXPECT_NEAR(even[i], uneven[i], 1e-9);
    EXPECT_NEAR(even[i], whole[i], 1e-9);
  }
  EXPECT_GT(even.back(), 1);
}

TEST(AuxLoss, GradientAndValueOfEveryScoreAndType) {
  for (int score : {0, 1, 2})
    for (int kind = 0; kind < 5; ++kind) {
      const int64_t T = 45, E = 5;
      Aux aux{.experts = static_cast<int>(E), .top_k = 2, .score = score};
      (kind == 0 || kind == 4 ? aux.micro : kind == 1 ? aux.seq : kind == 2 ? aux.global : aux.z) = 0.7;
      if (kind == 4) aux.hf = 1, aux.num_layers = 3;
      Batch b = batch_of(Dtype::F64, T, E, Tensor::normal(Dtype::F64, {T, E}, 10 + score, 1.3).numbers());
      const std::vector<int64_t> starts = {0, 1, 7, 20, 21, 40};
      for (int64_t t = 0, d = 0; t < T; ++t) {
        if (d + 1 < static_cast<int64_t>(starts.size()) && t >= starts[d + 1]) ++d;
        b.doc_start.set(t, starts[d]);
      }
      for (int64_t t : {0, 5, 19, 20, 33}) b.valid.set(t, 0);
      const double num_valid = 40;
      b.norm = Tensor::of(Dtype::F64, {4}, {1e9, 0.25, 0.125, 0.01});
      Tensor counts = Tensor::of(Dtype::I64, {E}, {50, 30, 80, 10, 70});
      Tensor tokens = Tensor::of(Dtype::I64, {1}, {kind == 4 ? 3 * num_valid : 120});

      const auto top2 = [&](int64_t t) {
        std::vector<int> order(E);
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(),
                         [&](int x, int y) { return b.logits.at(t * E + x) > b.logits.at(t * E + y); });
        return std::vector<int>{order[0], order[1]};
      };
      std::vector<double> own(E, 0.0);
      std::vector<std::vector<double>> per_doc(T, std::vector<double>(E, 0.0));
      std::vector<double> doc_tokens(T, 0.0);
      for (int64_t t = 0; t < T; ++t)
        if (b.valid.at(t)) {
          const int d = static_cast<int>(b.doc_start.at(t));
          ++doc_tokens[d];
          for (int e : top2(t)) ++own[e], ++per_doc[d][e];
        }
      const auto value = [&] {
        double total = 0;
        for (int64_t t = 0; t < T; ++t) {
          if (!b.valid.at(t)) continue;
          const int d = static_cast<int>(b.doc_start.at(t));
          std::vector<double> s(E);
          double sum = 0, lse = 0;
          for (int64_t e = 0; e < E; ++e) {
            const double l = b.logits.at(t * E + e);
            s[e] = score == 0   ? std::exp(l)
                   : score == 1 ? 1 / (1 + std::exp(-l))
                                : std::sqrt(std::log1p(std::exp(l)));
            sum += s[e];
            lse += std::exp(l);
          }
          for (int64_t e = 0; e < E; ++e) {
            const double q = s[e] / sum;
            if (kind == 0) total += 0.25 * E / (2 * num_valid * num_valid) * own[e] * q;
            if (kind == 1) total += 0.125 * E / (2 * doc_tokens[d] * doc_tokens[d]) * per_doc[d][e] * q;
            if (kind == 2) total += 0.01 * E * counts.at(e) / (2 * 120.0) * q;
            if (kind == 4) total += 0.25 * E * (counts.at(e) / 120.0) * q / 120.0;
          }
          if (kind == 3) total += 0.01 * std::log(lse) * std::log(lse);
        }
        return total;
      };
      const Result got = run(aux, b, &counts, &tokens);
      const int slot = kind == 4 ? 0 : kind;
      EXPECT_NEAR(got.losses.at(slot), value(), 1e-12 * value());
      // The step keeps every choice: counts stay what they are.
      const auto numeric = numeric_gradient(
          b.logits, [&] { return 0.7 * value(); }, 1e-5);
      EXPECT_LE(norm_error(got.dlogits.numbers(), numeric), 1e-6) << "score " << score << " kind " << kind;
      for (int64_t t : {0, 5, 19, 20, 33})
        for (int64_t e = 0; e < E; ++e) EXPECT_EQ(got.dlogits.at(t * E + e), 0.0);
    }
}

TEST(AuxLoss, SeveralAtOnceAddUpAndAccumulate) {
  const int64_t T = 200, E = 6;
  Batch b = batch_of(Dtype::F64, T, E, Tensor::normal(Dtype::F64, {T, E}, 3).numbers());
  for (int64_t t = 0; t < T; ++t) b.doc_start.set(t, t < 90 ? 0 : 90);
  Tensor counts = Tensor::of(Dtype::I64, {E}, {1, 2, 3, 4, 5, 6}), tokens = Tensor::of(Dtype::I64, {1}, {99});
  const Aux all{.experts = 6, .micro = 0.1, .seq = 0.2, .global = 0.3, .z = 0.4};
  const Result together = run(all, b, &counts, &tokens);
  Tensor sum = Tensor::zeros(Dtype::F64, {T, E}), losses = Tensor::zeros(Dtype::F64, {4});
  for (Aux one : {Aux{.experts = 6, .micro = 0.1}, Aux{.experts = 6, .seq = 0.2},
                  Aux{.experts = 6, .global = 0.3}, Aux{.experts = 6, .z = 0.4}})
    call(KernelKind::router_aux, Phase::BackwardInput,
         {in(b.logits), in(b.valid), in(b.doc_start), in(b.norm), in(counts), in(tokens), add(sum),
          add(losses)},
         one.attrs());
  EXPECT_LE(norm_error(sum.numbers(), together.dlogits.numbers()), 1e-13);
  EXPECT_LE(norm_error(losses.numbers(), together.losses.numbers()), 1e-13);
}

TEST(AuxLoss, ZeroCoefficientsDoNothing) {
  Batch b = batch_of(Dtype::F64, 4, 4, kGolden);
  Result r = run({}, b);
  for (double v : r.dlogits.numbers()) EXPECT_EQ(v, 0.0);
  for (double v : r.losses.numbers()) EXPECT_EQ(v, 0.0);
  Tensor keep = Tensor::normal(Dtype::F64, {4, 4}, 1), dlogits = keep;
  call(KernelKind::router_aux, Phase::BackwardInput,
       {in(b.logits), in(b.valid), in(b.doc_start), in(b.norm), none(), none(), add(dlogits), add(r.losses)},
       Aux{}.attrs());
  EXPECT_EQ(dlogits, keep);
}

TEST(AuxLoss, NothingValidIsZeroNotNan) {
  Batch b = batch_of(Dtype::F32, 4, 4, kGolden);
  b.valid = Tensor::zeros(Dtype::U8, {4});
  Tensor counts = Tensor::zeros(Dtype::I64, {4}), tokens = Tensor::zeros(Dtype::I64, {1});
  const Result r = run({.micro = 1, .seq = 1, .global = 1, .z = 1}, b, &counts, &tokens);
  for (double v : r.dlogits.numbers()) EXPECT_EQ(v, 0.0);
  for (double v : r.losses.numbers()) EXPECT_EQ(v, 0.0);
}

TEST(AuxLoss, DocumentsAcrossTilesEqualDocumentsAlone) {
  // Lengths around the tile size, documents of one token, one spanning many tiles.
  const int64_t T = 1500;
  for (uint64_t trial = 0; trial < 12; ++trial) {
    const int64_t E = trial < 9 ? 3 : 70;
    Batch b = batch_of(Dtype::F64, T, E, Tensor::normal(Dtype::F64, {T, E}, trial).numbers());
    const base::RandomStream stream(trial, base::RandomUse::Test, 0, 1);
    for (int64_t t = 0; t < T; ++t) b.valid.set(t, stream.uniform(static_cast<uint64_t>(t)) < 0.9);
    std::vector<int64_t> starts = {0};
    for (uint64_t i = 0; starts.back() < T; ++i) {
      const double u = stream.uniform(100000 + i);
      starts.push_back(starts.back() + 1 +
                       static_cast<int64_t>(u * u *
                                            (trial % 3 == 0   ? 5
                                             : trial % 3 == 1 ? 60
                                                              : 900)));
    }
    double want = 0;
    std::vector<double> gradient;
    for (size_t d = 0; d + 1 < starts.size(); ++d) {
      const int64_t first = starts[d], last = std::min(T, starts[d + 1]);
      const auto numbers = b.logits.numbers();
      Batch alone =
          batch_of(Dtype::F64, last - first, E, {numbers.begin() + first * E, numbers.begin() + last * E});
      for (int64_t t = first; t < last; ++t)
        b.doc_start.set(t, first), alone.valid.set(t - first, b.valid.at(t));
      const Result r = run({.experts = static_cast<int>(E), .micro = 1}, alone);
      want += r.losses.at(0);
      const auto part = r.dlogits.numbers();
      gradient.insert(gradient.end(), part.begin(), part.end());
    }
    const Result packed = run({.experts = static_cast<int>(E), .seq = 1}, b);
    EXPECT_NEAR(packed.losses.at(1), want, 1e-11 * want);
    EXPECT_LE(norm_error(packed.dlogits.numbers(), gradient), 1e-12);
  }
}

TEST(AuxLoss, FloatIsCloseAndBitsDoNotDependOnThreads) {
  const int64_t T = 600, E = 16;
  Batch b = batch_of(Dtype::F32, T, E, Tensor::normal(Dtype::F32, {T, E}, 3).numbers());
  for (int64_t t = 0; t < T; ++t) b.doc_start.set(t, t / 77 * 77);
  Batch wide = b;
  wide.logits = Tensor::of(Dtype::F64, {T, E}, b.logits.numbers());
  for (int score : {0, 1, 2}) {
    const Aux aux{.experts = 16, .top_k = 4, .score = score, .micro = 1, .seq = 1, .z = 1};
    const Result one = run(aux, b, nullptr, nullptr, 1), exact = run(aux, wide);
    EXPECT_LE(norm_error(one.dlogits.numbers(), exact.dlogits.numbers()), 64 * 1.2e-7);
    EXPECT_LE(norm_error(one.losses.numbers(), exact.losses.numbers()), 64 * 1.2e-7);
    for (int threads : {2, 4}) {
      const Result more = run(aux, b, nullptr, nullptr, threads);
      EXPECT_TRUE(one.dlogits == more.dlogits && one.losses == more.losses);
    }
  }
}

TEST(RouterCount, IgnoresPaddingAndAddsAcrossMicrobatches) {
  const int64_t T = 1000, E = 7;
  Tensor logits = Tensor::normal(Dtype::F32, {T, E}, 1), valid = Tensor::zeros(Dtype::U8, {T});
  for (int64_t t = 0; t < T; ++t) valid.set(t, t % 3 != 0);
  Tensor first, counts = Tensor::nan(Dtype::I64, {E}), tokens = Tensor::nan(Dtype::I64, {1});
  for (int threads : {1, 2, 4}) {
    call(KernelKind::router_count, Phase::Forward, {in(logits), in(valid), out(counts), out(tokens)},
         {{"experts", 7}, {"top_k", 3}}, threads);
    if (threads == 1) first = counts;
    EXPECT_EQ(counts, first);
  }
  EXPECT_EQ(tokens.at(0), 666);
  double sum = 0;
  for (double c : counts.numbers()) sum += c;
  EXPECT_EQ(sum, 3 * 666);
  for (int64_t t = 0; t < T; t += 3)
    for (int64_t e = 0; e < E; ++e) logits.set(t * E + e, 50.0 * (e == 6));
  call(KernelKind::router_count, Phase::Forward, {in(logits), in(valid), add(counts), add(tokens)},
       {{"experts", 7}, {"top_k", 3}});
  for (int64_t e = 0; e < E; ++e) EXPECT_EQ(counts.at(e), 2 * first.at(e));
  EXPECT_EQ(tokens.at(0), 2 * 666);
}

TEST(AuxLoss, RefusesWhatDoesNotFit) {
  Batch b = batch_of(Dtype::F64, 4, 4, kGolden);
  Tensor counts = Tensor::zeros(Dtype::I64, {4}), tokens = Tensor::of(Dtype::I64, {1}, {5});
  const auto message = [&](const Aux& aux, bool with_counts) {
    try {
      run(aux, b, with_counts ? &counts : nullptr, with_counts ? &tokens : nullptr);
    } catch (const base::Error& e) {
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  EXPECT_NE(message({.micro = 1, .global = 1, .hf = 1}, true).find("cannot be combined"), std::string::npos);
  EXPECT_NE(message({.global = 1}, false).find("global loss needs the arguments 'counts' and 'tokens'"),
            std::string::npos);
  EXPECT_NE(message({.micro = 1, .hf = 1}, false).find("hf loss needs"), std::string::npos);
  EXPECT_NE(message({.micro = 1, .hf = 1}, true).find("counts cover 5 tokens, needed 1 layers of 4"),
            std::string::npos);
  EXPECT_EQ(message({.experts = 5}, false), "[router_aux] argument 'logits' is [4, 4], needed [4, 5]");
  EXPECT_NE(message({.score = 7}, false).find("score is 7"), std::string::npos);
}

}  // namespace
}  // namespace pleat::kernels::testing
