#include "cuda/cuda_support.h"

namespace pleat::kernels::testing {
namespace {

using program::AttrSet;
using program::KernelKind;
using program::Phase;
using tensor::Dtype;

class CudaRows : public ::testing::TestWithParam<Dtype> {};

constexpr std::pair<int, int> kShapes[] = {{1, 1}, {7, 33}, {129, 64}, {65, 2048}, {9, 4104}};

TEST_P(CudaRows, AddRowsAgreesWithTheCpu) {
  PLEAT_NEEDS_GPU();
  const Dtype type = GetParam();
  for (auto [rows, width] : kShapes)
    for (const int with : {0, 1, 2, 4, 7}) {
      Tensor x = Tensor::normal(type, {rows, width}, 1), bias = Tensor::normal(type, {width}, 2);
      Tensor shared = Tensor::normal(type, {rows, width}, 3),
             residual = Tensor::normal(type, {rows, width}, 4);
      Tensor y = Tensor::nan(type, {rows, width});
      expect_agrees(KernelKind::add_rows, Phase::Forward,
                    {in(x), with & 1 ? in(bias) : none(), with & 2 ? in(shared) : none(),
                     with & 4 ? in(residual) : none(), out(y)},
                    {}, bound(type, 4));
    }
  for (auto [rows, width] : {std::pair{0, 8}, {1, 1}, {7, 33}, {1000, 264}})
    for (const Dtype sum_type : {Dtype::F32, type})
      for (const bool accumulate : {false, true}) {
        Tensor dy = Tensor::normal(type, {rows, width}, 1), dbias = Tensor::normal(sum_type, {width}, 2);
        expect_agrees(KernelKind::add_rows, Phase::BackwardWeight,
                      {in(dy), accumulate ? add(dbias) : out(dbias)}, {}, bound(sum_type, rows));
      }
}

TEST_P(CudaRows, TakeRowsAgreesWithTheCpu) {
  PLEAT_NEEDS_GPU();
  const Dtype type = GetParam();
  for (auto [rows, width] : kShapes)
    for (const bool limited : {false, true})
      for (const bool accumulate : {false, true}) {
        Tensor x = Tensor::normal(type, {rows + 3, width}, 1, 100), index = Tensor::zeros(Dtype::I32, {rows});
        for (int r = 0; r < rows; ++r) index.set(r, (r * 7) % (rows + 4) - 1);
        Tensor offsets = Tensor::of(Dtype::I32, {2}, {0, static_cast<double>(rows / 2)});
        Tensor y = Tensor::normal(type, {rows, width}, 2, 100);
        // Rows behind the limit keep the NaN they start with on both sides.
        expect_agrees(KernelKind::take_rows, Phase::Forward,
                      {in(x), in(index), limited ? in(offsets) : none(), accumulate ? add(y) : out(y)}, {},
                      bound(type));
      }
}

TEST(CudaRowsOfNumbers, TakeRowsOfIntegersAgreesWithTheCpu) {
  PLEAT_NEEDS_GPU();
  for (const Dtype type : {Dtype::I32, Dtype::I64, Dtype::U8})
    for (const bool accumulate : {false, true}) {
      Tensor x = Tensor::zeros(type, {40}), index = Tensor::zeros(Dtype::I32, {33}),
             y = Tensor::zeros(type, {33});
      for (int i = 0; i < 40; ++i) x.set(i, i + 1);
      for (int r = 0; r < 33; ++r) index.set(r, 39 - r), y.set(r, r);
      expect_agrees(KernelKind::take_rows, Phase::BackwardInput,
                    {in(x), in(index), none(), accumulate ? add(y) : out(y)}, {}, {});
    }
}

TEST_P(CudaRows, ColumnsAgreeWithTheCpu) {
  PLEAT_NEEDS_GPU();
  const Dtype type = GetParam();
  for (auto [rows, width, begin, count] :
       {std::tuple{1, 1, 0, 1}, {7, 33, 5, 20}, {129, 64, 16, 32}, {65, 2048, 1024, 512}}) {
    Tensor x = Tensor::normal(type, {rows, width}, 1), y = Tensor::nan(type, {rows, count});
    expect_agrees(KernelKind::columns, Phase::Forward, {in(x), out(y)}, {{"begin", 1.0 * begin}},
                  bound(type));
    Tensor b = Tensor::normal(type, {rows, 40}, 3), joined = Tensor::nan(type, {rows, count + 40});
    expect_agrees(KernelKind::columns, Phase::BackwardInput, {in(y), in(b), out(joined)}, {}, bound(type));
  }
}

TEST_P(CudaRows, HeadsAgreeWithTheCpu) {
  PLEAT_NEEDS_GPU();
  const Dtype type = GetParam();
  for (auto [rows, a, b, c, parts] :
       {std::tuple{1, 2, 2, 2, 2}, {7, 6, 3, 0, 3}, {33, 512, 128, 128, 4}, {9, 64, 0, 0, 8}}) {
    const AttrSet attrs{{"a", 1.0 * a}, {"b", 1.0 * b}, {"c", 1.0 * c}, {"parts", 1.0 * parts}};
    const int whole = a + b + c;
    Tensor x = Tensor::normal(type, {rows, whole}, 1), y = Tensor::nan(type, {parts, rows, whole / parts});
    expect_agrees(KernelKind::split_heads, Phase::Forward, {in(x), out(y)}, attrs, bound(type));
    Tensor back = Tensor::nan(type, {rows, whole});
    expect_agrees(KernelKind::merge_heads, Phase::Forward, {in(y), out(back)}, attrs, bound(type));
    EXPECT_EQ(back.bytes, x.bytes);
  }
}

TEST_P(CudaRows, FillZeroAgreesWithTheCpu) {
  PLEAT_NEEDS_GPU();
  Tensor y = Tensor::nan(GetParam(), {33, 7});
  expect_agrees(KernelKind::fill_zero, Phase::Update, {out(y)}, {}, {});
}

INSTANTIATE_TEST_SUITE_P(Types, CudaRows, ::testing::Values(Dtype::F32, Dtype::BF16));

}  // namespace
}  // namespace pleat::kernels::testing
