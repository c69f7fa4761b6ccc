// Choices must be those of the CPU's f32 kernel, slot by slot; probabilities and gradients agree with
// float64.
#include <cmath>
#include <limits>

#include "cuda/routing_support.h"

namespace pleat::kernels::testing {
namespace {

using program::AttrSet;
using program::KernelKind;
using program::Phase;
using tensor::Dtype;

struct Router {
  int64_t experts, top_k;
  int score = 0, pre_softmax = 0, renormalize = 0;
  double scale = 1;
  int groups = 0, group_topk = 0, group_score_topk = 0, renormalize_single = 0, sinkhorn = 0, training = 1;
  bool bias = false;

  AttrSet attrs() const {
    return {{"experts", double(experts)},
            {"group_score_topk", double(group_score_topk)},
            {"group_topk", double(group_topk)},
            {"groups", double(groups)},
            {"pre_softmax", double(pre_softmax)},
            {"renormalize", double(renormalize)},
            {"renormalize_single", double(renormalize_single)},
            {"scale", scale},
            {"score", double(score)},
            {"sinkhorn", double(sinkhorn)},
            {"top_k", double(top_k)},
            {"training", double(training)}};
  }
};

const Router kRouters[] = {
    {8, 2},
    {8, 1, 0, 1},
    {5, 5},
    {33, 3, 0, 1, 0, 2.5},
    {60, 4, 0, 1, 1},
    {64, 8},
    {128, 8, 0, 1, 1},
    {64, 6, 1, 0, 1, 2.5, 8, 3, 2, 0, 0, 1, true},
    {256, 8, 1, 0, 1, 2.5, 8, 4, 2, 0, 0, 1, true},
    {48, 4, 2, 0, 1, 1, 6, 2, 3},
    {20, 2, 1, 0, 0, 1, 5, 2, 1},
    {129, 7, 2, 0, 1, 1, 0, 0, 0, 0, 0, 1, true},
    {300, 4, 1},
    {700, 5, 0, 1},
    {1, 1, 1, 0, 1, 1, 0, 0, 0, 1},
    // Every size of a team of lanes, whole and with experts missing, and one choice more than teams find.
    {1, 1},
    {9, 8, 0, 1},
    {32, 8},
    {100, 8, 0, 1},
    {127, 5, 0, 1, 1},
    {200, 3, 0, 1, 1},
    {256, 8},
    {301, 8, 0, 1},
    {512, 8, 0, 1, 1},
    {64, 9, 0, 1},
    {64, 9, 0, 1, 1},
    {48, 40},
};

struct Chosen {
  Tensor idx, probs, load, stats, scratch;
};

std::vector<Pass> passes(const Router& r, Tensor& logits, Tensor& bias, Tensor& valid, Chosen& c,
                         bool update) {
  const auto to = [&](Tensor& t) { return update ? add(t) : out(t); };
  return {in(logits),
          r.bias ? in(bias) : none(),
          in(valid),
          none(),
          out(c.idx),
          out(c.probs),
          to(c.load),
          to(c.stats),
          r.sinkhorn ? out(c.scratch) : none()};
}

// Both kernels in f32 from the same start: the same experts, the same counts.
void expect_same_choice(const Router& r, int64_t T, Tensor& logits, bool all_valid, bool update) {
  SCOPED_TRACE("experts " + std::to_string(r.experts) + " top_k " + std::to_string(r.top_k) + " score " +
               std::to_string(r.score) + " tokens " + std::to_string(T));
  Tensor bias = Tensor::normal(Dtype::F32, {r.experts}, 5, 0.1), valid = some_valid(T, all_valid);
  Chosen gpu{Tensor::nan(Dtype::I32, {T, r.top_k}), Tensor::nan(Dtype::F32, {T, r.top_k}),
             Tensor::nan(Dtype::I64, {r.experts}), Tensor::nan(Dtype::F64, {4}),
             Tensor::nan(Dtype::F32, {T, r.experts})};
  if (update) {
    for (int64_t e = 0; e < r.experts; ++e) gpu.load.set(e, static_cast<double>(e));
    gpu.stats = Tensor::of(Dtype::F64, {4}, {1.5, 2, 3, 0});
  }
  Chosen cpu = gpu;
  call(KernelKind::router_choose, Phase::Forward, passes(r, logits, bias, valid, cpu, update), r.attrs());
  call_cuda(KernelKind::router_choose, Phase::Forward, passes(r, logits, bias, valid, gpu, update),
            r.attrs());
  ASSERT_EQ(gpu.idx.numbers(), cpu.idx.numbers());
  ASSERT_EQ(gpu.load.numbers(), cpu.load.numbers());
  for (int64_t i = 0; i < T * r.top_k; ++i) {
    if (std::isnan(cpu.probs.at(i))) {
      ASSERT_TRUE(std::isnan(gpu.probs.at(i))) << i;
    } else {
      ASSERT_NEAR(gpu.probs.at(i), cpu.probs.at(i), 1e-6 * (1 + std::fabs(cpu.probs.at(i)))) << i;
    }
  }
  EXPECT_EQ(gpu.stats.at(0), cpu.stats.at(0));
  if (std::isfinite(cpu.stats.at(1))) {
    EXPECT_NEAR(gpu.stats.at(1), cpu.stats.at(1), 1e-10 * cpu.stats.at(1));
  }
  EXPECT_EQ(gpu.stats.at(2), cpu.stats.at(2));
}

TEST(CudaRouterChoose, TakesTheExpertsOfTheCpu) {
  PLEAT_NEEDS_GPU();
  for (const Router& r : kRouters)
    for (int64_t T : {1, 7, 129, 1000}) {
      Tensor logits = Tensor::normal(Dtype::F32, {T, r.experts}, static_cast<uint64_t>(T));
      expect_same_choice(r, T, logits, false, T == 7);
    }
}

// More tokens than all blocks hold at once, and blocks of both sizes.
TEST(CudaRouterChoose, TakesTheExpertsOfTheCpuForManyTokens) {
  PLEAT_NEEDS_GPU();
  for (const auto& [r, T] : {std::pair{Router{8, 2, 0, 1}, 17003},
                             {Router{64, 8, 0, 1}, 4230},
                             {Router{64, 8, 0, 1, 1}, 17001},
                             {Router{200, 8}, 8501},
                             {Router{300, 4, 0, 1}, 4301},
                             {Router{64, 9}, 4301}}) {
    Tensor logits = Tensor::normal(Dtype::F32, {T, r.experts}, 3);
    for (int64_t i = 0; i < logits.size(); i += 3) logits.set(i, std::round(4 * logits.at(i)) / 4);
    expect_same_choice(r, T, logits, false, true);
  }
}

TEST(CudaRouterChoose, BreaksTiesAndReadsStrangeNumbersAsTheCpu) {
  PLEAT_NEEDS_GPU();
  const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  for (const Router& r : kRouters) {
    const int64_t T = 65;
    Tensor logits = Tensor::normal(Dtype::F32, {T, r.experts}, 11);
    for (int64_t i = 0; i < logits.size(); ++i)
      logits.set(i, std::round(logits.at(i)));  // many equal, -0 and 0
    for (int64_t e = 0; e < r.experts; ++e) {
      logits.set(e, 0);
      logits.set(r.experts + e, e % 3 == 0 ? -inf : 1.0);
      logits.set(2 * r.experts + e, e % 5 == 2 ? nan : 2.0);
      logits.set(3 * r.experts + e, -100.0 - static_cast<double>(e));
    }
    expect_same_choice(r, T, logits, true, false);
  }
}

TEST(CudaRouterChoose, Sinkhorn) {
  PLEAT_NEEDS_GPU();
  for (int64_t top_k : {1, 3})
    for (int training : {0, 1}) {
      Router r{16, top_k};
      r.sinkhorn = 1;
      r.training = training;
      Tensor logits = Tensor::normal(Dtype::F32, {200, 16}, 7);
      expect_same_choice(r, 200, logits, false, false);
    }
}

TEST(CudaRouterChoose, ProbabilitiesOfStoredChoices) {
  PLEAT_NEEDS_GPU();
  for (const Router& r : kRouters) {
    const int64_t T = 33;
    Tensor logits = Tensor::normal(Dtype::F32, {T, r.experts}, 1), valid = some_valid(T, false);
    Tensor given = random_choice(T, r.top_k, r.experts, 2), bias = Tensor::normal(Dtype::F32, {r.experts}, 5);
    Tensor idx = Tensor::nan(Dtype::I32, {T, r.top_k}), probs = Tensor::nan(Dtype::F32, {T, r.top_k});
    Tensor load = Tensor::zeros(Dtype::I64, {r.experts}), stats = Tensor::zeros(Dtype::F64, {4});
    expect_agrees(KernelKind::router_choose, Phase::Forward,
                  {in(logits), r.bias ? in(bias) : none(), in(valid), in(given), out(idx), out(probs),
                   add(load), out(stats), none()},
                  r.attrs(), bound(Dtype::F32, r.experts));
  }
}

TEST(CudaRouterChoose, Backward) {
  PLEAT_NEEDS_GPU();
  for (const Router& r : kRouters)
    for (bool update : {false, true}) {
      const int64_t T = 37;
      Tensor logits = Tensor::normal(Dtype::F32, {T, r.experts}, 1);
      Tensor idx = random_choice(T, r.top_k, r.experts, 2),
             dprobs = Tensor::normal(Dtype::F32, {T, r.top_k}, 3);
      Tensor dlogits = Tensor::normal(Dtype::F32, {T, r.experts}, 4);
      expect_agrees(KernelKind::router_choose, Phase::BackwardInput,
                    {in(dprobs), in(logits), in(idx), update ? add(dlogits) : out(dlogits)}, r.attrs(),
                    bound(Dtype::F32, 64));
    }
}

TEST(CudaRouterCount, CountsAsTheCpu) {
  PLEAT_NEEDS_GPU();
  for (auto [T, E, k] : {std::tuple{1, 1, 1}, {129, 8, 2}, {1000, 64, 6}, {300, 129, 8}})
    for (bool update : {false, true}) {
      Tensor logits = Tensor::normal(Dtype::F32, {T, E}, 1), valid = some_valid(T, false);
      for (int64_t i = 0; i < logits.size(); ++i) logits.set(i, std::round(4 * logits.at(i)));
      Tensor counts = Tensor::zeros(Dtype::I64, {E}), tokens = Tensor::zeros(Dtype::I64, {1});
      expect_agrees(
          KernelKind::router_count, Phase::Forward,
          {in(logits), in(valid), update ? add(counts) : out(counts), update ? add(tokens) : out(tokens)},
          {{"experts", double(E)}, {"top_k", double(k)}}, {});
    }
}

}  // namespace
}  // namespace pleat::kernels::testing
