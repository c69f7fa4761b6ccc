#include "cuda/cuda_support.h"

namespace pleat::kernels::testing {
namespace {

using program::KernelKind;
using program::Phase;
using tensor::Dtype;

class CudaSwiglu : public ::testing::TestWithParam<Dtype> {};

TEST_P(CudaSwiglu, AgreesWithTheCpu) {
  PLEAT_NEEDS_GPU();
  const Dtype type = GetParam();
  for (auto [rows, width] : {std::pair{1, 1}, {7, 33}, {129, 64}, {1000, 768}})
    for (const program::AttrSet& attrs :
         {program::AttrSet{{"activation", 0}}, {{"activation", 1}, {"limit", 0.7}, {"alpha", 1.702}}}) {
      Tensor gu = Tensor::normal(type, {rows, 2 * width}, 1), a = Tensor::nan(type, {rows, width});
      expect_agrees(KernelKind::swiglu, Phase::Forward, {in(gu), out(a)}, attrs, bound(type));
      Tensor da = Tensor::normal(type, {rows, width}, 2), dgu = Tensor::nan(type, {rows, 2 * width});
      expect_agrees(KernelKind::swiglu, Phase::BackwardInput, {in(da), in(gu), out(dgu)}, attrs, bound(type));
    }
}

INSTANTIATE_TEST_SUITE_P(Types, CudaSwiglu, ::testing::Values(Dtype::F32, Dtype::BF16));

}  // namespace
}  // namespace pleat::kernels::testing
