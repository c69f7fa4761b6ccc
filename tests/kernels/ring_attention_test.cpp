// Attention as a ring of ranks, step by step as a program runs it, against attention of all rows at once.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/context_support.h"

namespace pleat::kernels {
namespace {

using namespace testing;

constexpr int64_t kGroup = 2;

// What the ranks of a ring hold: row lists of equal length.
struct Ring {
  std::vector<RowList> ranks;
  Tensor key_row;  // rank by rank

  explicit Ring(std::vector<RowList> lists) : ranks(std::move(lists)) {
    std::vector<double> rows;
    for (const RowList& list : ranks) {
      EXPECT_EQ(list.size(), ranks[0].size());
      rows.insert(rows.end(), list.begin(), list.end());
    }
    key_row = Tensor::of(Dtype::I32, {int64_t(rows.size())}, rows);
  }
  int64_t size() const { return int64_t(ranks.size()); }
};

struct Step {
  Tensor out, lse;
};

// One rank: its rows of everything, and the calls of each step.
class Rank {
 public:
  Rank(const Case& c, Whole& whole, Ring& ring, int64_t place, int num_threads = 2)
      : c_(c), whole_(whole), ring_(ring), list_(ring.ranks[size_t(place)]), threads_(num_threads) {
    place_ = place;
    qkv_ = part_of(whole.qkv, list_);
    for (int64_t i = 0; i < rows(); ++i)  // only q may be read
      for (int64_t k = c.q_width(); k < c.width(); ++k) qkv_.set(i * c.width() + k, NAN);
    dout_ = part_of(whole.dout, list_);
    row_ = Tensor::of(Dtype::I32, {rows()}, std::vector<double>(list_.begin(), list_.end()));
    coords_ = Tensor::zeros(Dtype::I64, {program::kNumGroups});
    coords_.set(kGroup, double(place));
  }

  int64_t rows() const { return int64_t(list_.size()); }
  Tensor kv_of(int64_t step) const {
    const int64_t owner = (place_ + ring_.size() - step) % ring_.size();
    return part_of(whole_.qkv, ring_.ranks[size_t(owner)], c_.q_width(), c_.width());
  }
  program::AttrSet attrs(int64_t step) const {
    program::AttrSet a = c_.attrs();
    a.push_back({"step", double(step)});
    a.push_back({"ranks", double(ring_.size())});
    a.push_back({"group", double(kGroup)});
    std::sort(a.begin(), a.end(), [](const auto& x, const auto& y) { return x.key < y.key; });
    return a;
  }

  // The state behind each step.
  std::vector<Step> forward() {
    std::vector<Step> steps;
    for (int64_t s = 0; s < ring_.size(); ++s) {
      Tensor kv = kv_of(s);
      Step next{Tensor::nan(qkv_.dtype, {rows(), c_.out_width()}),
                Tensor::nan(qkv_.dtype, {rows(), c_.heads})};
      call(KernelKind::ring_attention, Phase::Forward,
           {in(qkv_), s ? in(steps.back().out) : none(), s ? in(steps.back().lse) : none(), in(kv), in(row_),
            in(ring_.key_row), in(whole_.doc_start), in(coords_),
            s == 0 && c_.has_sinks ? in(whole_.sinks) : none(), out(next.out), out(next.lse)},
           attrs(s), threads_);
      steps.push_back(std::move(next));
    }
    return steps;
  }

