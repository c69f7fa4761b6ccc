#include "kernels/dense_support.h"

namespace pleat::kernels::testing {
namespace {

using program::KernelKind;
using program::Phase;
using tensor::Dtype;

void forward(Tensor& tokens, Tensor& table, Tensor& y, int threads = 2) {
  call(KernelKind::embedding, Phase::Forward, {in(tokens), in(table), none(), out(y)}, {}, threads);
}
void backward(Tensor& tokens, Tensor& dy, Pass dtable, int threads = 2) {
  call(KernelKind::embedding, Phase::BackwardWeight, {in(tokens), in(dy), none(), dtable}, {}, threads);
}
Tensor some_tokens(int64_t count, int64_t vocabulary) {
  Tensor t = Tensor::zeros(Dtype::I32, {count});
  for (int64_t i = 0; i < count; ++i) t.set(i, static_cast<double>(i * i % vocabulary));
  return t;
}

class Embedding : public ::testing::TestWithParam<Dtype> {};
INSTANTIATE_TEST_SUITE_P(Types, Embedding, ::testing::Values(Dtype::F32, Dtype::F64));

TEST_P(Embedding, LooksRowsUpAndSumsThemBack) {
  const int64_t num_tokens = 301, vocabulary = 17, width = 45;
  Tensor tokens = some_tokens(num_tokens, vocabulary),
         table = Tensor::normal(GetParam(), {vocabulary, width}, 1);
  Tensor y = Tensor::nan(GetParam(), {num_tokens, width});
  forward(tokens, table, y);
  for (int64_t t = 0; t < num_tokens; ++t)
    for (int64_t j = 0; j < width; ++j)
      ASSERT_EQ(y.at(t * width + j), table.at(static_cast<int64_t>(tokens.at(t)) * width + j));

  Tensor dy = Tensor::normal(GetParam(), {num_tokens, width}, 2);
  std::vector<double> want(static_cast<size_t>(vocabulary * width));
  for (int64_t t = 0; t < num_tokens; ++t)
    for (int64_t j = 0; j < width; ++j)
      want[static_cast<size_t>(tokens.at(t)) * width + static_cast<size_t>(j)] += dy.at(t * width + j);
  const double bound = GetParam() == Dtype::F32 ? float_bound(num_tokens) : 1e-14;
  Tensor fresh = Tensor::nan(GetParam(), {vocabulary, width});
  backward(tokens, dy, out(fresh));
  EXPECT_LE(norm_error(fresh.numbers(), want), bound);
  // Squares modulo 17 never give 3: the row must be zero, not what was there.
  for (int64_t j = 0; j < width; ++j) EXPECT_EQ(fresh.at(3 * width + j), 0.0);

  Tensor sum = Tensor::normal(GetParam(), {vocabulary, width}, 3);
  for (int64_t i = 0; i < sum.size(); ++i) want[static_cast<size_t>(i)] += sum.at(i);
  backward(tokens, dy, add(sum));
  EXPECT_LE(norm_error(sum.numbers(), want), bound);
}

TEST(EmbeddingKernel, GradientAgreesWithDifferences) {
  Tensor tokens = Tensor::of(Dtype::I32, {5}, {2, 0, 2, 2, 1}), table = Tensor::normal(Dtype::F64, {4, 3}, 1);
  Tensor dy = Tensor::normal(Dtype::F64, {5, 3}, 2), y = Tensor::zeros(Dtype::F64, {5, 3});
  const auto f = [&] {
    forward(tokens, table, y);
    return dot(y, dy);
  };
  const std::vector<double> numeric = numeric_gradient(table, f);
  Tensor dtable = Tensor::nan(Dtype::F64, {4, 3});
  backward(tokens, dy, out(dtable));
  EXPECT_LE(norm_error(dtable.numbers(), numeric), 1e-6);
}

TEST(EmbeddingKernel, SameBitsForAnyThreads) {
  Tensor tokens = some_tokens(700, 29), dy = Tensor::normal(Dtype::F32, {700, 130}, 4);
  expect_same_bits([&](int threads) {
    Tensor dtable = Tensor::nan(Dtype::F32, {29, 130});
    backward(tokens, dy, out(dtable), threads);
    return std::vector{dtable};
  });
}

// A row of a padding token: zero where the table is overwritten, untouched where it is added to; all others
// as without one.
TEST_P(Embedding, ThePaddingTokensRowGetsNoGradient) {
  const int64_t num_tokens = 60, vocabulary = 17, width = 5, padding = 4;
  Tensor tokens = some_tokens(num_tokens, vocabulary),
         dy = Tensor::normal(GetParam(), {num_tokens, width}, 2);
  for (const bool accumulate : {false, true}) {
    Tensor plain = Tensor::normal(GetParam(), {vocabulary, width}, 3),
           padded = Tensor::normal(GetParam(), {vocabulary, width}, 3),
           before = Tensor::normal(GetParam(), {vocabulary, width}, 3);
    backward(tokens, dy, accumulate ? add(plain) : out(plain));
    call(KernelKind::embedding, Phase::BackwardWeight,
         {in(tokens), in(dy), none(), accumulate ? add(padded) : out(padded)}, {{"padding", double(padding)}},
         2);
    for (int64_t i = 0; i < vocabulary * width; ++i) {
      const bool is_padding = i / width == padding;
      EXPECT_EQ(padded.at(i), is_padding ? (accumulate ? before.at(i) : 0.0) : plain.at(i)) << i;
      EXPECT_TRUE(!is_padding || plain.at(i) != (accumulate ? before.at(i) : 0.0)) << i;
    }
  }
}

// In the second piece of the vocabulary the token has another row.
TEST(EmbeddingKernel, ThePaddingTokenIsFoundInAPieceOfTheTable) {
  Tensor tokens = Tensor::of(Dtype::I32, {4}, {5, 6, 5, 1}), dy = Tensor::normal(Dtype::F32, {4, 3}, 2);
  Tensor dtable = Tensor::nan(Dtype::F32, {4, 3}), coords = Tensor::zeros(Dtype::I64, {program::kNumGroups});
  coords.set(1, 1);
  call(KernelKind::embedding, Phase::BackwardWeight, {in(tokens), in(dy), in(coords), out(dtable)},
       {{"group", 1}, {"padding", 5}}, 1);
  for (int64_t j = 0; j < 3; ++j) {
    EXPECT_EQ(dtable.at(3 + j), 0.0);
    EXPECT_EQ(dtable.at(6 + j), dy.at(3 + j));
  }
}

TEST(EmbeddingKernel, NoTokens) {
  Tensor tokens = Tensor::zeros(Dtype::I32, {0}), dy = Tensor::zeros(Dtype::F32, {0, 4});
  Tensor dtable = Tensor::nan(Dtype::F32, {3, 4});
  backward(tokens, dy, out(dtable));
  for (double v : dtable.numbers()) EXPECT_EQ(v, 0.0);
}

// Place 1 of group 3 in all that follows; other groups hold numbers that must not be taken.
Tensor coords_of(int64_t place) {
  Tensor coords = Tensor::zeros(Dtype::I64, {program::kNumGroups});
  for (int64_t i = 0; i < coords.size(); ++i) coords.set(i, static_cast<double>(7 + i));
  coords.set(3, static_cast<double>(place));
  return coords;
}
const program::AttrSet kGroup = {{"group", 3}};

TEST_P(Embedding, PiecesOfTheVocabularySumToTheWhole) {
  const int64_t num_tokens = 203, piece = 5, num_pieces = 4, vocabulary = piece * num_pieces, width = 37;
  Tensor tokens = some_tokens(num_tokens, vocabulary - 2),
         table = Tensor::normal(GetParam(), {vocabulary, width}, 1);
  Tensor dy = Tensor::normal(GetParam(), {num_tokens, width}, 2),
         y = Tensor::nan(GetParam(), {num_tokens, width});
  Tensor dtable = Tensor::nan(GetParam(), {vocabulary, width});
  forward(tokens, table, y);
  backward(tokens, dy, out(dtable));
  std::vector<double> sum(static_cast<size_t>(y.size()));
  for (int64_t c = 0; c < num_pieces; ++c) {
    Tensor coords = coords_of(c), part = Tensor::nan(GetParam(), {piece, width}), dpart = part;
    for (int64_t i = 0; i < part.size(); ++i) part.set(i, table.at(c * piece * width + i));
    Tensor out_part = Tensor::nan(GetParam(), {num_tokens, width});
    call(KernelKind::embedding, Phase::Forward, {in(tokens), in(part), in(coords), out(out_part)}, kGroup);
    for (int64_t i = 0; i < y.size(); ++i) {
      const int64_t owner = static_cast<int64_t>(tokens.at(i / width)) / piece;
      ASSERT_EQ(out_part.at(i), owner == c ? y.at(i) : 0.0);
      sum[static_cast<size_t>(i)] += out_part.at(i);
    }
    call(KernelKind::embedding, Phase::BackwardWeight, {in(tokens), in(dy), in(coords), out(dpart)}, kGroup);
    for (int64_t i = 0; i < part.size(); ++i) ASSERT_EQ(dpart.at(i), dtable.at(c * piece * width + i));
    call(KernelKind::embedding, Phase::BackwardWeight, {in(tokens), in(dy), in(coords), add(dpart)}, kGroup);
    for (int64_t i = 0; i < part.size(); ++i)
      ASSERT_NEAR(dpart.at(i), 2 * dtable.at(c * piece * width + i), 1e-4);
  }
  EXPECT_EQ(sum, y.numbers());
}

TEST(EmbeddingKernel, RefusesBadCoords) {
  Tensor tokens = Tensor::of(Dtype::I32, {2}, {0, 9}), table = Tensor::normal(Dtype::F32, {3, 4}, 1);
  Tensor y = Tensor::zeros(Dtype::F32, {2, 4}), coords = coords_of(1), few = Tensor::zeros(Dtype::I64, {2});
  const auto run = [&](Tensor& where, program::AttrSet attrs) {
    call(KernelKind::embedding, Phase::Forward, {in(tokens), in(table), in(where), out(y)}, std::move(attrs));
  };
  expect_refused([&] { run(few, kGroup); }, "[embedding] argument 'coords' is [2], needed [20]");
  expect_refused([&] { run(tokens, kGroup); }, "[embedding] argument 'coords' is i32, needed i64");
  expect_refused([&] { run(coords, {}); }, "stage attribute 'group' is missing");
  expect_refused([&] { run(coords, {{"group", 20}}); }, "[embedding] attribute 'group' is 20");
  Tensor before_first = coords_of(-1);
  expect_refused([&] { run(before_first, kGroup); }, "[embedding] the place in group 3 is -1");
  tokens.set(1, -2);
  expect_refused([&] { run(coords, kGroup); }, "token -2 at position 1 is outside the vocabulary");
}

TEST(EmbeddingKernel, RefusesBadArguments) {
  Tensor tokens = Tensor::of(Dtype::I32, {2}, {1, 3}), table = Tensor::normal(Dtype::F32, {3, 4}, 1);
  Tensor y = Tensor::zeros(Dtype::F32, {2, 4}), narrow = Tensor::zeros(Dtype::F32, {2, 5});
  Tensor negative = Tensor::of(Dtype::I32, {2}, {0, -1});
  expect_refused([&] { forward(tokens, table, y); }, "token 3 at position 1 is outside the vocabulary of 3");
  expect_refused([&] { backward(negative, y, out(table)); }, "token -1 at position 1");
  expect_refused([&] { forward(tokens, table, narrow); },
                 "[embedding] argument 'y' is [2, 5], needed [2, 4]");
  Tensor wide = Tensor::zeros(Dtype::F64, {2, 4});
  expect_refused([&] { forward(tokens, table, wide); }, "[embedding] argument 'y' is f64, needed f32");
}

}  // namespace
}  // namespace pleat::kernels::testing
