#include <algorithm>
#include <array>
#include <numeric>

#include "kernels/dense_support.h"

namespace pleat::kernels::testing {
namespace {

using program::KernelKind;
using program::Phase;
using tensor::Dtype;

TEST(Copy, EveryType) {
  for (Dtype dtype : {Dtype::U8, Dtype::I32, Dtype::I64, Dtype::F32, Dtype::F64}) {
    Tensor x = Tensor::nan(dtype, {50000, 3}), y = Tensor::zeros(dtype, {50000, 3});
    call(KernelKind::copy, Phase::Forward, {in(x), out(y)});
    EXPECT_TRUE(x == y);
  }
  Tensor x = Tensor::zeros(Dtype::F32, {2, 3}), y = Tensor::zeros(Dtype::F32, {2, 4}),
         z = Tensor::zeros(Dtype::I32, {2, 3});
  expect_refused(
      [&] {
        call(KernelKind::copy, Phase::Forward, {in(x), out(y)});
      },
      "[copy] argument 'y' has 4 in dimension 1, needed 3 like 'x'");
  expect_refused(
      [&] {
        call(KernelKind::copy, Phase::Forward, {in(x), out(z)});
      },
      "[copy] argument 'y' is i32, needed f32");
}

TEST(AddGrad, AddsInPlace) {
  for (Dtype dtype : {Dtype::F32, Dtype::F64}) {
    Tensor x = Tensor::normal(dtype, {70001}, 1), y = Tensor::normal(dtype, {70001}, 2);
    const Tensor before = y;
    call(KernelKind::add_grad, Phase::BackwardWeight, {in(x), add(y)});
    Tensor want = before;
    for (int64_t i = 0; i < want.size(); ++i) want.set(i, x.at(i) + before.at(i));
    EXPECT_TRUE(y == want);
    expect_refused(
        [&] {
          call(KernelKind::add_grad, Phase::BackwardWeight, {in(x), out(y)});
        },
        "changed in place");
  }
}

TEST(GradNorm, FixedBlocksInDouble) {
  for (Dtype dtype : {Dtype::F32, Dtype::F64})
    for (int64_t n : {1, 65536, 65537, 200000}) {
      Tensor g = Tensor::normal(dtype, {n}, 1);
      const int64_t blocks = (n + 65535) / 65536;
      Tensor parts = Tensor::nan(Dtype::F64, {blocks});
      call(KernelKind::grad_norm, Phase::Update, {in(g), none(), out(parts)});
      for (int64_t b = 0; b < blocks; ++b) {
        long double want = 0;
        for (int64_t i = b * 65536; i < std::min(n, (b + 1) * 65536); ++i)
          want += static_cast<long double>(g.at(i)) * g.at(i);
        EXPECT_NEAR(parts.at(b) / static_cast<double>(want), 1.0, 1e-13);
      }
    }
  Tensor g = Tensor::normal(Dtype::F32, {300000}, 1);
  expect_same_bits([&](int threads) {
    Tensor parts = Tensor::nan(Dtype::F64, {5});
    call(KernelKind::grad_norm, Phase::Update, {in(g), none(), out(parts)}, {}, threads);
    return std::vector{parts};
  });
  Tensor short_parts = Tensor::zeros(Dtype::F64, {4});
  expect_refused(
      [&] {
        call(KernelKind::grad_norm, Phase::Update, {in(g), none(), out(short_parts)});
      },
      "[grad_norm] argument 'parts' is [4], needed [5]");
}

Tensor coords_of(int64_t place) {
  Tensor coords = Tensor::nan(Dtype::I64, {program::kNumGroups});
  coords.set(5, static_cast<double>(place));
  return coords;
}

// Pieces whose borders lie inside blocks: every block's sum is that of its pieces, and what no piece touches
// is 0.
TEST(GradNorm, PiecesOfACutTensor) {
  for (Dtype dtype : {Dtype::F32, Dtype::F64})
    for (auto [n, num_pieces] : {std::pair<int64_t, int64_t>{200000, 3}, {65536 * 2, 4}, {5, 4}, {0, 2}}) {
      const int64_t shard = n == 0 ? 1 : (n + num_pieces - 1) / num_pieces, blocks = (n + 65535) / 65536;
      Tensor g = Tensor::normal(dtype, {n}, 1), want = Tensor::nan(Dtype::F64, {blocks});
      call(KernelKind::grad_norm, Phase::Update, {in(g), none(), out(want)});
      std::vector<double> sum(static_cast<size_t>(blocks));
      for (int64_t c = 0; c < num_pieces; ++c) {
        // Elements past the end of the tensor are NaN: they must not be read.
        Tensor piece = Tensor::nan(dtype, {shard}), coords = coords_of(c);
        for (int64_t i = 0; i < shard && c * shard + i < n; ++i) piece.set(i, g.at(c * shard + i));
        const program::AttrSet attrs = {
            {"elements", static_cast<double>(n)}, {"group", 5}, {"shard", static_cast<double>(shard)}};
        const auto run = [&](int threads) {
          Tensor parts = Tensor::nan(Dtype::F64, {blocks});
          call(KernelKind::grad_norm, Phase::Update, {in(piece), in(coords), out(parts)}, attrs, threads);
          return std::vector{parts};
        };
        expect_same_bits(run);
        const Tensor parts = run(2)[0];
        for (int64_t b = 0; b < blocks; ++b) {
          const bool touched =
              std::max(b * 65536, c * shard) < std::min({(b + 1) * 65536, (c + 1) * shard, n});
          EXPECT_EQ(parts.at(b) != 0, touched);
          sum[static_cast<size_t>(b)] += parts.at(b);
        }
      }
      for (int64_t b = 0; b < blocks; ++b) EXPECT_NEAR(sum[static_cast<size_t>(b)] / want.at(b), 1.0, 1e-13);
    }
  Tensor g = Tensor::zeros(Dtype::F32, {7}), coords = coords_of(0), parts = Tensor::zeros(Dtype::F64, {1});
  expect_refused(
      [&] {
        call(KernelKind::grad_norm, Phase::Update, {in(g), in(coords), out(parts)},
             {{"elements", 20}, {"group", 5}, {"shard", 8}});
      },
      "[grad_norm] argument 'g' has 7 elements, needed 8 as attribute 'shard' says");
  expect_refused(
      [&] {
        call(KernelKind::grad_norm, Phase::Update, {in(g), in(coords), out(parts)},
             {{"elements", 70000}, {"group", 5}, {"shard", 7}});
      },
      "[grad_norm] argument 'parts' is [1], needed [2]");
}

TEST(Clip, ScalesAndDecides) {
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  const auto run = [](std::vector<double> parts, std::vector<double> loss, double clip) {
    Tensor p = Tensor::of(Dtype::F64, {static_cast<int64_t>(parts.size())}, parts),
           l = Tensor::of(Dtype::F64, {2}, loss);
    Tensor scale = Tensor::nan(Dtype::F64, {2}), commit = Tensor::nan(Dtype::I32, {1});
    call(KernelKind::clip, Phase::Update, {in(p), in(l), none(), out(scale), out(commit)}, {{"clip", clip}});
    return std::vector<double>{scale.at(0), scale.at(1), commit.at(0)};
  };
  EXPECT_EQ(run({9, 16}, {1, 1}, 1.0), (std::vector<double>{5, 0.2, 1}));
  EXPECT_EQ(run({9, 16}, {1, 1}, 6.0), (std::vector<double>{5, 1, 1}));
  EXPECT_EQ(run({9, 16}, {1, 1}, 0.0), (std::vector<double>{5, 1, 1}));
  EXPECT_EQ(run({}, {1, 1}, 1.0), (std::vector<double>{0, 1, 1}));
  EXPECT_EQ(run({9, 16}, {nan, 1}, 1.0)[2], 0);
  EXPECT_EQ(run({9, 16}, {1, inf}, 1.0)[2], 0);
  EXPECT_EQ(run({9, nan}, {1, 1}, 1.0)[2], 0);
  EXPECT_EQ(run({9, inf}, {1, 1}, 1.0)[2], 0);
  expect_refused([&] { run({1}, {1, 1}, -1.0); }, "[clip] attribute 'clip' is -1, needed 0 or more");
}

const program::AttrSet kAdamw = {
    {"beta1", 0.9}, {"beta2", 0.95}, {"eps", 1e-8}, {"lr_mult", 0.5}, {"weight_decay", 0.1}};

struct AdamwRun {
  Tensor g, w, m, v, hyper = Tensor::of(Dtype::F64, {4}, {0.01, 1, 0, 0}),
                     scale = Tensor::of(Dtype::F64, {2}, {7, 0.25}),
                     commit = Tensor::of(Dtype::I32, {1}, {1});
  AdamwRun(Dtype dtype, int64_t n)
      : g(Tensor::normal(dtype, {n}, 1)),
        w(Tensor::normal(dtype, {n}, 2)),
        m(Tensor::zeros(dtype, {n})),
        v(m) {}
  void step(int number, int threads = 2, program::AttrSet attrs = kAdamw) {
    hyper.set(1, number);
    call(KernelKind::adamw, Phase::Update,
         {in(g), in(hyper), in(scale), in(commit), none(), add(w), add(m), add(v)}, attrs, threads);
  }
};

TEST(Adamw, FollowsTheFormula) {
  for (Dtype dtype : {Dtype::F32, Dtype::F64}) {
    const int64_t n = 70001;
    AdamwRun r(dtype, n);
    r.g.set(5, 0.0);
    std::vector<double> w = r.w.numbers(), m(w.size()), v(w.size());
    for (int step = 1; step <= 3; ++step) {
      r.step(step);
      for (size_t i = 0; i < w.size(); ++i) {
        const double gradient = 0.25 * r.g.at(static_cast<int64_t>(i));
        m[i] = 0.9 * m[i] + 0.1 * gradient;
        v[i] = 0.95 * v[i] + 0.05 * gradient * gradient;
        const double first = m[i] / (1 - std::pow(0.9, step)), second = v[i] / (1 - std::pow(0.95, step));
        w[i] -= 0.005 * (0.1 * w[i] + first / (std::sqrt(second) + 1e-8));
      }
    }
    const double bound = dtype == Dtype::F32 ? float_bound(1) : 1e-14;
    EXPECT_LE(norm_error(r.w.numbers(), w), bound);
    EXPECT_LE(norm_error(r.m.numbers(), m), bound);
    EXPECT_LE(norm_error(r.v.numbers(), v), bound);
    // Without any gradient the decoupled decay still acts, and nothing else.
    EXPECT_NEAR(r.w.at(5), AdamwRun(dtype, n).w.at(5) * std::pow(1 - 0.005 * 0.1, 3), 1e-6);
    EXPECT_EQ(r.m.at(5), 0);
  }
}

TEST(Adamw, WritesNothingWithoutCommit) {
  AdamwRun r(Dtype::F32, 1000);
  r.step(1);
  const AdamwRun before = r;
  r.g = Tensor::nan(Dtype::F32, {1000});
  r.scale = Tensor::nan(Dtype::F64, {2});
  r.commit.set(0, 0);
  r.step(2);
  EXPECT_TRUE(r.w == before.w && r.m == before.m && r.v == before.v);
}

TEST(Adamw, SameBitsForAnyThreadsAndRefusals) {
  expect_same_bits([&](int threads) {
    AdamwRun r(Dtype::F32, 100003);
    r.step(1, threads);
    r.step(2, threads);
    return std::vector{r.w, r.m, r.v};
  });
  AdamwRun r(Dtype::F32, 10);
  r.v = Tensor::zeros(Dtype::F32, {11});
  expect_refused([&] { r.step(1); }, "[adamw] argument 'v' has 11 in dimension 0, needed 10 like 'g'");
  r.v = Tensor::zeros(Dtype::F32, {10});
  program::AttrSet bad = kAdamw;
  bad[0].number = 1.0;
  expect_refused([&] { r.step(1, 2, bad); }, "[adamw] attribute 'beta1' is 1, needed 0 <= beta1 < 1");
}

TEST(Adamw, PiecesGiveTheBitsOfTheWhole) {
  // Of weights, first and second moment.
  const std::vector<std::array<Dtype, 3>> formats = {{Dtype::F32, Dtype::F32, Dtype::F32},
                                                     {Dtype::F64, Dtype::F64, Dtype::F64},
                                                     {Dtype::F32, Dtype::BF16, Dtype::F32},
                                                     {Dtype::F32, Dtype::F32, Dtype::BF16}};
  for (const auto& [dtype, first, second] : formats)
    for (auto [n, num_pieces] :
         {std::pair<int64_t, int64_t>{70001, 2}, {4099, 7}, {1001, 13}, {5, 4}, {3, 8}}) {
      AdamwRun whole(dtype, n);
      whole.m = Tensor::zeros(first, {n}), whole.v = Tensor::zeros(second, {n});
      Tensor w = whole.w;
      for (int step = 1; step <= 3; ++step) whole.step(step);
      const int64_t shard = (n + num_pieces - 1) / num_pieces;
      program::AttrSet attrs = kAdamw;
      attrs.push_back({"group", 5});
      attrs.push_back({"shard", static_cast<double>(shard)});
      for (int64_t c = 0; c < num_pieces; ++c) {
        AdamwRun part(dtype, shard);
        Tensor coords = coords_of(c);
        part.g = Tensor::nan(dtype, {shard});
        part.m = Tensor::nan(first, {shard}), part.v = Tensor::nan(second, {shard});
        for (int64_t i = 0; i < shard && c * shard + i < n; ++i)
          part.g.set(i, whole.g.at(c * shard + i)), part.m.set(i, 0), part.v.set(i, 0);
        for (int step = 1; step <= 3; ++step) {
          part.hyper.set(1, step);
          call(KernelKind::adamw, Phase::Update,
               {in(part.g), in(part.hyper), in(part.scale), in(part.commit), in(coords), add(w), add(part.m),
                add(part.v)},
               attrs);
        }
        const size_t bytes = static_cast<size_t>(tensor::size_of(dtype));
        for (int64_t i = 0; i < shard && c * shard + i < n; ++i) {
          ASSERT_EQ(part.m.at(i), whole.m.at(c * shard + i));
          ASSERT_EQ(part.v.at(i), whole.v.at(c * shard + i));
        }
        // The rest of w is as it was: later pieces have not been updated yet.
        const size_t done = static_cast<size_t>(std::min(n, (c + 1) * shard)) * bytes;
        const AdamwRun fresh(dtype, n);
        ASSERT_TRUE(std::equal(w.bytes.begin(), w.bytes.begin() + static_cast<ptrdiff_t>(done),
                               whole.w.bytes.begin()));
        ASSERT_TRUE(std::equal(w.bytes.begin() + static_cast<ptrdiff_t>(done), w.bytes.end(),
                               fresh.w.bytes.begin() + static_cast<ptrdiff_t>(done)));
      }
      EXPECT_TRUE(w == whole.w);
    }
  AdamwRun r(Dtype::F32, 10);
  Tensor coords = coords_of(0);
  program::AttrSet attrs = kAdamw;
  attrs.push_back({"group", 5});
  attrs.push_back({"shard", 9});
  expect_refused(
      [&] {
        call(KernelKind::adamw, Phase::Update,
             {in(r.g), in(r.hyper), in(r.scale), in(r.commit), in(coords), add(r.w), add(r.m), add(r.v)},
             attrs);
      },
      "[adamw] argument 'g' has 10 elements, needed 9 as attribute 'shard' says");
}

// Every format of the two moments: an update is that of floats, from what was stored, and what is stored is the
// float's rounding.
TEST(Adamw, MomentsAreStoredInTheirOwnFormats) {
  const auto in_type = [](const Tensor& t, Dtype dtype) { return Tensor::of(dtype, t.shape, t.numbers()); };
  for (const Dtype first : {Dtype::F32, Dtype::BF16})
    for (const Dtype second : {Dtype::F32, Dtype::BF16})
      for (const int64_t n : {1, 1023, 70001}) {
        AdamwRun narrow(Dtype::F32, n), wide(Dtype::F32, n);
        narrow.m = Tensor::zeros(first, {n}), narrow.v = Tensor::zeros(second, {n});
        for (int step = 1; step <= 3; ++step) {
          narrow.step(step);
          wide.step(step);
          ASSERT_TRUE(narrow.w == wide.w) << n << " step " << step;
          ASSERT_TRUE(narrow.m == in_type(wide.m, first)) << n << " step " << step;
          ASSERT_TRUE(narrow.v == in_type(wide.v, second)) << n << " step " << step;
          wide.m = in_type(narrow.m, Dtype::F32), wide.v = in_type(narrow.v, Dtype::F32);
        }
      }
  expect_same_bits([&](int threads) {
    AdamwRun r(Dtype::F32, 100003);
    r.m = Tensor::zeros(Dtype::BF16, {100003});
    for (int step = 1; step <= 2; ++step) r.step(step, threads);
    return std::vector{r.w, r.m, r.v};
  });
  AdamwRun r(Dtype::F64, 10);
  r.m = Tensor::zeros(Dtype::BF16, {10});
  expect_refused([&] { r.step(1); }, "[adamw] argument 'm' is bf16, needed f64");
}

TEST(BiasUpdate, SignOfTheExactMean) {
  Tensor load = Tensor::of(Dtype::I64, {4}, {10, 11, 11, 11}), commit = Tensor::of(Dtype::I32, {1}, {1});
  Tensor bias = Tensor::of(Dtype::F32, {4}, {0.5, 0, -1, 2});
  const program::AttrSet attrs = {{"rate", 0.001}};
  call(KernelKind::bias_update, Phase::Update, {in(load), in(commit), add(bias)}, attrs);
  const float rate = 0.001f;
  EXPECT_EQ(bias.as<float>()[0], 0.5f + rate);
  EXPECT_EQ(bias.as<float>()[1], -rate);
  EXPECT_EQ(bias.as<float>()[2], -1 - rate);
  load = Tensor::of(Dtype::I64, {4}, {7, 7, 7, 7});
  const Tensor before = bias;
  call(KernelKind::bias_update, Phase::Update, {in(load), in(commit), add(bias)}, attrs);
  EXPECT_TRUE(bias == before);
  load.set(0, 100);
  commit.set(0, 0);
  call(KernelKind::bias_update, Phase::Update, {in(load), in(commit), add(bias)}, attrs);
  EXPECT_TRUE(bias == before);
  Tensor wrong = Tensor::zeros(Dtype::F32, {4});
  expect_refused(
      [&] {
        call(KernelKind::bias_update, Phase::Update, {in(wrong), in(commit), add(bias)}, attrs);
      },
      "[bias_update] argument 'load' is f32, needed i64");
}

// 64 ranks' counts of one expert sum to 40,840 against a row average of 40,960. A 16-bit sum would call them
// equal.
TEST(BiasUpdate, ManyRanksInAnyOrder) {
  std::vector<int64_t> counts(64, 638);
  for (size_t i = 0; i < 32; ++i)
    counts[2 * i] += static_cast<int64_t>(i % 31), counts[2 * i + 1] -= static_cast<int64_t>(i % 31);
  for (size_t i = 0; i < 8; ++i) counts[i] += 1;
  ASSERT_EQ(std::accumulate(counts.begin(), counts.end(), int64_t{0}), 40840);
  ASSERT_GE(*std::min_element(counts.begin(), counts.end()), 608);
  ASSERT_LE(*std::max_element(counts.begin(), counts.end()), 676);
  for (int order = 0; order < 10; ++order) {
    std::rotate(counts.begin(), counts.begin() + (7 * order + 1) % 64, counts.end());
    if (order % 2) std::reverse(counts.begin(), counts.end());
    Tensor load = Tensor::zeros(Dtype::I64, {4}), commit = Tensor::of(Dtype::I32, {1}, {1}),
           bias = Tensor::zeros(Dtype::F32, {4});
    for (int64_t count : counts) load.as<int64_t>()[0] += count;
    for (int64_t e = 1; e < 4; ++e) load.as<int64_t>()[e] = 40960 + 40;
    ASSERT_EQ(load.at(0) + load.at(1) + load.at(2) + load.at(3), 4 * 40960.0);
    call(KernelKind::bias_update, Phase::Update, {in(load), in(commit), add(bias)}, {{"rate", 0.001}});
    EXPECT_EQ(bias.as<float>()[0], 0.001f);
    for (int e = 1; e < 4; ++e) EXPECT_EQ(bias.as<float>()[e], -0.001f);
  }
}

}  // namespace
}  // namespace pleat::kernels::testing
