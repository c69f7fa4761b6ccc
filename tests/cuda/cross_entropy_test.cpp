#include "cuda/cuda_support.h"

#include <algorithm>
#include <cmath>

namespace pleat::kernels::testing {
namespace {

using program::AttrSet;
using program::KernelKind;
using program::Phase;
using tensor::Dtype;

class CudaCrossEntropy : public ::testing::TestWithParam<Dtype> {};

// For the gradient: rows held in registers, in the shared memory of clusters, and rows that
// are read twice because of their width or their length. Odd widths begin at all places of a 16-byte unit.
constexpr std::pair<int, int> kShapes[] = {{1, 1},      {7, 33},    {33, 1000}, {9, 8192},
                                           {9, 8201},   {5, 32000}, {5, 50304}, {3, 100352},
                                           {2, 201088}, {9, 50257}, {1, 300000}};

struct Rows {
  Tensor labels, mask;
};
Rows rows_of(int rows, int vocabulary) {
  Rows r{Tensor::zeros(Dtype::I32, {rows}), Tensor::zeros(Dtype::U8, {rows})};
  for (int t = 0; t < rows; ++t) r.labels.set(t, (t * 977 + 5) % vocabulary), r.mask.set(t, t % 5 != 3);
  return r;
}

TEST_P(CudaCrossEntropy, LossAgreesWithTheCpu) {
  PLEAT_NEEDS_GPU();
  const Dtype type = GetParam();
  for (auto [rows, vocabulary] : kShapes)
    for (const bool accumulate : {false, true}) {
      Rows r = rows_of(rows, vocabulary);
      Tensor logits = Tensor::normal(type, {rows, vocabulary}, 1, 3),
             loss = Tensor::normal(Dtype::F64, {2}, 2);
      Tensor token_loss = Tensor::nan(Dtype::F32, {rows});
      expect_agrees(KernelKind::cross_entropy, Phase::Forward,
                    {in(logits), in(r.labels), in(r.mask), accumulate ? add(loss) : out(loss),
                     accumulate ? none() : out(token_loss)},
                    {}, bound(Dtype::F32, vocabulary));
    }
}

TEST_P(CudaCrossEntropy, GradientAgreesWithTheCpu) {
  PLEAT_NEEDS_GPU();
  const Dtype type = GetParam();
  for (auto [rows, vocabulary] : kShapes)
    for (const bool accumulate : {false, true}) {
      Rows r = rows_of(rows, vocabulary);
      Tensor logits = Tensor::normal(type, {rows, vocabulary}, 1, 3),
             loss = Tensor::normal(Dtype::F64, {2}, 2);
      Tensor norm = Tensor::of(Dtype::F64, {1}, {0.125});
      expect_agrees(KernelKind::cross_entropy, Phase::BackwardInput,
                    {in(r.labels), in(r.mask), in(norm), add(logits), accumulate ? add(loss) : out(loss)}, {},
                    bound(type, vocabulary));
    }
}

// More rows than the device has blocks, so that every slot of shared memory is used again, some after a
// masked row.
TEST_P(CudaCrossEntropy, ManyLongRowsAgreeWithTheCpu) {
  PLEAT_NEEDS_GPU();
  const Dtype type = GetParam();
  for (auto [rows, vocabulary] : {std::pair{1100, 16400},
                                  {700, 1003},
                                  {420, 32768},
                                  {420, 8199},
                                  {280, 50304},
                                  {140, 100352},
                                  {100, 151936},
                                  {100, 80000}}) {
    if (only_once() && vocabulary != (type == Dtype::F32 ? 80000 : 50304)) continue;
    Rows r = rows_of(rows, vocabulary);
    for (int t = rows / 2; t < rows / 2 + 6; ++t) r.mask.set(t, 0);
    Tensor logits = Tensor::normal(type, {rows, vocabulary}, 1, 3), loss = Tensor::nan(Dtype::F64, {2});
    expect_agrees(KernelKind::cross_entropy, Phase::Forward,
                  {in(logits), in(r.labels), in(r.mask), out(loss), none()}, {},
                  bound(Dtype::F32, vocabulary));
    Tensor norm = Tensor::of(Dtype::F64, {1}, {0.125});
    expect_agrees(KernelKind::cross_entropy, Phase::BackwardInput,
                  {in(r.labels), in(r.mask), in(norm), add(logits), out(loss)}, {}, bound(type, vocabulary));
  }
}

TEST_P(CudaCrossEntropy, InfiniteLogitsCountAsNothing) {
  PLEAT_NEEDS_GPU();
  const Dtype type = GetParam();
  for (const int vocabulary : {1000, 32768, 50257, 50304}) {
    Rows r = rows_of(3, vocabulary);
    Tensor logits = Tensor::normal(type, {3, vocabulary}, 1), loss = Tensor::nan(Dtype::F64, {2});
    // Whole runs of a warp, and all of a lane's first numbers.
    for (int t = 0; t < 3; ++t)
      for (int j = 0; j < vocabulary; ++j)
        if ((j < vocabulary / 8 || j % 64 < 8) && j != r.labels.at(t))
          logits.set(static_cast<int64_t>(t) * vocabulary + j, -INFINITY);
    expect_agrees(KernelKind::cross_entropy, Phase::Forward,
                  {in(logits), in(r.labels), in(r.mask), out(loss), none()}, {},
                  bound(Dtype::F32, vocabulary));
    Tensor norm = Tensor::of(Dtype::F64, {1}, {1});
    expect_agrees(KernelKind::cross_entropy, Phase::BackwardInput,
                  {in(r.labels), in(r.mask), in(norm), add(logits), out(loss)}, {}, bound(type, vocabulary));
  }
}

// Wherever it stands, in a row as it is read by every kernel; the rows around it keep their losses.
TEST_P(CudaCrossEntropy, NaNAndRowsOfNothingMakeTheirLossNaN) {
  PLEAT_NEEDS_GPU();
  const Dtype type = GetParam();
  for (const int vocabulary : {33, 1000, 8192, 16400, 50257, 50304, 100352})
    for (const int place : {0, vocabulary / 2, vocabulary - 1, -1}) {
      if (only_once() && place > 0) continue;
      Rows r = rows_of(3, vocabulary);
      Tensor logits = Tensor::normal(type, {3, vocabulary}, 1), loss = Tensor::zeros(Dtype::F64, {2});
      if (place >= 0) logits.set(vocabulary + place, std::nan(""));
      for (int j = 0; j < vocabulary && place < 0; ++j) logits.set(vocabulary + j, -INFINITY);
      Tensor token_loss = Tensor::zeros(Dtype::F32, {3});
      call_cuda(KernelKind::cross_entropy, Phase::Forward,
                {in(logits), in(r.labels), in(r.mask), out(loss), out(token_loss)});
      EXPECT_TRUE(std::isfinite(token_loss.at(0)) && std::isfinite(token_loss.at(2))) << vocabulary;
      EXPECT_TRUE(std::isnan(token_loss.at(1)) && std::isnan(loss.at(0))) << vocabulary << " at " << place;
      Tensor norm = Tensor::of(Dtype::F64, {1}, {1});
      loss.set(0, 0);
      call_cuda(KernelKind::cross_entropy, Phase::BackwardInput,
                {in(r.labels), in(r.mask), in(norm), add(logits), out(loss)});
      EXPECT_TRUE(std::isnan(loss.at(0))) << vocabulary << " at " << place;
      EXPECT_TRUE(std::isfinite(logits.at(0)) && std::isfinite(logits.at(2 * vocabulary))) << vocabulary;
    }
}

TEST_P(CudaCrossEntropy, PieceOfNothingHasASumOfZero) {
  PLEAT_NEEDS_GPU();
  for (const int columns : {33, 4096, 50257}) {
    Rows r = rows_of(1, columns);
    Tensor logits = Tensor::zeros(GetParam(), {1, columns}), stats = Tensor::nan(Dtype::F64, {1, 3}),
           coords = Tensor::zeros(Dtype::I64, {program::kNumGroups});
    for (int j = 0; j < columns; ++j) logits.set(j, -INFINITY);
    call_cuda(KernelKind::vocab_stats, Phase::Forward,
              {in(logits), in(r.labels), in(r.mask), in(coords), out(stats)},
              {{"group", 3}, {"vocabulary", 1.0 * columns}});
    EXPECT_EQ(stats.at(0), -INFINITY);
    EXPECT_EQ(stats.at(1), 0) << columns;
    EXPECT_EQ(stats.at(2), -INFINITY);
  }
}

TEST_P(CudaCrossEntropy, MaskedRowsMayBeNaN) {
  PLEAT_NEEDS_GPU();
  const Dtype type = GetParam();
  for (const int vocabulary : {33, 4096, 50304}) {
    Rows r = rows_of(5, vocabulary);
    Tensor logits = Tensor::normal(type, {5, vocabulary}, 1), loss = Tensor::nan(Dtype::F64, {2});
    for (int j = 0; j < vocabulary; ++j) logits.set(3 * vocabulary + j, std::nan(""));
    r.labels.set(3, -7);
    Tensor norm = Tensor::of(Dtype::F64, {1}, {1});
    expect_agrees(KernelKind::cross_entropy, Phase::BackwardInput,
                  {in(r.labels), in(r.mask), in(norm), add(logits), out(loss)}, {}, bound(type, vocabulary));
    EXPECT_EQ(logits.at(3 * vocabulary), 0);
  }
}

TEST_P(CudaCrossEntropy, BadLabelMakesTheLossNaN) {
  PLEAT_NEEDS_GPU();
  Rows r = rows_of(2, 64);
  r.labels.set(0, 64);
  Tensor logits = Tensor::normal(GetParam(), {2, 64}, 1), loss = Tensor::zeros(Dtype::F64, {2});
  call_cuda(KernelKind::cross_entropy, Phase::Forward,
            {in(logits), in(r.labels), in(r.mask), out(loss), none()});
  EXPECT_TRUE(std::isnan(loss.at(0)));
}

// Three pieces of a vocabulary, the last one with padding, which may be NaN and may begin inside a 16-byte
// unit.
TEST_P(CudaCrossEntropy, PiecesOfTheVocabularyAgreeWithTheCpu) {
  PLEAT_NEEDS_GPU();
  const Dtype type = GetParam();
  for (auto [rows, columns, vocabulary] : {std::tuple{7, 33, 90},
                                           {9, 64, 150},
                                           {5, 20480, 61000},
                                           {3, 8, 8},
                                           {300, 4104, 12299},
                                           {600, 1003, 2901}}) {
    Rows r = rows_of(rows, vocabulary);
    const int ranks = 3;
    Tensor all = Tensor::zeros(Dtype::F64, {ranks, rows, 3});
    std::vector<Tensor> logits;
    for (int rank = 0; rank < ranks; ++rank) {
      logits.push_back(Tensor::normal(type, {rows, columns}, 10 + static_cast<uint64_t>(rank), 3));
      for (int64_t t = 0; t < rows; ++t)
        for (int j = std::max(0, vocabulary - rank * columns); j < columns; ++j)
          logits.back().set(t * columns + j, std::nan(""));
      Tensor coords = Tensor::zeros(Dtype::I64, {program::kNumGroups}),
             stats = Tensor::nan(Dtype::F64, {rows, 3});
      coords.set(3, rank);
      expect_agrees(KernelKind::vocab_stats, Phase::Forward,
                    {in(logits.back()), in(r.labels), in(r.mask), in(coords), out(stats)},
                    {{"group", 3}, {"vocabulary", 1.0 * vocabulary}}, bound(Dtype::F32, columns));
      for (int64_t i = 0; i < rows * 3; ++i) all.set(rank * rows * 3 + i, stats.at(i));
    }
    Tensor loss = Tensor::nan(Dtype::F64, {2}), token_loss = Tensor::nan(Dtype::F32, {rows});
    expect_agrees(KernelKind::vocab_loss, Phase::Forward, {in(all), in(r.mask), out(loss), out(token_loss)},
                  {}, bound(Dtype::F32));
    Tensor norm = Tensor::of(Dtype::F64, {1}, {0.25});
    for (int rank = 0; rank < ranks; ++rank) {
      Tensor coords = Tensor::zeros(Dtype::I64, {program::kNumGroups});
      coords.set(3, rank);
      expect_agrees(KernelKind::vocab_loss, Phase::BackwardInput,
                    {in(all), in(r.labels), in(r.mask), in(norm), in(coords),
                     add(logits[static_cast<size_t>(rank)]), add(loss)},
                    {{"group", 3}, {"vocabulary", 1.0 * vocabulary}}, bound(type, columns));
    }
  }
}

TEST_P(CudaCrossEntropy, BadLabelOfPiecesMakesTheLossNaN) {
  PLEAT_NEEDS_GPU();
  const Dtype type = GetParam();
  Rows r = rows_of(3, 64);
  r.mask = Tensor::of(Dtype::U8, {3}, {1, 1, 0});
  Tensor all = Tensor::of(Dtype::F64, {1, 3, 3}, {1, 2, 3, 1, 2, 3, 1, 2, 3}),
         norm = Tensor::of(Dtype::F64, {1}, {1}), coords = Tensor::zeros(Dtype::I64, {program::kNumGroups});
  for (const int label : {-1, 64}) {
    for (const int row : {1, 2}) {
      Rows bad = r;
      bad.labels.set(row, label);
      Tensor logits = Tensor::normal(type, {3, 64}, 1), loss = Tensor::zeros(Dtype::F64, {2});
      call_cuda(KernelKind::vocab_loss, Phase::BackwardInput,
                {in(all), in(bad.labels), in(bad.mask), in(norm), in(coords), add(logits), out(loss)},
                {{"group", 3}, {"vocabulary", 64}});
      EXPECT_EQ(std::isnan(loss.at(0)), row == 1) << label << " in row " << row;
      EXPECT_EQ(logits.at(2 * 64), 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, CudaCrossEntropy, ::testing::Values(Dtype::F32, Dtype::BF16));

}  // namespace
}  // namespace pleat::kernels::testing
