#include "cuda/cuda_support.h"

namespace pleat::kernels::testing {
namespace {

using program::KernelKind;
using program::Phase;
using tensor::Dtype;

class CudaEmbedding : public ::testing::TestWithParam<Dtype> {};

// How tokens fall on the rows: evenly, all on one row, half on one row, in long runs.
Tensor tokens_of(int pattern, int count, int vocabulary) {
  Tensor tokens = Tensor::zeros(Dtype::I32, {count});
  for (int t = 0; t < count; ++t) {
    const int64_t mixed = (static_cast<int64_t>(t) * 7919 + 13) % 10007;
    const int64_t token = pattern == 0   ? mixed % vocabulary
                          : pattern == 1 ? vocabulary - 1
                          : pattern == 2 ? (t % 2 ? 0 : mixed % vocabulary)
                                         : (t / 45) % vocabulary;
    tokens.set(t, static_cast<double>(token));
  }
  return tokens;
}

constexpr std::tuple<int, int, int> kShapes[] = {
    {1, 1, 1}, {7, 5, 33}, {129, 300, 64}, {600, 90, 40}, {333, 64, 2048}};

TEST_P(CudaEmbedding, ForwardAgreesWithTheCpu) {
  PLEAT_NEEDS_GPU();
  const Dtype type = GetParam();
  for (auto [count, vocabulary, width] : kShapes)
    for (const bool cut : {false, true}) {
      Tensor tokens = tokens_of(0, count, cut ? 2 * vocabulary : vocabulary);
      Tensor table = Tensor::normal(type, {vocabulary, width}, 1), y = Tensor::nan(type, {count, width});
      Tensor coords = Tensor::zeros(Dtype::I64, {program::kNumGroups});
      coords.set(1, 1);
      expect_agrees(KernelKind::embedding, Phase::Forward,
                    {in(tokens), in(table), cut ? in(coords) : none(), out(y)}, {{"group", 1}}, bound(type));
    }
}

TEST_P(CudaEmbedding, GradientAgreesWithTheCpu) {
  PLEAT_NEEDS_GPU();
  const Dtype type = GetParam();
  for (auto [count, vocabulary, width] : kShapes)
    for (const int pattern : {0, 1, 2, 3})
      for (const Dtype sum_type : {Dtype::F32, Dtype::BF16})
        for (const bool accumulate : {false, true}) {
          Tensor tokens = tokens_of(pattern, count, vocabulary), dy = Tensor::normal(type, {count, width}, 1);
          Tensor dtable = Tensor::normal(sum_type, {vocabulary, width}, 2);
          expect_agrees(KernelKind::embedding, Phase::BackwardWeight,
                        {in(tokens), in(dy), none(), accumulate ? add(dtable) : out(dtable)}, {},
                        bound(sum_type, count));
        }
}

TEST_P(CudaEmbedding, GradientOfAPieceAgreesWithTheCpu) {
  PLEAT_NEEDS_GPU();
  const Dtype type = GetParam();
  for (const int place : {0, 1, 2}) {
    Tensor tokens = tokens_of(0, 500, 90), dy = Tensor::normal(type, {500, 64}, 1);
    Tensor dtable = Tensor::nan(Dtype::F32, {30, 64}),
           coords = Tensor::zeros(Dtype::I64, {program::kNumGroups});
    coords.set(2, place);
    expect_agrees(KernelKind::embedding, Phase::BackwardWeight, {in(tokens), in(dy), in(coords), out(dtable)},
                  {{"group", 2}}, bound(Dtype::F32, 100));
  }
}

INSTANTIATE_TEST_SUITE_P(Types, CudaEmbedding, ::testing::Values(Dtype::F32, Dtype::BF16));

}  // namespace
}  // namespace pleat::kernels::testing
