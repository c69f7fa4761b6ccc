#include "cuda/cuda_support.h"

namespace pleat::kernels::testing {
namespace {

using program::AttrSet;
using program::KernelKind;
using program::Phase;
using tensor::Dtype;

struct Heads {
  int rows, heads, kv_heads, d, r;
};
// Every number of lanes a head can get, partial rotation, and widths that only go one by one.
constexpr Heads kShapes[] = {{1, 1, 1, 2, 2},      {7, 3, 1, 5, 2},     {33, 4, 2, 64, 64},
                             {65, 8, 2, 128, 128}, {17, 4, 4, 192, 64}, {9, 2, 1, 256, 128},
                             {5, 2, 2, 640, 320},  {9, 5, 3, 48, 0},    {300, 32, 4, 128, 128}};

AttrSet attrs_of(const Heads& h, bool interleaved, bool full) {
  return {{"heads", 1.0 * h.heads},
          {"kv_heads", 1.0 * h.kv_heads},
          {"head_dim", 1.0 * h.d},
          {"rotary_dim", 1.0 * h.r},
          {"interleaved", interleaved ? 1.0 : 0.0},
          {"full_norm", full ? 1.0 : 0.0},
          {"eps", 1e-6}};
}

class CudaRope : public ::testing::TestWithParam<std::tuple<Dtype, bool>> {};

TEST(CudaRopeTable, AgreesWithTheCpu) {
  PLEAT_NEEDS_GPU();
  for (auto [rows, half] : {std::pair{1, 1}, {7, 33}, {1000, 64}}) {
    Tensor positions = Tensor::zeros(Dtype::I32, {rows}), inv_freq = Tensor::zeros(Dtype::F64, {half});
    for (int t = 0; t < rows; ++t) positions.set(t, t * 131);
    for (int i = 0; i < half; ++i) inv_freq.set(i, 1.0 / (1 + 17.0 * i));
    Tensor cos_sin = Tensor::nan(Dtype::F32, {rows, 2 * half});
    expect_agrees(KernelKind::rope_table, Phase::Forward, {in(positions), in(inv_freq), out(cos_sin)},
                  {{"scale", 1.25}}, bound(Dtype::F32));
  }
}

// 0: no norm, 1: of each head, 2: over all heads.
TEST_P(CudaRope, ForwardAndInputGradientAgreeWithTheCpu) {
  PLEAT_NEEDS_GPU();
  const auto [type, interleaved] = GetParam();
  for (const Heads& h : kShapes)
    for (const int norm : {0, 1, 2}) {
      const int width = (h.heads + 2 * h.kv_heads) * h.d, norms = norm == 2 ? 2 : h.heads + h.kv_heads;
      const AttrSet attrs = attrs_of(h, interleaved, norm == 2);
      Tensor qkv = Tensor::normal(type, {h.rows, width}, 1), y = Tensor::nan(type, {h.rows, width});
      Tensor cos_sin = Tensor::normal(Dtype::F32, {h.rows, h.r}, 2);
      Tensor q_norm = Tensor::normal(type, {norm == 2 ? h.heads * h.d : h.d}, 3);
      Tensor k_norm = Tensor::normal(type, {norm == 2 ? h.kv_heads * h.d : h.d}, 4);
      Tensor rstd = Tensor::nan(Dtype::F32, {h.rows, norms});
      const Compare allowed = bound(type, h.d * (norm == 2 ? h.heads : 1));
      expect_agrees(KernelKind::qk_rope, Phase::Forward,
                    {in(qkv), in(cos_sin), norm ? in(q_norm) : none(), norm ? in(k_norm) : none(), out(y),
                     norm ? out(rstd) : none()},
                    attrs, allowed);
      Tensor dout = Tensor::normal(type, {h.rows, width}, 5), dqkv = Tensor::nan(type, {h.rows, width});
      expect_agrees(KernelKind::qk_rope, Phase::BackwardInput,
                    {in(dout), in(cos_sin), norm ? in(qkv) : none(), norm ? in(q_norm) : none(),
                     norm ? in(k_norm) : none(), norm ? in(rstd) : none(), out(dqkv)},
                    attrs, allowed);
    }
}

TEST_P(CudaRope, WeightGradientAgreesWithTheCpu) {
  PLEAT_NEEDS_GPU();
  const auto [type, interleaved] = GetParam();
  for (const Heads& h : kShapes)
    for (const bool full : {false, true})
      for (const Dtype sum_type : {Dtype::F32, type})
        for (const bool accumulate : {false, true}) {
          const int width = (h.heads + 2 * h.kv_heads) * h.d;
          Tensor qkv = Tensor::normal(type, {h.rows, width}, 1),
                 dout = Tensor::normal(type, {h.rows, width}, 2);
          Tensor cos_sin = Tensor::normal(Dtype::F32, {h.rows, h.r}, 3);
          Tensor rstd = Tensor::normal(Dtype::F32, {h.rows, full ? 2 : h.heads + h.kv_heads}, 4);
          Tensor dq = Tensor::normal(sum_type, {full ? h.heads * h.d : h.d}, 5);
          Tensor dk = Tensor::normal(sum_type, {full ? h.kv_heads * h.d : h.d}, 6);
          expect_agrees(KernelKind::qk_rope, Phase::BackwardWeight,
                        {in(dout), in(cos_sin), in(qkv), in(rstd), accumulate ? add(dq) : out(dq),
                         accumulate ? add(dk) : out(dk)},
                        attrs_of(h, interleaved, full), bound(sum_type, h.rows * h.heads));
        }
}

// Against the CPU's two kernels; the shapes include some that are not held and go in two passes.
TEST_P(CudaRope, BothGradientsInOnePassAgreeWithTheCpu) {
  PLEAT_NEEDS_GPU();
  const auto [type, interleaved] = GetParam();
  std::vector<Heads> shapes(std::begin(kShapes), std::end(kShapes));
  shapes.insert(shapes.end(), {{0, 4, 2, 64, 64},
                               {2300, 2, 1, 64, 32},
                               {130, 16, 16, 128, 128},
                               {37, 40, 8, 128, 64},
                               {21, 64, 2, 64, 64}});
  for (const Heads& h : shapes)
    for (const bool full : {false, true})
      for (const Dtype sum_type : {Dtype::F32, type})
        for (const bool accumulate : {false, true}) {
          SCOPED_TRACE("rows " + std::to_string(h.rows) + " heads " + std::to_string(h.heads) + " width " +
                       std::to_string(h.d) + " full " + std::to_string(full));
          const int width = (h.heads + 2 * h.kv_heads) * h.d, norms = full ? 2 : h.heads + h.kv_heads;
          const int q_size = full ? h.heads * h.d : h.d, k_size = full ? h.kv_heads * h.d : h.d;
          Tensor qkv = Tensor::normal(type, {h.rows, width}, 1),
                 dout = Tensor::normal(type, {h.rows, width}, 2),
                 cos_sin = Tensor::normal(Dtype::F32, {h.rows, h.r}, 3),
                 q_norm = Tensor::normal(type, {q_size}, 4), k_norm = Tensor::normal(type, {k_size}, 5),
                 rstd = Tensor::normal(Dtype::F32, {h.rows, norms}, 6);
          Tensor dqkv = Tensor::nan(type, {h.rows, width}), dq = Tensor::normal(sum_type, {q_size}, 7),
                 dk = Tensor::normal(sum_type, {k_size}, 8);
          expect_agrees(KernelKind::qk_rope_back, Phase::BackwardInput,
                        {in(dout), in(cos_sin), in(qkv), in(q_norm), in(k_norm), in(rstd), out(dqkv),
                         accumulate ? add(dq) : out(dq), accumulate ? add(dk) : out(dk)},
                        attrs_of(h, interleaved, full), bound(type, h.rows * h.heads * h.d),
                        {{KernelKind::qk_rope, Phase::BackwardInput, {0, 1, 2, 3, 4, 5, 6}},
                         {KernelKind::qk_rope, Phase::BackwardWeight, {0, 1, 2, 5, 7, 8}}});
        }
}

INSTANTIATE_TEST_SUITE_P(Types, CudaRope,
                         ::testing::Combine(::testing::Values(Dtype::F32, Dtype::BF16), ::testing::Bool()));

}  // namespace
}  // namespace pleat::kernels::testing
