#include "cuda/cuda_support.h"

#include <memory>

#include "device/cuda/cuda.h"
#include "kernels/contract.h"
#include "kernels/rmsnorm/rmsnorm_cuda.h"

namespace pleat::kernels::testing {
namespace {

using program::KernelKind;
using program::Phase;
using tensor::Dtype;

class CudaRmsnorm : public ::testing::TestWithParam<Dtype> {};

// Odd widths take the loop, the others every number of warps a row can have; the last ones give a team
// several rows.
constexpr std::pair<int, int> kShapes[] = {{1, 1},     {7, 33},    {129, 64},    {5, 512},   {5, 1024},
                                           {33, 1536}, {65, 2048}, {33, 4096},   {17, 7168}, {3, 16384},
                                           {2, 32768}, {9000, 64}, {2500, 2048}, {600, 7168}};

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

// Both gradients in one pass: the same numbers, dw summed in another order.
TEST_P(CudaRmsnorm, BothGradientsAgreeWithTheirOwnKernels) {
  PLEAT_NEEDS_GPU();
  const Dtype type = GetParam();
  for (auto [rows, width] : kShapes) {
    Tensor dy = Tensor::normal(type, {rows, width}, 1), x = Tensor::normal(type, {rows, width}, 2);
    Tensor w = Tensor::normal(type, {width}, 3), rstd = scales(rows);
    Tensor dresidual = Tensor::normal(type, {rows, width}, 4), dx = Tensor::nan(type, {rows, width});
    Tensor dw = Tensor::normal(Dtype::F32, {width}, 5), fused_dx = dx, fused_dw = dw;
    call_cuda(KernelKind::rmsnorm, Phase::BackwardInput,
              {in(dy), in(x), in(w), in(rstd), in(dresidual), out(dx)});
    call_cuda(KernelKind::rmsnorm, Phase::BackwardWeight, {in(dy), in(x), in(rstd), add(dw)});
    device::cuda::Lane lane;
    std::vector<std::unique_ptr<device::cuda::Memory>> memory;
    std::vector<Arg> args;
    Tensor* const tensors[] = {&dy, &x, &w, &rstd, &dresidual, &fused_dx, &fused_dw};
    for (Tensor* t : tensors) {
      const auto bytes = static_cast<int64_t>(t->bytes.size());
      memory.push_back(std::make_unique<device::cuda::Memory>(bytes));
      lane.copy_in(memory.back()->data(), t->bytes.data(), bytes);
      const auto access = t == &fused_dx   ? program::Access::Write
                          : t == &fused_dw ? program::Access::Update
                                           : program::Access::Read;
      args.push_back({memory.back()->data(), t->dtype, t->shape, access, true});
    }
    const program::AttrSet none;
    Invocation call{args, &none, nullptr};
    name_arguments(args, KernelKind::rmsnorm_back, Phase::BackwardInput);
    device::cuda::Memory scratch(scratch_of(KernelKind::rmsnorm_back, Phase::BackwardInput, call, {}));
    call.scratch = {scratch.data(), static_cast<size_t>(scratch.size())};
    const CudaLaunch launch = prepare_rmsnorm_backward(call, lane);
    ASSERT_TRUE(launch);
    launch();
    for (size_t i : {size_t{5}, size_t{6}})
      lane.copy_out(tensors[i]->bytes.data(), args[i].data, static_cast<int64_t>(tensors[i]->bytes.size()));
    lane.synchronize();
    EXPECT_LE(norm_error(fused_dx.numbers(), dx.numbers()), bound(type, width).norm)
        << rows << " x " << width;
    EXPECT_LE(norm_error(fused_dw.numbers(), dw.numbers()), bound(Dtype::F32, rows).norm);
  }
}

INSTANTIATE_TEST_SUITE_P(Types, CudaRmsnorm, ::testing::Values(Dtype::F32, Dtype::BF16));

}  // namespace
}  // namespace pleat::kernels::testing
