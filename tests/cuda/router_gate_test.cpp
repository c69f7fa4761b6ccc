#include "cuda/routing_support.h"

namespace pleat::kernels::testing {
namespace {

using program::KernelKind;
using program::Phase;
using tensor::Dtype;

class CudaRouterGate : public ::testing::TestWithParam<Dtype> {};

struct Shape {
  int64_t T, h, E;
};
// Among them depths, columns and tokens that are cut into parts of unequal length, and blocks of several
// steps.
const Shape kShapes[] = {{1, 1, 1},        {7, 33, 5},      {65, 64, 8},     {129, 200, 33}, {100, 2048, 64},
                         {300, 520, 128},  {70, 4096, 129}, {64, 136, 256},  {33, 72, 300},  {1100, 2056, 60},
                         {2100, 2568, 34}, {515, 1032, 16}, {2100, 2568, 32}};

TEST_P(CudaRouterGate, Forward) {
  PLEAT_NEEDS_GPU();
  const Dtype type = GetParam();
  for (const Shape& s : kShapes)
    for (bool with_bias : {false, true}) {
      Tensor x = Tensor::normal(type, {s.T, s.h}, 1), w = Tensor::normal(type, {s.E, s.h}, 2, 0.05);
      Tensor bias = Tensor::normal(type, {s.E}, 3), logits = Tensor::nan(Dtype::F32, {s.T, s.E});
      // Products of bf16 are exact; only the sum rounds.
      expect_agrees(KernelKind::router_gate, Phase::Forward,
                    {in(x), in(w), with_bias ? in(bias) : none(), out(logits)}, {},
                    bound(Dtype::F32, 16 * s.h));
    }
}

TEST_P(CudaRouterGate, BackwardInput) {
  PLEAT_NEEDS_GPU();
  const Dtype type = GetParam();
  for (const Shape& s : kShapes)
    for (bool update : {false, true}) {
      Tensor dlogits = Tensor::normal(Dtype::F32, {s.T, s.E}, 1),
             w = Tensor::normal(type, {s.E, s.h}, 2, 0.05);
      Tensor dx = Tensor::normal(type, {s.T, s.h}, 3);
      expect_agrees(KernelKind::router_gate, Phase::BackwardInput,
                    {in(dlogits), in(w), update ? add(dx) : out(dx)}, {}, bound(type, 16 * s.E));
    }
}

TEST_P(CudaRouterGate, BackwardWeight) {
  PLEAT_NEEDS_GPU();
  const Dtype type = GetParam();
  for (const Shape& s : kShapes)
    for (Dtype gradient : {type, Dtype::F32})
      for (bool update : {false, true}) {
        Tensor dlogits = Tensor::normal(Dtype::F32, {s.T, s.E}, 1), x = Tensor::normal(type, {s.T, s.h}, 2);
        Tensor dw = Tensor::normal(gradient, {s.E, s.h}, 3), dbias = Tensor::normal(gradient, {s.E}, 4);
        // A gradient of logits counts with 17 bits on tensor cores.
        Compare allowed = bound(gradient, s.T);
        allowed.norm += 1e-5, allowed.element += 3e-5;
        expect_agrees(KernelKind::router_gate, Phase::BackwardWeight,
                      {in(dlogits), in(x), update ? add(dw) : out(dw),
                       s.E % 2 ? none() : (update ? add(dbias) : out(dbias))},
                      {}, allowed);
      }
}

// The mma path must keep what rounding dlogits to bf16 would lose.
TEST(CudaRouterGateSplit, KeepsTheLowBitsOfGradients) {
  PLEAT_NEEDS_GPU();
  const int64_t T = 64, h = 64, E = 16;
  Tensor dlogits = Tensor::zeros(Dtype::F32, {T, E}), x = Tensor::zeros(Dtype::BF16, {T, h});
  for (int64_t i = 0; i < dlogits.size(); ++i) dlogits.set(i, 1.0 + 1.0 / 1024);
  for (int64_t i = 0; i < x.size(); ++i) x.set(i, 1);
  Tensor dw = Tensor::nan(Dtype::F32, {E, h});
  call_cuda(KernelKind::router_gate, Phase::BackwardWeight, {in(dlogits), in(x), out(dw), none()});
  for (int64_t i = 0; i < dw.size(); ++i) ASSERT_EQ(dw.at(i), 64.0625) << i;
}

// Blocks go round their ring of stages more than once, in all three products.
TEST(CudaRouterGateSplit, TilesOfManyTokens) {
  PLEAT_NEEDS_GPU();
  for (auto [T, h, E] : {std::tuple{16300, 520, 12}, {8200, 520, 132}, {16300, 648, 60}, {16300, 520, 128}}) {
    if (only_once() && E > 100) T = 4000;
    Tensor x = Tensor::normal(Dtype::BF16, {T, h}, 1), w = Tensor::normal(Dtype::BF16, {E, h}, 2, 0.05);
    Tensor bias = Tensor::normal(Dtype::BF16, {E}, 3), logits = Tensor::nan(Dtype::F32, {T, E});
    expect_agrees(KernelKind::router_gate, Phase::Forward, {in(x), in(w), in(bias), out(logits)}, {},
                  bound(Dtype::F32, 16 * h));
    Tensor dlogits = Tensor::normal(Dtype::F32, {T, E}, 4);
    Tensor dx = Tensor::normal(Dtype::BF16, {T, h}, 5), dw = Tensor::nan(Dtype::F32, {E, h});
    expect_agrees(KernelKind::router_gate, Phase::BackwardInput, {in(dlogits), in(w), add(dx)}, {},
                  bound(Dtype::BF16, 16 * E));
    Compare allowed = bound(Dtype::F32, T);
    allowed.norm += 1e-5, allowed.element += 3e-5;
    expect_agrees(KernelKind::router_gate, Phase::BackwardWeight, {in(dlogits), in(x), out(dw), none()}, {},
                  allowed);
  }
}

// More experts than a block holds: their parts are added before anything is rounded.
TEST(CudaRouterGateSplit, InputGradientOfManyExpertsIsRoundedOnce) {
  PLEAT_NEEDS_GPU();
  for (const int64_t E : {512, 1536}) {
    const int64_t T = 130, h = 1032;
    Tensor dlogits = Tensor::zeros(Dtype::F32, {T, E}), w = Tensor::zeros(Dtype::BF16, {E, h});
    for (int64_t i = 0; i < w.size(); ++i) w.set(i, 1);
    for (int64_t t = 0; t < T; ++t) {
      dlogits.set(t * E, 257);
      dlogits.set(t * E + E - 1, -256);
    }
    Tensor dx = Tensor::nan(Dtype::BF16, {T, h});
    call_cuda(KernelKind::router_gate, Phase::BackwardInput, {in(dlogits), in(w), out(dx)});
    for (int64_t i = 0; i < dx.size(); ++i) ASSERT_EQ(dx.at(i), 1) << i;
  }
}

// Blocks of a cluster add up each other's sums; a block that reads before they are there gives other bits.
TEST(CudaRouterGateSplit, GivesTheSameBitsAgain) {
  PLEAT_NEEDS_GPU();
  const int64_t T = 1030, h = 2048, E = 96;
  Tensor x = Tensor::normal(Dtype::BF16, {T, h}, 1), w = Tensor::normal(Dtype::BF16, {E, h}, 2, 0.05);
  Tensor dlogits = Tensor::normal(Dtype::F32, {T, E}, 3);
  std::vector<double> first_logits, first_dw;
  for (int again = 0; again < 5; ++again) {
    Tensor logits = Tensor::nan(Dtype::F32, {T, E}), dw = Tensor::nan(Dtype::F32, {E, h});
    call_cuda(KernelKind::router_gate, Phase::Forward, {in(x), in(w), none(), out(logits)});
    call_cuda(KernelKind::router_gate, Phase::BackwardWeight, {in(dlogits), in(x), out(dw), none()});
    if (again == 0) first_logits = logits.numbers(), first_dw = dw.numbers();
    ASSERT_EQ(logits.numbers(), first_logits);
    ASSERT_EQ(dw.numbers(), first_dw);
  }
}

TEST(CudaRouterGateSplit, NoTokens) {
  PLEAT_NEEDS_GPU();
  const int64_t h = 64, E = 16;
  Tensor x = Tensor::zeros(Dtype::BF16, {0, h}), w = Tensor::normal(Dtype::BF16, {E, h}, 2);
  Tensor dlogits = Tensor::zeros(Dtype::F32, {0, E});
  call_cuda(KernelKind::router_gate, Phase::Forward, {in(x), in(w), none(), out(dlogits)});
  call_cuda(KernelKind::router_gate, Phase::BackwardInput, {in(dlogits), in(w), out(x)});
  Tensor dw = Tensor::nan(Dtype::F32, {E, h}), sum = Tensor::normal(Dtype::F32, {E, h}, 3);
  const auto before = sum.numbers();
  call_cuda(KernelKind::router_gate, Phase::BackwardWeight, {in(dlogits), in(x), out(dw), none()});
  call_cuda(KernelKind::router_gate, Phase::BackwardWeight, {in(dlogits), in(x), add(sum), none()});
  for (int64_t i = 0; i < dw.size(); ++i) ASSERT_EQ(dw.at(i), 0) << i;
  EXPECT_EQ(sum.numbers(), before);
}

INSTANTIATE_TEST_SUITE_P(Types, CudaRouterGate, ::testing::Values(Dtype::F32, Dtype::BF16));

class CudaJitter : public ::testing::TestWithParam<Dtype> {};

TEST_P(CudaJitter, DrawsTheNumbersOfTheCpu) {
  PLEAT_NEEDS_GPU();
  const Dtype type = GetParam();
  for (auto [T, h] : {std::pair{1, 1}, {7, 33}, {50, 256}})
    for (Phase phase : {Phase::Forward, Phase::BackwardInput})
      for (bool update : {false, true}) {
        if (update && phase == Phase::Forward) continue;
        Tensor x = Tensor::normal(type, {T, h}, 1), y = Tensor::normal(type, {T, h}, 2);
        Tensor rng = Tensor::of(Dtype::I64, {2}, {1234567890123.0, 17}),
               index = Tensor::zeros(Dtype::I64, {T});
        for (int64_t t = 0; t < T; ++t) index.set(t, static_cast<double>(1000000000 + 3 * t));
        expect_agrees(KernelKind::jitter, phase, {in(x), in(rng), in(index), update ? add(y) : out(y)},
                      {{"eps", 0.01}, {"layer", 3}}, bound(type));
      }
}

INSTANTIATE_TEST_SUITE_P(Types, CudaJitter, ::testing::Values(Dtype::F32, Dtype::BF16));

TEST(CudaRouterForce, DrawsTheNumbersOfTheCpu) {
  PLEAT_NEEDS_GPU();
  for (double bias_std : {0.0, 0.5, -0.5}) {
    const int64_t T = 77, E = 24;
    Tensor logits = Tensor::normal(Dtype::F32, {T, E}, 1), forced = Tensor::nan(Dtype::F32, {T, E});
    Tensor rng = Tensor::of(Dtype::I64, {2}, {99, 17}), index = Tensor::zeros(Dtype::I64, {T});
    for (int64_t t = 0; t < T; ++t) index.set(t, static_cast<double>(5 * t));
    expect_agrees(KernelKind::router_force, Phase::Forward, {in(logits), in(rng), in(index), out(forced)},
                  {{"bias_std", bias_std}, {"layer", 26}, {"loaded_bias", 1.25}}, bound(Dtype::F32));
  }
}

}  // namespace
}  // namespace pleat::kernels::testing
