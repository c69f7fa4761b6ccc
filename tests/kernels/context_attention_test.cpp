// Attention split over the ranks of a context group against attention of all rows at once.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/context_support.h"

namespace pleat::kernels {
namespace {

using namespace testing;
using program::KernelKind;
using program::Phase;
using tensor::Dtype;

struct Part {
  Tensor out, lse, dq, dkv, dsinks;
};

// All phases for the queries `list`, on NaN-filled outputs; what must not be read is NaN.
Part run(const Case& c, Whole& whole, const RowList& list, int num_threads = 2) {
  const Dtype dtype = whole.qkv.dtype;
  const int64_t own = int64_t(list.size());
  Tensor qkv = part_of(whole.qkv, list), dout = part_of(whole.dout, list),
         kv = part_of(whole.qkv, all_rows(c.rows()), c.q_width(), c.width()),
         row = Tensor::of(Dtype::I32, {own}, std::vector<double>(list.begin(), list.end()));
  for (int64_t i = 0; i < own; ++i)
    for (int64_t k = c.q_width(); k < c.width(); ++k) qkv.set(i * c.width() + k, NAN);
  Part p{Tensor::nan(dtype, {own, c.out_width()}), Tensor::nan(dtype, {own, c.heads}),
         Tensor::nan(dtype, {own, c.q_width()}), Tensor::nan(dtype, {c.rows(), c.kv_width()}),
         Tensor::nan(dtype, {c.heads})};
  call(KernelKind::context_attention, Phase::Forward,
       {in(qkv), in(kv), in(row), in(whole.doc_start), c.has_sinks ? in(whole.sinks) : none(), out(p.out),
        out(p.lse)},
       c.attrs(), num_threads);
  call(KernelKind::context_attention, Phase::BackwardInput,
       {in(dout), in(qkv), in(kv), in(p.out), in(p.lse), in(row), in(whole.doc_start), out(p.dq), out(p.dkv)},
       c.attrs(), num_threads);
  if (c.has_sinks)
    call(KernelKind::context_attention, Phase::BackwardWeight,
         {in(dout), in(p.out), in(p.lse), in(whole.sinks), out(p.dsinks)}, c.attrs(), num_threads);
  return p;
}

// Numbers, so that zeros of either sign are equal.
void expect_split_equals_whole(const Case& c, Dtype dtype, const std::vector<RowList>& ranks) {
  Whole whole(c, dtype);
  whole.run(c);
  std::vector<double> dkv(size_t(c.rows() * c.kv_width())), dsinks(size_t(c.heads), 0.0);
  for (const RowList& list : ranks) {
    const Part p = run(c, whole, list);
    EXPECT_EQ(p.out.numbers(), part_of(whole.out, list).numbers());
    EXPECT_EQ(p.lse.numbers(), part_of(whole.lse, list).numbers());
    EXPECT_EQ(p.dq.numbers(), part_of(whole.dqkv, list, 0, c.q_width()).numbers());
    for (size_t i = 0; i < dkv.size(); ++i) dkv[i] += p.dkv.at(int64_t(i));
    if (c.has_sinks)
      for (size_t h = 0; h < dsinks.size(); ++h) dsinks[h] += p.dsinks.at(int64_t(h));
    // Rows no query of this rank looks at.
    std::vector<bool> seen(size_t(c.rows()));
    for (int64_t i : list)
      for (int64_t j = int64_t(whole.doc_start.at(i)); j <= i; ++j)
        if (!c.window || i - j < c.window) seen[size_t(j)] = true;
    for (int64_t j = 0; j < c.rows(); ++j)
      for (int64_t k = 0; k < c.kv_width() && !seen[size_t(j)]; ++k)
        ASSERT_EQ(p.dkv.at(j * c.kv_width() + k), 0.0);
  }
  const double bound = dtype == Dtype::F64 ? 1e-13 : 2e-6;
  EXPECT_LE(norm_error(dkv, part_of(whole.dqkv, all_rows(c.rows()), c.q_width(), c.width()).numbers()),
            bound);
  if (c.has_sinks) {
    EXPECT_LE(norm_error(dsinks, whole.dsinks.numbers()), bound);
  }
}

std::vector<Case> cases() {
  return {
      {{1}},
      {{7}},
      {{5, 1, 9}, 4, 2, 5, 3},
      {{70, 257, 1, 3, 300, 64, 40}, 4, 2, 20, 13, 0, true},
      {{1, 1, 1, 1, 1, 1, 1}, 2, 2, 4, 4, 0, true},
      {{600}, 3, 1, 16, 16, 0, true},
      {{600}, 2, 1, 6, 10, 1},
      {{600}, 2, 1, 6, 10, 50, true},
      {{33, 500, 90}, 2, 1, 6, 10, 65},
      {{150, 130}, 8, 4, 32, 32},
      {{100, 41}, 4, 4, 192, 128},
  };
}

TEST(ContextAttention, OneRankEqualsAttention) {
  for (const Case& c : cases())
    for (Dtype dtype : {Dtype::F32, Dtype::F64}) {
      SCOPED_TRACE(::testing::Message() << c.rows() << " rows, " << tensor::name_of(dtype));
      expect_split_equals_whole(c, dtype, {all_rows(c.rows())});
      // With one rank even dk and dv have attention's bits.
      Whole whole(c, dtype);
      whole.run(c);
      EXPECT_EQ(run(c, whole, all_rows(c.rows())).dkv.numbers(),
                part_of(whole.dqkv, all_rows(c.rows()), c.q_width(), c.width()).numbers());
    }
}

TEST(ContextAttention, ZigzagRanksEqualTheWhole) {
  for (const Case& c : cases())
    for (int64_t n : {2, 3, 4})
      for (Dtype dtype : {Dtype::F32, Dtype::F64}) {
        SCOPED_TRACE(::testing::Message()
                     << c.rows() << " rows over " << n << ", " << tensor::name_of(dtype));
        expect_split_equals_whole(c, dtype, zigzag(c.rows(), n));
      }
}

// Single rows dealt out, and a shuffle into more runs than the kernel holds at a time.
TEST(ContextAttention, AnyOrderOfRows) {
  for (const Case& c : {Case{{30, 1, 45}, 4, 2, 5, 7, 0, true}, Case{{300, 120}, 2, 1, 6, 6, 70}})
    for (Dtype dtype : {Dtype::F32, Dtype::F64}) {
      std::vector<RowList> dealt(3), shuffled(2), backwards(1);
      for (int64_t i = 0; i < c.rows(); ++i) {
        dealt[size_t(i % 3)].push_back(i);
        const int64_t at = i * 229 % c.rows();  // 229 is prime to both numbers of rows
        shuffled[size_t(at % 3 == 0)].push_back(at);
        backwards[0].push_back(c.rows() - 1 - i);
      }
      expect_split_equals_whole(c, dtype, dealt);
      expect_split_equals_whole(c, dtype, shuffled);
      expect_split_equals_whole(c, dtype, backwards);
    }
}

// The contract asks only that doc_start never decreases.
TEST(ContextAttention, AnyNonDecreasingDocStart) {
  const Case c{{500}, 2, 1, 6, 5};
  Whole whole(c, Dtype::F64);
  for (int64_t i = 0; i < 500; ++i)
    whole.doc_start.set(i, double(std::max<int64_t>(0, i - 5 - i / 3) / 4 * 4));
  whole.run(c);
  std::vector<double> dkv(size_t(c.rows() * c.kv_width()));
  for (const RowList& list : zigzag(500, 3)) {
    const Part p = run(c, whole, list);
    EXPECT_EQ(p.out.numbers(), part_of(whole.out, list).numbers());
    EXPECT_EQ(p.dq.numbers(), part_of(whole.dqkv, list, 0, c.q_width()).numbers());
    for (size_t i = 0; i < dkv.size(); ++i) dkv[i] += p.dkv.at(int64_t(i));
  }
  EXPECT_LE(norm_error(dkv, part_of(whole.dqkv, all_rows(500), c.q_width(), c.width()).numbers()), 1e-13);
}

TEST(ContextAttention, GradientMatchesFiniteDifferences) {
  for (const Case& c :
       {Case{{4, 3}, 2, 1, 3, 3}, Case{{5, 1, 9}, 4, 2, 3, 5, 0, true}, Case{{9, 20}, 2, 2, 4, 2, 7, true}})
    for (const RowList& list : zigzag(c.rows(), 2)) {
      Whole whole(c, Dtype::F64);
      const Part p = run(c, whole, list);
      Tensor qkv = part_of(whole.qkv, list), dout = part_of(whole.dout, list),
             kv = part_of(whole.qkv, all_rows(c.rows()), c.q_width(), c.width()),
             row = Tensor::of(Dtype::I32, {int64_t(list.size())},
                              std::vector<double>(list.begin(), list.end())),
             y = Tensor::nan(Dtype::F64, p.out.shape), lse = Tensor::nan(Dtype::F64, p.lse.shape);
      const auto loss = [&] {
        call(KernelKind::context_attention, Phase::Forward,
             {in(qkv), in(kv), in(row), in(whole.doc_start), c.has_sinks ? in(whole.sinks) : none(), out(y),
              out(lse)},
             c.attrs(), 1);
        return dot(y, dout);
      };
      Tensor dqkv = Tensor::of(Dtype::F64, qkv.shape, numeric_gradient(qkv, loss));
      EXPECT_LE(
          norm_error(p.dq.numbers(), part_of(dqkv, all_rows(int64_t(list.size())), 0, c.q_width()).numbers()),
          1e-6);
      EXPECT_LE(norm_error(p.dkv.numbers(), numeric_gradient(kv, loss)), 1e-6);
      if (c.has_sinks) {
        EXPECT_LE(norm_error(p.dsinks.numbers(), numeric_gradient(whole.sinks, loss)), 1e-6);
      }
    }
}

TEST(ContextAttention, SameBitsForAnyNumberOfThreads) {
  for (const Case& c :
       {Case{{300, 2, 270, 64, 1, 513}, 4, 2, 32, 16, 0, true}, Case{{900}, 2, 1, 33, 33, 400}})
    for (Dtype dtype : {Dtype::F32, Dtype::F64}) {
      Whole whole(c, dtype);
      const RowList list = zigzag(c.rows(), 2)[0];
      expect_same_bits([&](int num_threads) {
        const Part p = run(c, whole, list, num_threads);
        return std::vector<Tensor>{p.out, p.lse, p.dq, p.dkv, p.dsinks};
      });
    }
}

// NaN is the sharpest change: a product with a masked zero would carry it.
TEST(ContextAttention, DocumentsDoNotLeak) {
  const Case c{{65, 70, 40}, 2, 1, 5, 5};
  for (Dtype dtype : {Dtype::F32, Dtype::F64})
    for (const RowList& list : zigzag(c.rows(), 2)) {
      Whole whole(c, dtype);
      for (int64_t k = 0; k < c.width(); ++k) whole.qkv.set(65 * c.width() + k, NAN);
      const Part p = run(c, whole, list);
      for (size_t i = 0; i < list.size(); ++i) {
        const bool own = list[i] >= 65 && list[i] < 135;
        EXPECT_EQ(std::isnan(p.out.at(int64_t(i) * c.out_width())), own) << "row " << list[i];
        EXPECT_EQ(std::isnan(p.dq.at(int64_t(i) * c.q_width())), own) << "row " << list[i];
      }
      for (int64_t j = 0; j < c.rows(); ++j)
        if (j < 65 || j >= 135) {
          EXPECT_FALSE(std::isnan(p.dkv.at(j * c.kv_width()))) << "row " << j;
        }
    }
}

TEST(ContextAttention, NoQueries) {
  const Case c{{5, 3}, 2, 1, 8, 8, 0, true};
  Whole whole(c, Dtype::F32);
  const Part p = run(c, whole, {});
  for (double x : p.dkv.numbers()) EXPECT_EQ(x, 0);
  EXPECT_EQ(p.dsinks.numbers(), (std::vector<double>{0, 0}));
  const Case none{{}, 2, 1, 8, 8};
  Whole empty(none, Dtype::F32);
  EXPECT_EQ(run(none, empty, {}).dkv.size(), 0);
}

TEST(ContextAttention, RefusesWhatDoesNotFit) {
  const Case c{{4, 3}, 4, 2, 8, 6};
  Tensor qkv = Tensor::zeros(Dtype::F32, {3, 60}), kv = Tensor::zeros(Dtype::F32, {7, 28}),
         row = Tensor::zeros(Dtype::I32, {3}), doc_start = c.doc_start(),
         y = Tensor::zeros(Dtype::F32, {3, 24}), lse = Tensor::zeros(Dtype::F32, {3, 4}),
         dq = Tensor::zeros(Dtype::F32, {3, 32}), dkv = Tensor::zeros(Dtype::F32, {7, 28});
  const auto forward = [&](Tensor& kv_, Tensor& row_, Tensor& doc_start_) {
    call(KernelKind::context_attention, Phase::Forward,
         {in(qkv), in(kv_), in(row_), in(doc_start_), none(), out(y), out(lse)}, c.attrs());
  };
  EXPECT_NO_THROW(forward(kv, row, doc_start));
  Tensor narrow = Tensor::zeros(Dtype::F32, {7, 27}), wide = Tensor::zeros(Dtype::F64, {7, 28}),
         long_row = Tensor::zeros(Dtype::I32, {7}), row64 = Tensor::zeros(Dtype::I64, {3});
  expect_refused([&] { forward(narrow, row, doc_start); },
                 "[context_attention] argument 'kv' is [7, 27], needed [7, 28]");
  expect_refused([&] { forward(wide, row, doc_start); },
                 "[context_attention] argument 'kv' is f64, needed f32");
  expect_refused([&] { forward(kv, long_row, doc_start); },
                 "[context_attention] argument 'row' is [7], needed [3]");
  expect_refused([&] { forward(kv, row64, doc_start); },
                 "[context_attention] argument 'row' is i64, needed i32");
  expect_refused([&] { forward(kv, row, row); },
                 "[context_attention] argument 'doc_start' is [3], needed [7]");
  const auto backward = [&](Pass dq_, Pass dkv_) {
    call(KernelKind::context_attention, Phase::BackwardInput,
         {in(y), in(qkv), in(kv), in(y), in(lse), in(row), in(doc_start), dq_, dkv_}, c.attrs());
  };
  EXPECT_NO_THROW(backward(out(dq), out(dkv)));
  expect_refused([&] { backward(out(qkv), out(dkv)); },
                 "[context_attention] argument 'dq' is [3, 60], needed [3, 32]");
  expect_refused([&] { backward(out(dq), out(narrow)); },
                 "[context_attention] argument 'dkv' is [7, 27], needed [7, 28]");
  expect_refused([&] { backward(out(dq), add(dkv)); },
                 "[context_attention] output 'dkv' can only be overwritten");
}

TEST(ContextAttentionDeathTest, RowsThatDoNotExist) {
  const Case c{{3}, 1, 1, 2, 2};
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (int64_t bad : {-1, 3}) {
    Tensor qkv = Tensor::zeros(Dtype::F32, {1, c.width()}), kv = Tensor::zeros(Dtype::F32, {3, c.kv_width()}),
           row = Tensor::of(Dtype::I32, {1}, {double(bad)}), doc_start = c.doc_start(),
           y = Tensor::zeros(Dtype::F32, {1, 2}), lse = Tensor::zeros(Dtype::F32, {1, 1});
    EXPECT_DEATH(call(KernelKind::context_attention, Phase::Forward,
                      {in(qkv), in(kv), in(row), in(doc_start), none(), out(y), out(lse)}, c.attrs(), 1),
                 "row\\[0\\] is");
  }
}

}  // namespace
}  // namespace pleat::kernels
