#include <cmath>

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
  // Every size of team in both types, a row too wide for any (16392 of bf16, 8196 of f32), odd widths, and
  // more rows than teams: of narrow and of wide rows.
  for (auto [rows, width] : {std::pair{1, 1},
                             {7, 33},
                             {129, 64},
                             {3001, 264},
                             {300, 520},
                             {777, 2048},
                             {301, 4096},
                             {300, 7168},
                             {3, 8196},
                             {3, 16384},
                             {3, 16392}})
    for (const bool accumulate : {false, true}) {
      Tensor x = Tensor::normal(type, {rows, width}, 1),
             w = Tensor::normal(type, {width}, 2, 1 / std::sqrt(double(width)));
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

TEST_P(CudaSigmoidGate, WritesOverItsInput) {
  PLEAT_NEEDS_GPU();
  const Dtype type = GetParam();
  for (const int64_t width : {33, 2048}) {
    const int64_t rows = 1500;
    Tensor x = Tensor::normal(type, {rows, width}, 1), w = Tensor::normal(type, {width}, 2, 0.1);
    Tensor y = Tensor::normal(type, {rows, width}, 3), dout = Tensor::normal(type, {rows, width}, 4);
    Tensor dx = Tensor::nan(type, {rows, width}), dy = dx, dx_too = dx;
    call_cuda(KernelKind::sigmoid_gate, Phase::BackwardInput,
              {in(dout), in(x), in(w), in(y), out(dx), out(dy)});
    call_cuda(KernelKind::sigmoid_gate, Phase::BackwardInput,
              {add(dout), in(x), in(w), in(y), out(dx_too), out(dout)});
    EXPECT_EQ(dout, dy);
    EXPECT_EQ(dx_too, dx);
  }
}

TEST_P(CudaSigmoidGate, NoRowsGiveNoGradient) {
  PLEAT_NEEDS_GPU();
  for (const int64_t width : {33, 64}) {
    Tensor empty = Tensor::zeros(GetParam(), {0, width}), w = Tensor::normal(GetParam(), {width}, 1);
    Tensor dw = Tensor::normal(Dtype::F32, {width}, 2);
    const Tensor before = dw;
    call_cuda(KernelKind::sigmoid_gate, Phase::BackwardWeight,
              {in(empty), in(empty), in(w), in(empty), add(dw)});
    EXPECT_EQ(dw, before);
    call_cuda(KernelKind::sigmoid_gate, Phase::BackwardWeight,
              {in(empty), in(empty), in(w), in(empty), out(dw)});
    EXPECT_EQ(dw, Tensor::zeros(Dtype::F32, {width}));
  }
}

INSTANTIATE_TEST_SUITE_P(Types, CudaSigmoidGate, ::testing::Values(Dtype::F32, Dtype::BF16));

}  // namespace
}  // namespace pleat::kernels::testing
