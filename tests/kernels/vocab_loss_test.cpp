// Cross entropy over pieces of the vocabulary against the kernel for the whole one (itself proved in
// cross_entropy_test.cpp) and against plain loops.
#include <algorithm>

#include "kernels/dense_support.h"

namespace pleat::kernels::testing {
namespace {

using program::KernelKind;
using program::Phase;
using tensor::Dtype;

struct Batch {
  int64_t rows, columns, num_ranks;
  Tensor logits, labels, mask, norm = Tensor::of(Dtype::F64, {1}, {0.125});
  Batch(Dtype dtype, int64_t num_rows, int64_t num_columns, int64_t ranks)
      : rows(num_rows),
        columns(num_columns),
        num_ranks(ranks),
        logits(Tensor::normal(dtype, {num_rows, num_columns * ranks}, 1, 3.0)),
        labels(Tensor::zeros(Dtype::I32, {num_rows})),
        mask(Tensor::zeros(Dtype::U8, {num_rows})) {
    for (int64_t t = 0; t < rows; ++t) {
      labels.set(t, static_cast<double>(t * 7 % (columns * ranks)));
      mask.set(t, t % 5 != 2);
    }
  }
  int64_t at(int64_t t, int64_t rank, int64_t j) const {
    return t * columns * num_ranks + rank * columns + j;
  }
  Tensor piece(const Tensor& whole, int64_t rank) const {
    Tensor out = Tensor::zeros(whole.dtype, {rows, columns});
    for (int64_t t = 0; t < rows; ++t)
      for (int64_t j = 0; j < columns; ++j) out.set(t * columns + j, whole.at(at(t, rank, j)));
    return out;
  }
};

program::AttrSet attrs_of(const Batch& b) {
  return {{"group", 1}, {"vocabulary", static_cast<double>(b.columns * b.num_ranks)}};
}

Tensor coords_of(int64_t place) {
  Tensor coords = Tensor::nan(Dtype::I64, {program::kNumGroups});
  coords.set(1, static_cast<double>(place));
  return coords;
}

Tensor stats_of(Batch& b, int64_t rank, int threads = 2) {
  Tensor piece = b.piece(b.logits, rank), coords = coords_of(rank),
         stats = Tensor::nan(Dtype::F64, {b.rows, 3});
  call(KernelKind::vocab_stats, Phase::Forward, {in(piece), in(b.labels), in(b.mask), in(coords), out(stats)},
       attrs_of(b), threads);
  return stats;
}
Tensor all_stats_of(Batch& b, int threads = 2, bool flat = false) {
  Tensor all = Tensor::nan(Dtype::F64, flat ? std::vector<int64_t>{b.num_ranks * b.rows, 3}
                                            : std::vector<int64_t>{b.num_ranks, b.rows, 3});
  for (int64_t rank = 0; rank < b.num_ranks; ++rank) {
    const Tensor stats = stats_of(b, rank, threads);
    for (int64_t i = 0; i < stats.size(); ++i) all.set(rank * stats.size() + i, stats.at(i));
  }
  return all;
}
void forward(Tensor& all, Tensor& mask, Pass loss, Pass token_loss, int threads = 2) {
  call(KernelKind::vocab_loss, Phase::Forward, {in(all), in(mask), loss, token_loss}, {}, threads);
}
Tensor backward(Batch& b, Tensor& all, int64_t rank, Pass loss, int threads = 2) {
  Tensor piece = b.piece(b.logits, rank), coords = coords_of(rank);
  call(KernelKind::vocab_loss, Phase::BackwardInput,
       {in(all), in(b.labels), in(b.mask), in(b.norm), in(coords), add(piece), loss}, attrs_of(b), threads);
  return piece;
}

// Padding holds anything; it must count for nothing and get no gradient.
TEST(VocabLoss, PaddedColumnsDoNotCount) {
  const int64_t rows = 9, real = 11, columns = 4;
  Batch padded(Dtype::F64, rows, columns, 3);
  for (int64_t t = 0; t < rows; ++t) padded.labels.set(t, static_cast<double>(t % real));
  const program::AttrSet attrs = {{"group", 1}, {"vocabulary", static_cast<double>(real)}};
  Tensor whole = Tensor::zeros(Dtype::F64, {rows, real});
  for (int64_t t = 0; t < rows; ++t)
    for (int64_t v = 0; v < real; ++v) whole.set(t * real + v, padded.logits.at(t * columns * 3 + v));
  Tensor loss = Tensor::nan(Dtype::F64, {2});
  call(KernelKind::cross_entropy, Phase::BackwardInput,
       {in(padded.labels), in(padded.mask), in(padded.norm), add(whole), out(loss)}, {});
  Tensor all = Tensor::nan(Dtype::F64, {3, rows, 3});
  for (int64_t rank = 0; rank < 3; ++rank) {
    Tensor piece = padded.piece(padded.logits, rank), coords = coords_of(rank),
           stats = Tensor::nan(Dtype::F64, {rows, 3});
    call(KernelKind::vocab_stats, Phase::Forward,
         {in(piece), in(padded.labels), in(padded.mask), in(coords), out(stats)}, attrs);
    for (int64_t i = 0; i < stats.size(); ++i) all.set(rank * stats.size() + i, stats.at(i));
  }
  for (int64_t rank = 0; rank < 3; ++rank) {
    Tensor piece = padded.piece(padded.logits, rank), coords = coords_of(rank),
           mine = Tensor::nan(Dtype::F64, {2});
    call(KernelKind::vocab_loss, Phase::BackwardInput,
         {in(all), in(padded.labels), in(padded.mask), in(padded.norm), in(coords), add(piece), out(mine)},
         attrs);
    EXPECT_NEAR(mine.at(0), loss.at(0), 1e-12 * std::abs(loss.at(0)));
    for (int64_t t = 0; t < rows; ++t)
      for (int64_t j = 0; j < columns; ++j) {
        const int64_t v = rank * columns + j;
        EXPECT_NEAR(piece.at(t * columns + j), v < real ? whole.at(t * real + v) : 0.0, 1e-14);
      }
  }
}

TEST(VocabStats, PlainLoops) {
  for (Dtype dtype : {Dtype::F32, Dtype::F64})
    for (auto [rows, columns] : {std::pair<int64_t, int64_t>{0, 3}, {1, 1}, {7, 3}, {33, 1301}}) {
      Batch b(dtype, rows, columns, 3);
      for (int64_t rank = 0; rank < 3; ++rank) {
        const Tensor stats = stats_of(b, rank);
        for (int64_t t = 0; t < rows; ++t) {
          if (b.mask.at(t) == 0) {
            for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(stats.at(t * 3 + i), 0);
            continue;
          }
          double top = b.logits.at(b.at(t, rank, 0)), sum = 0;
          for (int64_t j = 0; j < columns; ++j) top = std::max(top, b.logits.at(b.at(t, rank, j)));
          for (int64_t j = 0; j < columns; ++j) sum += std::exp(b.logits.at(b.at(t, rank, j)) - top);
          const int64_t label = static_cast<int64_t>(b.labels.at(t)) - rank * columns;
          EXPECT_EQ(stats.at(t * 3), top);
          EXPECT_NEAR(stats.at(t * 3 + 1) / sum, 1, dtype == Dtype::F32 ? float_bound(1) : 1e-13);
          EXPECT_EQ(stats.at(t * 3 + 2),
                    label >= 0 && label < columns ? b.logits.at(b.at(t, rank, label)) : 0.0);
        }
      }
    }
}

TEST(VocabLoss, EqualsTheWholeVocabulary) {
  for (Dtype dtype : {Dtype::F32, Dtype::F64})
    for (int64_t ranks : {1, 2, 3, 8})
      for (auto [rows, columns] : {std::pair<int64_t, int64_t>{0, 9}, {1, 1}, {7, 3}, {41, 525}})
        for (bool flat : {false, true}) {
          Batch b(dtype, rows, columns, ranks);
          const double bound = dtype == Dtype::F32 ? float_bound(1) : 1e-12;
          Tensor want_loss = Tensor::nan(Dtype::F64, {2}), want_token = Tensor::nan(dtype, {rows}),
                 want = b.logits;
          call(KernelKind::cross_entropy, Phase::Forward,
               {in(b.logits), in(b.labels), in(b.mask), out(want_loss), out(want_token)});
          Tensor ignored = Tensor::nan(Dtype::F64, {2});
          call(KernelKind::cross_entropy, Phase::BackwardInput,
               {in(b.labels), in(b.mask), in(b.norm), add(want), out(ignored)});

          Tensor all = all_stats_of(b, 2, flat);
          Tensor loss = Tensor::nan(Dtype::F64, {2}), token = Tensor::nan(dtype, {rows});
          forward(all, b.mask, out(loss), out(token));
          EXPECT_NEAR(loss.at(0), want_loss.at(0), bound * (1 + want_loss.at(0)));
          EXPECT_EQ(loss.at(1), want_loss.at(1));
          EXPECT_LE(norm_error(token.numbers(), want_token.numbers()), bound);
          Tensor alone = Tensor::of(Dtype::F64, {2}, {10, 3});
          forward(all, b.mask, add(alone), none());
          EXPECT_EQ(alone.at(0), 10 + loss.at(0));
          EXPECT_EQ(alone.at(1), 3 + loss.at(1));

          for (int64_t rank = 0; rank < ranks; ++rank) {
            Tensor again = Tensor::nan(Dtype::F64, {2}), sum = Tensor::of(Dtype::F64, {2}, {10, 3});
            const Tensor gradient = backward(b, all, rank, out(again));
            EXPECT_TRUE(again == loss);
            EXPECT_LE(norm_error(gradient.numbers(), b.piece(want, rank).numbers()), bound);
            for (int64_t t = 0; t < rows; ++t)
              for (int64_t j = 0; j < columns && b.mask.at(t) == 0; ++j)
                ASSERT_EQ(gradient.at(t * columns + j), 0);
            backward(b, all, rank, add(sum));
            EXPECT_TRUE(sum == alone);
          }
        }
}

TEST(VocabLoss, GradientAgreesWithDifferences) {
  Batch b(Dtype::F64, 6, 5, 2);
  Tensor loss = Tensor::zeros(Dtype::F64, {2});
  const auto numeric = numeric_gradient(b.logits, [&] {
    Tensor all = all_stats_of(b);
    forward(all, b.mask, out(loss), none());
    return 0.125 * loss.at(0);
  });
  const Tensor whole = Tensor::of(Dtype::F64, b.logits.shape, numeric);
  Tensor all = all_stats_of(b);
  for (int64_t rank = 0; rank < 2; ++rank)
    EXPECT_LE(norm_error(backward(b, all, rank, out(loss)).numbers(), b.piece(whole, rank).numbers()), 1e-6);
}

TEST(VocabLoss, FarPiecesMaskedNanAndNanThatCounts) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  Batch b(Dtype::F32, 3, 2, 2);
  b.logits = Tensor::of(Dtype::F32, {3, 4}, {1e4, 0, -1e4, -1e4, nan, nan, nan, nan, 0, 0, 0, 0});
  b.labels = Tensor::of(Dtype::I32, {3}, {2, -100, 3});
  b.mask = Tensor::of(Dtype::U8, {3}, {1, 0, 1});
  b.norm.set(0, 1);
  Tensor all = all_stats_of(b), loss = Tensor::nan(Dtype::F64, {2});
  EXPECT_EQ(backward(b, all, 0, out(loss)).numbers(), (std::vector<double>{1, 0, 0, 0, 0.25, 0.25}));
  EXPECT_EQ(backward(b, all, 1, out(loss)).numbers(), (std::vector<double>{-1, 0, 0, 0, 0.25, -0.75}));
  EXPECT_NEAR(loss.at(0), 2e4 + std::log(4.0), 1e-9);
  EXPECT_EQ(loss.at(1), 2);
  b.logits.set(10, nan);
  all = all_stats_of(b);
  forward(all, b.mask, out(loss), none());
  EXPECT_TRUE(std::isnan(loss.at(0)));
}

TEST(VocabLoss, SameBitsForAnyThreads) {
  for (auto [rows, columns] : {std::pair<int64_t, int64_t>{77, 750}, {9001, 5}})
    expect_same_bits([&, rows = rows, columns = columns](int threads) {
      Batch b(Dtype::F32, rows, columns, 2);
      Tensor all = all_stats_of(b, threads), loss = Tensor::nan(Dtype::F64, {2}), again = loss,
             token = Tensor::nan(Dtype::F32, {rows});
      forward(all, b.mask, out(loss), out(token), threads);
      const Tensor gradient = backward(b, all, 1, out(again), threads);
      return std::vector{all, loss, again, token, gradient};
    });
}

TEST(VocabLoss, RefusesBadLabelsAndShapes) {
  Batch b(Dtype::F32, 4, 5, 2);
  Tensor all = all_stats_of(b), loss = Tensor::zeros(Dtype::F64, {2});
  b.labels.set(3, 10);
  expect_refused([&] { backward(b, all, 0, out(loss)); },
                 "[vocab_loss] label 10 of row 3 is outside the vocabulary of 10");
  b.labels.set(3, -1);
  expect_refused([&] { backward(b, all, 0, out(loss)); }, "[vocab_loss] label -1 of row 3");
  expect_refused([&] { stats_of(b, 0); }, "[vocab_stats] label -1 of row 3");
  b.labels.set(3, 0);
  Tensor few = Tensor::zeros(Dtype::F64, {2, 3, 3}), two = Tensor::zeros(Dtype::F64, {2, 4, 2}),
         narrow = Tensor::zeros(Dtype::F32, {2, 4, 3}), uneven = Tensor::zeros(Dtype::F64, {7, 3}),
         empty = Tensor::zeros(Dtype::F64, {0, 4, 3});
  for (Tensor* bad : {&few, &two, &uneven, &empty})
    expect_refused([&] { forward(*bad, b.mask, out(loss), none()); }, "needed [ranks, 4, 3]");
  expect_refused([&] { backward(b, few, 0, out(loss)); },
                 "[vocab_loss] argument 'all_stats' is [2, 3, 3], needed [ranks, 4, 3]");
  expect_refused([&] { forward(narrow, b.mask, out(loss), none()); },
                 "[vocab_loss] argument 'all_stats' is f32, needed f64");
  Tensor coords = coords_of(0), stats = Tensor::zeros(Dtype::F64, {4, 2}), piece = b.piece(b.logits, 0);
  expect_refused(
      [&] {
        call(KernelKind::vocab_stats, Phase::Forward,
             {in(piece), in(b.labels), in(b.mask), in(coords), out(stats)}, attrs_of(b));
      },
      "[vocab_stats] argument 'stats' is [4, 2], needed [4, 3]");
  expect_refused(
      [&] {
        call(KernelKind::vocab_loss, Phase::BackwardInput,
             {in(all), in(b.labels), in(b.mask), in(b.norm), in(coords), out(piece), out(loss)}, attrs_of(b));
      },
      "argument 'logits' is changed in place");
}

}  // namespace
}  // namespace pleat::kernels::testing
