#include "cuda/cuda_support.h"

namespace pleat::kernels::testing {
namespace {

using program::KernelKind;
using program::Phase;
using tensor::Dtype;

class CudaSigmoidGate : public ::testing::TestWithParam<Dtype> {};

TEST_P(CudaSigmoidGate, AgreesWithTheCpu) {
  PLEAT_NEEDS_GPU();
  const Dtype type = GetParam();
  for (auto [rows, width] : {std::pair{1, 1}, {7, 33}, {129, 64}, {300, 2048}})
    for (const bool accumulate : {false, true}) {
      Tensor x = Tensor::normal(type, {rows, width}, 1), w = Tensor::normal(type, {width}, 2, 0.1);
      Tensor y = Tensor::normal(type, {rows, width}, 3), gated = Tensor::nan(type, {rows, width});
      expect_agrees(KernelKind::sigmoid_gate, Phase::Forward, {in(x), in(w), in(y), out(gated)}, {},
                    bound(type, width));
      Tensor dout = Tensor::normal(type, {rows, width}, 4), dx = Tensor::normal(type, {rows, width}, 5);
      Tensor dy = Tensor::nan(type, {rows, width});
      expect_agrees(KernelKind::sigmoid_gate, Phase::BackwardInput,
                    {in(dout), in(x), in(w), in(y), accumulate ? add(dx) : out(dx), out(dy)}, {},
                    bound(type, width));
      for (const Dtype sum_type : {Dtype::F32, type}) {
        Tensor dw = Tensor::normal(sum_type, {width}, 6);
        expect_agrees(KernelKind::sigmoid_gate, Phase::BackwardWeight,
                      {in(dout), in(x), in(w), in(y), accumulate ? add(dw) : out(dw)}, {},
                      bound(sum_type, width + rows));
      }
    }
}

INSTANTIATE_TEST_SUITE_P(Types, CudaSigmoidGate, ::testing::Values(Dtype::F32, Dtype::BF16));

}  // namespace
}  // namespace pleat::kernels::testing