  // dq over all steps; the gradient of step s's keys is added to dkv[owner].
  Tensor backward(Step& last, std::vector<std::vector<double>>& dkv, Tensor* dsinks = nullptr) {
    Tensor dq = Tensor::nan(qkv_.dtype, {rows(), c_.q_width()});
    for (int64_t s = 0; s < ring_.size(); ++s) {
      Tensor kv = kv_of(s), part = Tensor::nan(qkv_.dtype, kv.shape);
      call(KernelKind::ring_attention, Phase::BackwardInput,
           {in(dout_), in(qkv_), in(kv), in(last.out), in(last.lse), in(row_), in(ring_.key_row),
            in(whole_.doc_start), in(coords_), s ? add(dq) : out(dq), out(part)},
           attrs(s), threads_);
      std::vector<double>& to = dkv[size_t((place_ + ring_.size() - s) % ring_.size())];
      to.resize(size_t(part.size()));
      for (size_t i = 0; i < to.size(); ++i) to[i] += part.at(int64_t(i));
      expect_zero_where_unseen(s, part);
    }
    if (dsinks)
      call(KernelKind::ring_attention, Phase::BackwardWeight,
           {in(dout_), in(last.out), in(last.lse), in(whole_.sinks), out(*dsinks)}, attrs(0), threads_);
    return dq;
  }

  bool sees(int64_t i, int64_t j) const {
    return j >= int64_t(whole_.doc_start.at(i)) && j <= i && (!c_.window || i - j < c_.window);
  }

 private:
  void expect_zero_where_unseen(int64_t step, const Tensor& part) const {
    const RowList& keys = ring_.ranks[size_t((place_ + ring_.size() - step) % ring_.size())];
    for (size_t k = 0; k < keys.size(); ++k) {
      if (std::any_of(list_.begin(), list_.end(), [&](int64_t i) { return sees(i, keys[k]); })) continue;
      for (int64_t e = 0; e < c_.kv_width(); ++e) ASSERT_EQ(part.at(int64_t(k) * c_.kv_width() + e), 0.0);
    }
  }

