#include "cuda/cuda_support.h"

namespace pleat::kernels::testing {
namespace {

using program::AttrSet;
using program::KernelKind;
using program::Phase;
using tensor::Dtype;

class CudaMla : public ::testing::TestWithParam<std::tuple<Dtype, bool>> {};

TEST_P(CudaMla, AgreesWithTheCpu) {
  PLEAT_NEEDS_GPU();
  const auto [type, interleaved] = GetParam();
  for (auto [rows, heads, dn, dr, dv] : {std::tuple{1, 1, 0, 2, 1},
                                         {7, 3, 5, 6, 3},
                                         {33, 4, 64, 32, 64},
                                         {9, 128, 128, 64, 128},
                                         {3, 2, 16, 1024, 8}}) {
    const AttrSet attrs{{"heads", 1.0 * heads},
                        {"nope_dim", 1.0 * dn},
                        {"rope_dim", 1.0 * dr},
                        {"v_dim", 1.0 * dv},
                        {"interleaved", interleaved ? 1.0 : 0.0}};
    const int q_width = heads * (dn + dr), kv_width = heads * (dn + dv), packed = 2 * q_width + heads * dv;
    Tensor q = Tensor::normal(type, {rows, q_width}, 1), kv = Tensor::normal(type, {rows, kv_width}, 2);
    Tensor k_pe = Tensor::normal(type, {rows, dr}, 3), cos_sin = Tensor::normal(Dtype::F32, {rows, dr}, 4);
    Tensor qkv = Tensor::nan(type, {rows, packed});
    expect_agrees(KernelKind::mla_pack, Phase::Forward, {in(q), in(kv), in(k_pe), in(cos_sin), out(qkv)},
                  attrs, bound(type));
    Tensor dqkv = Tensor::normal(type, {rows, packed}, 5), dq = Tensor::nan(type, {rows, q_width});
    Tensor dkv = Tensor::nan(type, {rows, kv_width}), dk_pe = Tensor::nan(type, {rows, dr});
    expect_agrees(KernelKind::mla_pack, Phase::BackwardInput,
                  {in(dqkv), in(cos_sin), out(dq), out(dkv), out(dk_pe)}, attrs, bound(type, heads));
  }
}

INSTANTIATE_TEST_SUITE_P(Types, CudaMla,
                         ::testing::Combine(::testing::Values(Dtype::F32, Dtype::BF16), ::testing::Bool()));

}  // namespace
}  // namespace pleat::kernels::testing
