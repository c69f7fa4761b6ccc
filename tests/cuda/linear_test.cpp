#include "cuda/cuda_support.h"

namespace pleat::kernels::testing {
namespace {

using program::KernelKind;
using program::Phase;
using tensor::Dtype;

class CudaLinear : public ::testing::TestWithParam<std::pair<Dtype, Dtype>> {};

TEST_P(CudaLinear, AgreesWithTheCpu) {
  PLEAT_NEEDS_GPU();
  const auto [type, grad] = GetParam();
  struct Size {
    int rows, in, out;
  };
  for (const Size s : {Size{1, 8, 8}, {17, 64, 24}, {130, 72, 200}, {512, 256, 384}}) {
    SCOPED_TRACE(::testing::Message() << s.rows << " x " << s.in << " -> " << s.out);
    Tensor x = Tensor::normal(type, {s.rows, s.in}, 1), w = Tensor::normal(type, {s.out, s.in}, 2);
    Tensor bias = Tensor::normal(type, {s.out}, 3), residual = Tensor::normal(type, {s.rows, s.out}, 4);
    Tensor y = Tensor::nan(type, {s.rows, s.out});
    for (int what = 0; what < 4; ++what)
      expect_agrees(KernelKind::linear, Phase::Forward,
                    {in(x), in(w), what & 1 ? in(bias) : none(), what & 2 ? in(residual) : none(), out(y)},
                    {}, bound(type, s.in));
    Tensor dy = Tensor::normal(type, {s.rows, s.out}, 5), dx = Tensor::nan(type, {s.rows, s.in});
    expect_agrees(KernelKind::linear, Phase::BackwardInput, {in(dy), in(w), out(dx)}, {}, bound(type, s.out));
    Tensor more = Tensor::normal(type, {s.rows, s.in}, 6);
    expect_agrees(KernelKind::linear, Phase::BackwardInput, {in(dy), in(w), add(more)}, {},
                  bound(type, s.out));
    Tensor dw = Tensor::nan(grad, {s.out, s.in}), db = Tensor::nan(grad, {s.out});
    expect_agrees(KernelKind::linear, Phase::BackwardWeight, {in(dy), in(x), out(dw), out(db)}, {},
                  bound(grad, s.rows));
    expect_agrees(KernelKind::linear, Phase::BackwardWeight, {in(dy), in(x), add(dw), add(db)}, {},
                  bound(grad, s.rows));
    expect_agrees(KernelKind::linear, Phase::BackwardWeight, {in(dy), in(x), out(dw), none()}, {},
                  bound(grad, s.rows));
  }
}

INSTANTIATE_TEST_SUITE_P(Types, CudaLinear,
                         ::testing::Values(std::pair{Dtype::F32, Dtype::F32},
                                           std::pair{Dtype::BF16, Dtype::F32},
                                           std::pair{Dtype::BF16, Dtype::BF16}));

}  // namespace
}  // namespace pleat::kernels::testing
