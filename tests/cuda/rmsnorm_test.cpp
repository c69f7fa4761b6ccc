#include "cuda/cuda_support.h"

namespace pleat::kernels::testing {
namespace {

using program::KernelKind;
using program::Phase;
using tensor::Dtype;

class CudaRmsnorm : public ::testing::TestWithParam<Dtype> {};

// Odd widths take the loop, the others every number of warps a row can have.
constexpr std::pair<int, int> kShapes[] = {{1, 1},     {7, 33},    {129, 64},  {5, 512},  {33, 1536},
                                           {65, 2048}, {33, 4096}, {17, 7168}, {3, 16384}};

Tensor scales(int rows) {
  Tensor rstd = Tensor::zeros(Dtype::F32, {rows});
  for (int t = 0; t < rows; ++t) rstd.set(t, 0.5 + 0.01 * (t % 50));
  return rstd;
}

TEST_P(CudaRmsnorm, ForwardAgreesWithTheCpu) {
  PLEAT_NEEDS_GPU();
  const Dtype type = GetParam();
  for (auto [rows, width] : kShapes) {
    Tensor x = Tensor::normal(type, {rows, width}, 1), w = Tensor::normal(type, {width}, 2);
    Tensor y = Tensor::nan(type, {rows, width}), rstd = Tensor::nan(Dtype::F32, {rows});
    expect_agrees(KernelKind::rmsnorm, Phase::Forward, {in(x), in(w), out(y), out(rstd)}, {{"eps", 1e-6}},
                  bound(type, width));
  }
}

TEST_P(CudaRmsnorm, InputGradientAgreesWithTheCpu) {
  PLEAT_NEEDS_GPU();
  const Dtype type = GetParam();
  for (auto [rows, width] : kShapes)
    for (const bool residual : {false, true})
      for (const bool accumulate : {false, true}) {
        Tensor dy = Tensor::normal(type, {rows, width}, 1), x = Tensor::normal(type, {rows, width}, 2);
        Tensor w = Tensor::normal(type, {width}, 3), rstd = scales(rows);
        Tensor dresidual = Tensor::normal(type, {rows, width}, 4);
        Tensor dx = Tensor::normal(type, {rows, width}, 5);
        expect_agrees(KernelKind::rmsnorm, Phase::BackwardInput,
                      {in(dy), in(x), in(w), in(rstd), residual ? in(dresidual) : none(),
                       accumulate ? add(dx) : out(dx)},
                      {}, bound(type, width));
      }
}

TEST_P(CudaRmsnorm, WeightGradientAgreesWithTheCpu) {
  PLEAT_NEEDS_GPU();
  const Dtype type = GetParam();
  for (auto [rows, width] : {std::pair{1, 1}, {7, 33}, {0, 64}, {129, 64}, {1000, 264}, {300, 2048}})
    for (const Dtype sum_type : {Dtype::F32, type})
      for (const bool accumulate : {false, true}) {
        Tensor dy = Tensor::normal(type, {rows, width}, 1), x = Tensor::normal(type, {rows, width}, 2);
        Tensor rstd = scales(rows), dw = Tensor::normal(sum_type, {width}, 5);
        expect_agrees(KernelKind::rmsnorm, Phase::BackwardWeight,
                      {in(dy), in(x), in(rstd), accumulate ? add(dw) : out(dw)}, {}, bound(sum_type, rows));
      }
}

INSTANTIATE_TEST_SUITE_P(Types, CudaRmsnorm, ::testing::Values(Dtype::F32, Dtype::BF16));

}  // namespace
}  // namespace pleat::kernels::testing
