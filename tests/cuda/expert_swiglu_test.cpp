#include <cmath>

#include "cuda/routing_support.h"

namespace pleat::kernels::testing {
namespace {

using program::KernelKind;
using program::Phase;
using tensor::Dtype;

class CudaExpertSwiglu : public ::testing::TestWithParam<Dtype> {};

TEST_P(CudaExpertSwiglu, AgreesWithTheCpu) {
  PLEAT_NEEDS_GPU();
  const Dtype type = GetParam();
  for (auto [R, used, width] :
       {std::tuple{1, 1, 1}, {9, 7, 33}, {9, 0, 16}, {150, 129, 768}, {20, 13, 4096}, {12, 11, 14336}})
    for (const program::AttrSet& attrs :
         {program::AttrSet{{"activation", 0}}, {{"activation", 1}, {"limit", 0.7}, {"alpha", 1.702}}}) {
      Tensor offsets = Tensor::of(Dtype::I32, {4}, {0, double(used / 2), double(used / 2), double(used)});
      Tensor gu = Tensor::normal(type, {R, 2 * width}, 1), probs = Tensor::normal(Dtype::F32, {R}, 2);
      Tensor a = Tensor::nan(type, {R, width});
      expect_agrees(KernelKind::expert_swiglu, Phase::Forward, {in(gu), in(probs), in(offsets), out(a)},
                    attrs, bound(type, 64));
      for (int64_t i = used * width; i < R * width; ++i) ASSERT_TRUE(std::isnan(a.at(i)));
      for (bool update : {false, true}) {
        Tensor da = Tensor::normal(type, {R, width}, 3), dgu = Tensor::nan(type, {R, 2 * width});
        Tensor dprobs = update ? Tensor::normal(Dtype::F32, {R}, 4) : Tensor::nan(Dtype::F32, {R});
        expect_agrees(KernelKind::expert_swiglu, Phase::BackwardInput,
                      {in(da), in(gu), in(probs), in(offsets), out(dgu), update ? add(dprobs) : out(dprobs)},
                      attrs, bound(type, 64 + width));
        for (int64_t i = used * 2 * width; i < R * 2 * width; ++i) ASSERT_TRUE(std::isnan(dgu.at(i)));
      }
    }
}

INSTANTIATE_TEST_SUITE_P(Types, CudaExpertSwiglu, ::testing::Values(Dtype::F32, Dtype::BF16));

class CudaTokenScore : public ::testing::TestWithParam<Dtype> {};

TEST_P(CudaTokenScore, AgreesWithTheCpu) {
  PLEAT_NEEDS_GPU();
  const Dtype type = GetParam();
  for (auto [T, V] : {std::pair{1, 1},
                      {9, 33},
                      {20, 1000},
                      {3, 50304},
                      {9, 50257},
                      {300, 4099},
                      {600, 4096},
                      {600, 4099}}) {
    Tensor logits = Tensor::normal(type, {T, V}, 1, 2.0), labels = Tensor::zeros(Dtype::I32, {T});
    for (int64_t t = 0; t < T; ++t) labels.set(t, static_cast<double>(t * 31 % V));
    Tensor mask = some_valid(T, false), log_prob = Tensor::nan(Dtype::F64, {T}),
           best = Tensor::nan(Dtype::I32, {T});
    expect_agrees(KernelKind::token_score, Phase::Forward,
                  {in(logits), in(labels), in(mask), out(log_prob), out(best)}, {}, bound(Dtype::F32, 64));
  }
}

// Ties in one chunk, in several chunks of a thread, in several threads, and in the lone elements at both ends
// of a row of odd width; NaN before, among and instead of the largest; rows of nothing but -inf.
TEST_P(CudaTokenScore, BestIsTheLowestOfEqualOnes) {
  PLEAT_NEEDS_GPU();
  const Dtype type = GetParam();
  for (auto [T, V] : {std::pair{24, 33}, {24, 8192}, {24, 50257}, {300, 32771}, {600, 16387}}) {
    Tensor logits = Tensor::normal(type, {T, V}, 1), labels = Tensor::zeros(Dtype::I32, {T});
    const auto set = [&, V = V](int64_t t, int64_t v, double x) { logits.set(t * V + v, x); };
    for (int64_t t = 0; t < T; ++t) {
      labels.set(t, static_cast<double>(t * 31 % V));
      const int64_t first = t * 7919 % V;
      switch (t % 8) {
        case 0:  // from some column on, every one
          for (int64_t v = first; v < V; ++v) set(t, v, 20);
          break;
        case 1:  // the whole row
          for (int64_t v = 0; v < V; ++v) set(t, v, -3);
          break;
        case 2:  // both ends
          set(t, 0, 20), set(t, V - 1, 20);
          break;
        case 3:  // a few, NaN before and between
          set(t, first, 20), set(t, V - 1, 20), set(t, V - 2, std::nan("")), set(t, 0, std::nan(""));
          break;
        case 4:
          for (int64_t v = 0; v < V; ++v) set(t, v, std::nan(""));
          break;
        case 5:
          for (int64_t v = 0; v < V; ++v) set(t, v, v < first / 2 ? std::nan("") : -INFINITY);
          break;
        case 6:  // one finite logit
          for (int64_t v = 0; v < V; ++v) set(t, v, v == first ? -5 : -INFINITY);
          break;
        default:  // zeros of both signs
          for (int64_t v = 0; v < V; ++v) set(t, v, v < first ? -1.0 : v % 2 ? 0.0 : -0.0);
      }
    }
    Tensor mask = some_valid(T, true), log_prob = Tensor::nan(Dtype::F64, {T}),
           best = Tensor::nan(Dtype::I32, {T});
    expect_agrees(KernelKind::token_score, Phase::Forward,
                  {in(logits), in(labels), in(mask), out(log_prob), out(best)}, {}, bound(Dtype::F32, 64));
    for (int64_t t = 3; t < T; t += 8) EXPECT_TRUE(std::isnan(log_prob.at(t))) << V;
    for (int64_t t = 4; t < T; t += 8) EXPECT_EQ(best.at(t), -1) << V;
  }
}

INSTANTIATE_TEST_SUITE_P(Types, CudaTokenScore, ::testing::Values(Dtype::F32, Dtype::BF16));

}  // namespace
}  // namespace pleat::kernels::testing