  const Case& c_;
  Whole& whole_;
  Ring& ring_;
  const RowList& list_;
  int threads_;
  int64_t place_ = 0;
  Tensor qkv_, dout_, row_, coords_;
};

void expect_ring_equals_whole(const Case& c, Dtype dtype, Ring ring) {
  Whole whole(c, dtype);
  whole.run(c);
  const double bound = dtype == Dtype::F64 ? 1e-13 : 2e-6;
  std::vector<std::vector<double>> dkv(ring.ranks.size());
  std::vector<double> dsinks(size_t(c.heads), 0.0);
  for (int64_t r = 0; r < ring.size(); ++r) {
    const RowList& list = ring.ranks[size_t(r)];
    Rank rank(c, whole, ring, r);
    std::vector<Step> steps = rank.forward();
    EXPECT_LE(norm_error(steps.back().out.numbers(), part_of(whole.out, list).numbers()), bound);
    EXPECT_LE(norm_error(steps.back().lse.numbers(), part_of(whole.lse, list).numbers()), bound);
    // A query that sees nothing in a step keeps its bits.
    for (int64_t s = 1; s < ring.size(); ++s) {
      const RowList& keys = ring.ranks[size_t((r + ring.size() - s) % ring.size())];
      for (size_t i = 0; i < list.size(); ++i) {
        if (std::any_of(keys.begin(), keys.end(), [&](int64_t j) { return rank.sees(list[i], j); })) continue;
        for (int64_t e = 0; e < c.out_width(); ++e)
          ASSERT_EQ(steps[size_t(s)].out.at(int64_t(i) * c.out_width() + e),
                    steps[size_t(s - 1)].out.at(int64_t(i) * c.out_width() + e));
        for (int64_t h = 0; h < c.heads; ++h)
          ASSERT_EQ(steps[size_t(s)].lse.at(int64_t(i) * c.heads + h),
                    steps[size_t(s - 1)].lse.at(int64_t(i) * c.heads + h));
      }
    }
    Tensor own_sinks = Tensor::nan(dtype, {c.heads});
    const Tensor dq = rank.backward(steps.back(), dkv, c.has_sinks ? &own_sinks : nullptr);
    EXPECT_LE(norm_error(dq.numbers(), part_of(whole.dqkv, list, 0, c.q_width()).numbers()), bound);
    for (size_t h = 0; h < dsinks.size() && c.has_sinks; ++h) dsinks[h] += own_sinks.at(int64_t(h));
  }
  for (size_t r = 0; r < dkv.size(); ++r)
    EXPECT_LE(norm_error(dkv[r], part_of(whole.dqkv, ring.ranks[r], c.q_width(), c.width()).numbers()),
              bound);
  if (c.has_sinks) {
    EXPECT_LE(norm_error(dsinks, whole.dsinks.numbers()), bound);
  }
}

// Rows divide by 24, for rings of 1, 2, 3 and 4. Chunks of 4 ranks have 3, 72, 75, 18, 12 rows.
std::vector<Case> cases() {
  return {
      {{24}},
      {{5, 1, 9, 9}, 4, 2, 5, 3},
      {{3, 3, 6, 12}, 2, 2, 4, 4},                        // documents end where chunks do
      {{1, 1, 1, 1, 1, 1, 1, 17}, 2, 2, 4, 4, 0, true},   // single tokens
      {{70, 257, 1, 3, 201, 44}, 4, 2, 20, 13, 0, true},  // one over four chunks and more
      {{600}, 3, 1, 16, 16, 0, true},
      {{600}, 2, 1, 6, 10, 1},
      {{600}, 2, 1, 6, 10, 50, true},  // window inside a chunk
      {{600}, 2, 1, 6, 10, 200},       // over three chunks
      {{33, 500, 67}, 2, 1, 6, 10, 65},
      {{100, 44}, 8, 4, 32, 32},
      {{60, 36}, 4, 4, 192, 128},  // as latent attention has them
  };
}

TEST(RingAttention, ZigzagRanksEqualTheWhole) {
  for (const Case& c : cases())
    for (int64_t n : {1, 2, 3, 4})
      for (Dtype dtype : {Dtype::F32, Dtype::F64}) {
        SCOPED_TRACE(::testing::Message()
                     << c.rows() << " rows over " << n << ", " << tensor::name_of(dtype));
        expect_ring_equals_whole(c, dtype, Ring(zigzag(c.rows(), n)));
      }
}

// A microbatch of several sequences, each cut by itself; 150 of them are more runs than fit at a time.
TEST(RingAttention, SeveralSequences) {
  for (const auto& [sequences, length] : {std::pair{2, 48}, {150, 8}}) {
    Case c{{}, 2, 1, 4, 6, 0, true};
    std::vector<RowList> ranks(2);
    for (int64_t s = 0; s < sequences; ++s) {
      c.documents.push_back(length - 3);
      c.documents.push_back(3);
      const std::vector<RowList> one = zigzag(length, 2);
      for (size_t r = 0; r < 2; ++r)
        for (const int64_t row : one[r]) ranks[r].push_back(s * length + row);
    }
    for (Dtype dtype : {Dtype::F32, Dtype::F64}) expect_ring_equals_whole(c, dtype, Ring(ranks));
  }
}

TEST(RingAttention, AnyOrderOfRows) {
  const Case c{{300, 120}, 2, 1, 6, 6, 70, true};
  for (Dtype dtype : {Dtype::F32, Dtype::F64}) {
    std::vector<RowList> dealt(3), shuffled(2);
    for (int64_t i = 0; i < c.rows(); ++i) {
      dealt[size_t(i % 3)].push_back(i);
      shuffled[size_t(i % 2)].push_back(i * 229 % c.rows());  // 229 is prime to the number of rows
    }
    expect_ring_equals_whole(c, dtype, Ring(dealt));
    expect_ring_equals_whole(c, dtype, Ring(shuffled));
  }
}

TEST(RingAttention, GradientMatchesFiniteDifferences) {
  const Case c{{5, 1, 10}, 4, 2, 3, 5, 7, true};
  Whole whole(c, Dtype::F64);
  Ring ring(zigzag(c.rows(), 2));
  const auto loss = [&] {
    double sum = 0;
    for (int64_t r = 0; r < 2; ++r) {
      Rank rank(c, whole, ring, r, 1);
      sum += dot(rank.forward().back().out, part_of(whole.dout, ring.ranks[size_t(r)]));
    }
    return sum;
  };
  std::vector<std::vector<double>> dkv(2);
  std::vector<double> dsinks(size_t(c.heads), 0.0);
  std::vector<Tensor> dq;
  for (int64_t r = 0; r < 2; ++r) {
    Rank rank(c, whole, ring, r);
    Step last = rank.forward().back();
    Tensor own = Tensor::nan(Dtype::F64, {c.heads});
    dq.push_back(rank.backward(last, dkv, &own));
    for (size_t h = 0; h < dsinks.size(); ++h) dsinks[h] += own.at(int64_t(h));
  }
  Tensor numeric = Tensor::of(Dtype::F64, whole.qkv.shape, numeric_gradient(whole.qkv, loss));
  for (size_t r = 0; r < 2; ++r) {
    EXPECT_LE(norm_error(dq[r].numbers(), part_of(numeric, ring.ranks[r], 0, c.q_width()).numbers()), 1e-6);
    EXPECT_LE(norm_error(dkv[r], part_of(numeric, ring.ranks[r], c.q_width(), c.width()).numbers()), 1e-6);
  }
  EXPECT_LE(norm_error(dsinks, numeric_gradient(whole.sinks, loss)), 1e-6);
}

TEST(RingAttention, SameBitsForAnyNumberOfThreads) {
  for (const Case& c :
       {Case{{300, 2, 270, 64, 1, 515}, 4, 2, 32, 16, 0, true}, Case{{900}, 2, 1, 33, 33, 400}})
    for (Dtype dtype : {Dtype::F32, Dtype::F64}) {
      Whole whole(c, dtype);
      Ring ring(zigzag(c.rows(), 2));
      expect_same_bits([&](int num_threads) {
        Rank rank(c, whole, ring, 1, num_threads);
        std::vector<Step> steps = rank.forward();
        std::vector<std::vector<double>> dkv(2);
        Tensor dsinks = Tensor::nan(dtype, {c.heads});
        const Tensor dq = rank.backward(steps.back(), dkv, &dsinks);
        std::vector<Tensor> all{steps.back().out, steps.back().lse, dq, dsinks};
        for (const auto& g : dkv) all.push_back(Tensor::of(Dtype::F64, {int64_t(g.size())}, g));
        return all;
      });
    }
}

// NaN is the sharpest change: a product with a masked zero would carry it.
TEST(RingAttention, DocumentsDoNotLeak) {
  const Case c{{65, 70, 41}, 2, 1, 5, 5};
  for (Dtype dtype : {Dtype::F32, Dtype::F64}) {
    Whole whole(c, dtype);
    for (int64_t k = 0; k < c.width(); ++k) whole.qkv.set(65 * c.width() + k, NAN);
    Ring ring(zigzag(c.rows(), 4));
    std::vector<std::vector<double>> dkv(4);
    for (int64_t r = 0; r < 4; ++r) {
      const RowList& list = ring.ranks[size_t(r)];
      Rank rank(c, whole, ring, r);
      Step last = rank.forward().back();
      const Tensor dq = rank.backward(last, dkv);
      for (size_t i = 0; i < list.size(); ++i) {
        const bool own = list[i] >= 65 && list[i] < 135;
        EXPECT_EQ(std::isnan(last.out.at(int64_t(i) * c.out_width())), own) << "row " << list[i];
        EXPECT_EQ(std::isnan(dq.at(int64_t(i) * c.q_width())), own) << "row " << list[i];
      }
    }
    for (size_t r = 0; r < 4; ++r)
      for (size_t i = 0; i < ring.ranks[r].size(); ++i)
        if (ring.ranks[r][i] < 65 || ring.ranks[r][i] >= 135) {
          EXPECT_FALSE(std::isnan(dkv[r][i * size_t(c.kv_width())])) << "row " << ring.ranks[r][i];
        }
  }
}

TEST(RingAttention, RefusesWhatDoesNotFit) {
  const Case c{{8}, 4, 2, 8, 6};
  Tensor qkv = Tensor::zeros(Dtype::F32, {4, 60}), kv = Tensor::zeros(Dtype::F32, {4, 28}),
         row = Tensor::of(Dtype::I32, {4}, {0, 1, 6, 7}),
         key_row = Tensor::of(Dtype::I32, {8}, {0, 1, 6, 7, 2, 3, 4, 5}), doc_start = c.doc_start(),
         coords = Tensor::zeros(Dtype::I64, {program::kNumGroups}), sinks = Tensor::zeros(Dtype::F32, {4}),
         y = Tensor::zeros(Dtype::F32, {4, 24}), lse = Tensor::zeros(Dtype::F32, {4, 4}),
         prior = Tensor::zeros(Dtype::F32, {4, 24}), prior_lse = Tensor::zeros(Dtype::F32, {4, 4});
  const auto attrs = [&](int step, int ranks, int group = 2) {
    program::AttrSet a = c.attrs();
    a.insert(a.end(), {{"group", double(group)}, {"ranks", double(ranks)}, {"step", double(step)}});
    std::sort(a.begin(), a.end(), [](const auto& p, const auto& q) { return p.key < q.key; });
    return a;
  };
  const auto forward = [&](Pass before, Pass before_lse, Pass key_rows, Pass sink, int step, int ranks = 2,
                           int group = 2) {
    call(KernelKind::ring_attention, Phase::Forward,
         {in(qkv), before, before_lse, in(kv), in(row), key_rows, in(doc_start), in(coords), sink, out(y),
          out(lse)},
         attrs(step, ranks, group));
  };
  EXPECT_NO_THROW(forward(none(), none(), in(key_row), in(sinks), 0));
  EXPECT_NO_THROW(forward(in(prior), in(prior_lse), in(key_row), none(), 1));
  expect_refused(
      [&] { forward(none(), none(), in(key_row), none(), 1); },
      "[ring_attention] step 1 has no 'prior_out' and no 'prior_lse': needed both behind the first");
  expect_refused([&] { forward(in(prior), in(prior_lse), in(key_row), none(), 0); },
                 "[ring_attention] step 0 has 'prior_out' and 'prior_lse'");
  expect_refused([&] { forward(in(prior), in(prior_lse), in(key_row), in(sinks), 1); },
                 "[ring_attention] step 1 has sinks, which enter in step 0");
  expect_refused([&] { forward(in(prior), in(prior_lse), in(key_row), none(), 2); },
                 "[ring_attention] step 2 of a ring of 2: needed 0 to 1");
  expect_refused([&] { forward(none(), none(), in(row), none(), 0); },
                 "[ring_attention] argument 'key_row' is [4], needed [8]");
  expect_refused([&] { forward(none(), none(), in(key_row), none(), 0, 2, program::kNumGroups); },
                 fmt::format("[ring_attention] attribute 'group' is {}", program::kNumGroups));
  expect_refused([&] { forward(in(prior), in(lse), in(row), none(), 1); },
                 "[ring_attention] argument 'key_row' is [4], needed [8]");
  Tensor dq = Tensor::zeros(Dtype::F32, {4, 32}), dkv = Tensor::zeros(Dtype::F32, {4, 28});
  const auto backward = [&](Pass dq_, Pass dkv_) {
    call(KernelKind::ring_attention, Phase::BackwardInput,
         {in(y), in(qkv), in(kv), in(y), in(lse), in(row), in(key_row), in(doc_start), in(coords), dq_, dkv_},
         attrs(0, 2));
  };
  EXPECT_NO_THROW(backward(out(dq), out(dkv)));
  EXPECT_NO_THROW(backward(add(dq), out(dkv)));
  expect_refused([&] { backward(out(qkv), out(dkv)); },
                 "[ring_attention] argument 'dq' is [4, 60], needed [4, 32]");
  expect_refused([&] { backward(out(dq), add(dkv)); },
                 "[ring_attention] output 'dkv' can only be overwritten");
}

}  // namespace
}  // namespace pleat::kernels
