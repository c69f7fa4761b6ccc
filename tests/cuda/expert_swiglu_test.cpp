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
  for (auto [T, V] : {std::pair{1, 1}, {9, 33}, {20, 1000}, {3, 50304}}) {
    Tensor logits = Tensor::normal(type, {T, V}, 1, 2.0), labels = Tensor::zeros(Dtype::I32, {T});
    for (int64_t t = 0; t < T; ++t) labels.set(t, static_cast<double>(t * 31 % V));
    Tensor mask = some_valid(T, false), log_prob = Tensor::nan(Dtype::F64, {T}),
           best = Tensor::nan(Dtype::I32, {T});
    expect_agrees(KernelKind::token_score, Phase::Forward,
                  {in(logits), in(labels), in(mask), out(log_prob), out(best)}, {}, bound(Dtype::F32, 64));
  }
}

INSTANTIATE_TEST_SUITE_P(Types, CudaTokenScore, ::testing::Values(Dtype::F32, Dtype::BF16));

}  // namespace
}  // namespace pleat::kernels::testing
