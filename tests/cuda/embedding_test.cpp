#include <algorithm>

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
    const int64_t mixed = (static_cast<int64_t>(t) * 48271 + 13) % 1000003;
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
          const bool wide = sum_type == Dtype::F32;
          // The sort does not ask for types; it is what takes a sanitizer's time.
          if (only_once() && (pattern != (wide ? 0 : 2) || accumulate != wide ||
                              wide != (type == Dtype::F32) || (count != 7 && count != (wide ? 600 : 333))))
            continue;
          Tensor tokens = tokens_of(pattern, count, vocabulary), dy = Tensor::normal(type, {count, width}, 1);
          Tensor dtable = Tensor::normal(sum_type, {vocabulary, width}, 2);
          expect_agrees(KernelKind::embedding, Phase::BackwardWeight,
                        {in(tokens), in(dy), none(), accumulate ? add(dtable) : out(dtable)}, {},
                        bound(sum_type, count));
        }
}

// Both ways of sorting, whole and in pieces, overwritten and added to.
TEST_P(CudaEmbedding, GradientWithAPaddingTokenAgreesWithTheCpu) {
  PLEAT_NEEDS_GPU();
  const Dtype type = GetParam();
  for (const int count : {500, 70000})
    for (const bool cut : {false, true})
      for (const bool accumulate : {false, true}) {
        if (only_once() && (cut == accumulate || (count == 500) != (type == Dtype::F32))) continue;
        Tensor tokens = tokens_of(2, count, 90), dy = Tensor::normal(type, {count, 64}, 1);
        Tensor dtable = Tensor::normal(Dtype::F32, {cut ? 30 : 90, 64}, 2),
               coords = Tensor::zeros(Dtype::I64, {program::kNumGroups});
        for (const double padding : {0.0, 7.0})
          expect_agrees(
              KernelKind::embedding, Phase::BackwardWeight,
              {in(tokens), in(dy), cut ? in(coords) : none(), accumulate ? add(dtable) : out(dtable)},
              {{"group", 2}, {"padding", padding}}, bound(Dtype::F32, count));
      }
}

TEST_P(CudaEmbedding, GradientOfAPieceAgreesWithTheCpu) {
  PLEAT_NEEDS_GPU();
  const Dtype type = GetParam();
  for (const int place : {0, 1, 2}) {
    if (only_once() && place != (type == Dtype::F32 ? 1 : 2)) continue;
    Tensor tokens = tokens_of(0, 500, 90), dy = Tensor::normal(type, {500, 64}, 1);
    Tensor dtable = Tensor::nan(Dtype::F32, {30, 64}),
           coords = Tensor::zeros(Dtype::I64, {program::kNumGroups});
    coords.set(2, place);
    expect_agrees(KernelKind::embedding, Phase::BackwardWeight, {in(tokens), in(dy), in(coords), out(dtable)},
                  {{"group", 2}}, bound(Dtype::F32, 100));
  }
}

// Counts on both sides of every size of the sort, and keys of one, two and three digits.
TEST_P(CudaEmbedding, GradientOfManyTokensAgreesWithTheCpu) {
  PLEAT_NEEDS_GPU();
  const Dtype type = GetParam();
  for (auto [count, vocabulary, width] : {std::tuple{8192, 511, 9},
                                          {8193, 512, 8},
                                          {16385, 40000, 16},
                                          {32768, 32768, 8},
                                          {32769, 300000, 3},
                                          {65536, 32000, 8},
                                          {65537, 32000, 8}})
    for (const int pattern : {0, 1, 2, 3})
      for (const bool accumulate : {false, true}) {
        // One count for every size of the sort.
        if (only_once() && (pattern != (accumulate ? 2 : 0) || accumulate != (count % 2 == 1))) continue;
        if (only_once() &&
            (type == Dtype::F32 ? count != 8193 && count != 65537 : count != 16385 && count != 65536))
          continue;
        Tensor tokens = tokens_of(pattern, count, vocabulary), dy = Tensor::normal(type, {count, width}, 1);
        Tensor dtable = Tensor::normal(Dtype::F32, {vocabulary, width}, 2);
        expect_agrees(KernelKind::embedding, Phase::BackwardWeight,
                      {in(tokens), in(dy), none(), accumulate ? add(dtable) : out(dtable)}, {},
                      bound(Dtype::F32, count));
      }
}

TEST_P(CudaEmbedding, GradientOfAPieceOfManyTokensAgreesWithTheCpu) {
  PLEAT_NEEDS_GPU();
  const Dtype type = GetParam();
  for (const int count : {9000, 70000})
    for (const int place : {0, 2, 5})  // in the last there are no tokens
      for (const bool accumulate : {false, true}) {
        if (only_once() && (accumulate != (place == 2) ||
                            (type == Dtype::F32 ? count != 9000 : count != 70000) || place == 0))
          continue;
        Tensor tokens = tokens_of(0, count, 9000), dy = Tensor::normal(type, {count, 8}, 1);
        Tensor dtable = Tensor::normal(Dtype::F32, {3000, 8}, 2),
               coords = Tensor::zeros(Dtype::I64, {program::kNumGroups});
        coords.set(1, place);
        expect_agrees(KernelKind::embedding, Phase::BackwardWeight,
                      {in(tokens), in(dy), in(coords), accumulate ? add(dtable) : out(dtable)},
                      {{"group", 1}}, bound(Dtype::F32, count));
      }
}

TEST_P(CudaEmbedding, GradientOfNoTokensIsZero) {
  PLEAT_NEEDS_GPU();
  Tensor tokens = Tensor::zeros(Dtype::I32, {0}), dy = Tensor::zeros(GetParam(), {0, 5});
  Tensor dtable = Tensor::normal(GetParam(), {7, 5}, 1);
  const Tensor before = dtable;
  call_cuda(KernelKind::embedding, Phase::BackwardWeight, {in(tokens), in(dy), none(), add(dtable)});
  EXPECT_EQ(dtable, before);
  call_cuda(KernelKind::embedding, Phase::BackwardWeight, {in(tokens), in(dy), none(), out(dtable)});
  EXPECT_EQ(dtable, Tensor::zeros(GetParam(), {7, 5}));
}

// Four tokens to a row, so that no run crosses a tile: the sums must have the bits of adding one after the
// other.
TEST(CudaEmbeddingOrder, RowsAreSummedInAscendingPosition) {
  PLEAT_NEEDS_GPU();
  for (const int count : {4, 32, 8192, 16384, 32768, 65536, 131072})
    for (const int width : {3, 4}) {
      if (only_once() && (width == 3 || (count != 8192 && count != 131072))) continue;
      const int vocabulary = count / 4;
      Tensor tokens = Tensor::zeros(Dtype::I32, {count}), dy = Tensor::normal(Dtype::F32, {count, width}, 1);
      Tensor want = Tensor::zeros(Dtype::F32, {vocabulary, width}),
             dtable = Tensor::nan(Dtype::F32, {vocabulary, width});
      for (int64_t t = 0; t < count; ++t) {
        const int64_t row = (t * 7919 + 13) % vocabulary;
        tokens.set(t, static_cast<double>(row));
        for (int64_t j = 0; j < width; ++j)
          want.as<float>()[row * width + j] += dy.as<float>()[t * width + j];
      }
      call_cuda(KernelKind::embedding, Phase::BackwardWeight, {in(tokens), in(dy), none(), out(dtable)});
      EXPECT_EQ(dtable, want) << count << " tokens of " << width;
    }
}

// More rows than the zeroing blocks take at a time.
TEST(CudaEmbeddingOrder, UnusedRowsOfAVeryLongTableAreZero) {
  PLEAT_NEEDS_GPU();
  const int64_t rows = only_once() ? 600'000 : 1'200'000, middle = rows / 13 * 8;
  Tensor tokens = Tensor::of(Dtype::I32, {3}, {double(rows - 1), 0, double(middle)}),
         dy = Tensor::of(Dtype::BF16, {3, 1}, {1, 2, 3}), dtable = Tensor::zeros(Dtype::BF16, {rows, 1});
  std::fill(dtable.bytes.begin(), dtable.bytes.end(), std::byte{0xff});
  call_cuda(KernelKind::embedding, Phase::BackwardWeight, {in(tokens), in(dy), none(), out(dtable)});
  EXPECT_EQ(dtable.at(rows - 1), 1);
  EXPECT_EQ(dtable.at(0), 2);
  EXPECT_EQ(dtable.at(middle), 3);
  const auto* numbers = dtable.as<uint16_t>();
  EXPECT_EQ(rows - std::count(numbers, numbers + rows, uint16_t{0}), 3);
}

INSTANTIATE_TEST_SUITE_P(Types, CudaEmbedding, ::testing::Values(Dtype::F32, Dtype::BF16));

}  // namespace
}  // namespace pleat::kernels::testing
