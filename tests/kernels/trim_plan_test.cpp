// Plans cut down to a budget, all ranks simulated in one process, against a plain statement of what is kept.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "base/error.h"
#include "kernels/dense_support.h"
#include "program/overflow.h"

namespace pleat::kernels::testing {
namespace {

using program::KernelKind;
using program::Phase;
using tensor::Dtype;

struct World {
  int64_t n = 4, copies = 1, El = 2, T = 12, k = 2;
  double skew = 2;  // how much more low experts are liked
  int64_t E() const { return n / copies * El; }
};

struct Rank {
  Tensor idx, probs, offsets, row_token, row_slot, token_row, dropped, all_offsets, overflow, coords;
};

std::vector<Rank> planned(const World& w, Dtype dtype, uint64_t seed) {
  std::vector<Rank> ranks(static_cast<size_t>(w.n));
  for (int64_t rank = 0; rank < w.n; ++rank) {
    Rank& r = ranks[size_t(rank)];
    const base::RandomStream random(seed, base::RandomUse::Test, 1, static_cast<uint32_t>(rank));
    r.idx = Tensor::zeros(Dtype::I32, {w.T, w.k});
    uint64_t draw = 0;
    for (int64_t t = 0; t < w.T; ++t) {
      std::vector<std::pair<double, int64_t>> score;
      for (int64_t e = 0; e < w.E(); ++e)
        score.push_back(
            {-random.uniform(draw++) + w.skew * static_cast<double>(e) / static_cast<double>(w.E()), e});
      std::sort(score.begin(), score.end());
      std::vector<int64_t> chosen;
      for (int64_t s = 0; s < w.k; ++s) chosen.push_back(score[size_t(s)].second);
      std::sort(chosen.begin(), chosen.end());
      for (int64_t s = 0; s < w.k; ++s) r.idx.set(t * w.k + s, static_cast<double>(chosen[size_t(s)]));
    }
    // Few different probabilities, so that some are equal.
    r.probs = Tensor::zeros(dtype, {w.T, w.k});
    for (int64_t i = 0; i < w.T * w.k; ++i) r.probs.set(i, std::floor(random.uniform(draw++) * 4) / 4);
    r.offsets = Tensor::nan(Dtype::I32, {w.E() + 1});
    r.row_token = Tensor::nan(Dtype::I32, {w.T * w.k + 2});
    r.row_slot = r.row_token;
    r.token_row = Tensor::nan(Dtype::I32, {w.T, w.k});
    r.dropped = Tensor::zeros(Dtype::I64, {1});
    r.overflow = Tensor::zeros(Dtype::I64, {1});
    r.coords = Tensor::zeros(Dtype::I64, {program::kNumGroups});
    r.coords.set(static_cast<int64_t>(program::Group::Dispatch), static_cast<double>(rank));
    r.coords.set(static_cast<int64_t>(program::Group::World), static_cast<double>(rank) + 10);
    call(KernelKind::dispatch_plan, Phase::Forward,
         {in(r.idx), in(r.probs), none(), out(r.offsets), out(r.row_token), out(r.row_slot), out(r.token_row),
          out(r.dropped)},
         {{"experts", double(w.E())}, {"top_k", double(w.k)}, {"capacity", 0}, {"policy", 0}, {"pad", 0}});
  }
  for (Rank& r : ranks) {
    r.all_offsets = Tensor::zeros(Dtype::I32, {w.n, w.E() + 1});
    for (int64_t s = 0; s < w.n; ++s)
      for (int64_t e = 0; e <= w.E(); ++e)
        r.all_offsets.set(s * (w.E() + 1) + e, ranks[size_t(s)].offsets.at(e));
  }
  return ranks;
}

program::AttrSet attrs(const World& w, int64_t budget, int policy) {
  return {{"budget", double(budget)},
          {"experts_per_rank", double(w.El)},
          {"copies", double(w.copies)},
          {"policy", double(policy)}};
}

void trim(const World& w, Rank& r, int64_t budget, int policy, bool report = true) {
  call(KernelKind::trim_plan, Phase::Forward,
       {in(r.probs), in(r.coords), add(r.all_offsets), add(r.offsets), add(r.row_token), add(r.row_slot),
        add(r.token_row), add(r.dropped), report ? add(r.overflow) : none()},
       attrs(w, budget, policy));
}

// Takes away one at a time: from the largest, of equal ones the last.
std::vector<int64_t> cut(std::vector<int64_t> counts, int64_t budget) {
  for (int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0}); total > budget; --total) {
    auto largest = counts.begin();
    for (auto it = counts.begin(); it != counts.end(); ++it)
      if (*it >= *largest) largest = it;
    --*largest;
  }
  return counts;
}

void expect_as_stated(const World& w, int64_t budget, int policy, Dtype dtype, uint64_t seed) {
  SCOPED_TRACE(fmt::format("budget {} policy {} copies {} seed {}", budget, policy, w.copies, seed));
  const std::vector<Rank> before = planned(w, dtype, seed);
  std::vector<Rank> after = before;
  for (Rank& r : after) trim(w, r, budget, policy);

  const auto count = [&](int64_t s, int64_t e) {
    return static_cast<int64_t>(before[size_t(s)].offsets.at(e + 1) - before[size_t(s)].offsets.at(e));
  };
  std::vector<std::vector<int64_t>> kept(size_t(w.n), std::vector<int64_t>(size_t(w.E())));
  std::vector<int64_t> needed;
  for (int64_t q = 0; q < w.n / w.copies; ++q) {
    std::vector<int64_t> totals(static_cast<size_t>(w.El), 0);
    for (int64_t e = 0; e < w.El; ++e)
      for (int64_t s = 0; s < w.n; ++s) totals[size_t(e)] += count(s, q * w.El + e);
    needed.push_back(std::accumulate(totals.begin(), totals.end(), int64_t{0}));
    const std::vector<int64_t> experts = cut(totals, budget);
    for (int64_t e = 0; e < w.El; ++e) {
      std::vector<int64_t> sources;
      for (int64_t s = 0; s < w.n; ++s) sources.push_back(count(s, q * w.El + e));
      sources = cut(sources, experts[size_t(e)]);
      for (int64_t s = 0; s < w.n; ++s) kept[size_t(s)][size_t(q * w.El + e)] = sources[size_t(s)];
    }
  }
  for (int64_t s = 0; s < w.n; ++s) {
    const Rank &a = before[size_t(s)], &b = after[size_t(s)];
    EXPECT_EQ(b.all_offsets, after[0].all_offsets);
    std::vector<double> want_token, want_slot, offsets{0}, token_row(size_t(w.T * w.k), -1);
    for (int64_t e = 0; e < w.E(); ++e) {
      std::vector<int64_t> choices;
      for (int64_t i = 0; i < w.T * w.k; ++i)
        if (a.idx.at(i) == static_cast<double>(e)) choices.push_back(i);
      if (policy == 0)
        std::stable_sort(choices.begin(), choices.end(),
                         [&](int64_t x, int64_t y) { return a.probs.at(x) > a.probs.at(y); });
      choices.resize(size_t(kept[size_t(s)][size_t(e)]));
      std::sort(choices.begin(), choices.end());
      for (const int64_t i : choices) {
        token_row[size_t(i)] = static_cast<double>(want_token.size());
        want_token.push_back(static_cast<double>(i / w.k));
        want_slot.push_back(static_cast<double>(i % w.k));
      }
      offsets.push_back(static_cast<double>(want_token.size()));
    }
    const double lost = static_cast<double>(w.T * w.k) - static_cast<double>(want_token.size());
    want_token.resize(size_t(w.T * w.k + 2), -1);
    want_slot.resize(size_t(w.T * w.k + 2), -1);
    EXPECT_EQ(b.row_token.numbers(), want_token);
    EXPECT_EQ(b.row_slot.numbers(), want_slot);
    EXPECT_EQ(b.token_row.numbers(), token_row);
    EXPECT_EQ(b.offsets.numbers(), offsets);
    for (int64_t e = 0; e <= w.E(); ++e) EXPECT_EQ(b.all_offsets.at(s * (w.E() + 1) + e), offsets[size_t(e)]);
    EXPECT_EQ(b.dropped.at(0), lost);
    const int64_t asked = needed[size_t(s / w.copies)], code = static_cast<int64_t>(b.overflow.at(0));
    if (asked <= budget) {
      EXPECT_EQ(code, 0);
    } else {
      EXPECT_EQ(program::overflow_rows(code), asked);
      EXPECT_EQ(program::overflow_rank(code), s + 10);
    }
  }
}

TEST(TrimPlan, KeepsWhatItSays) {
  for (const int64_t copies : {1, 2})
    for (const int policy : {0, 1})
      for (uint64_t seed = 1; seed <= 4; ++seed) {
        World w;
        w.copies = copies;
        for (const int64_t budget : {1, 7, 23, 24, 25, 40, 96})
          expect_as_stated(w, budget, policy, seed % 2 ? Dtype::F64 : Dtype::F32, seed);
      }
}

TEST(TrimPlan, LeavesAPlanThatFitsAlone) {
  const World w;
  std::vector<Rank> ranks = planned(w, Dtype::F64, 5);
  Rank& r = ranks[1];
  const Rank before = r;
  trim(w, r, w.n * w.T * w.k, 0);
  EXPECT_EQ(r.all_offsets, before.all_offsets);
  EXPECT_EQ(r.row_token, before.row_token);
  EXPECT_EQ(r.token_row, before.token_row);
  EXPECT_EQ(r.overflow.at(0), 0);
}

TEST(TrimPlan, KeepsTheLargestOfAStepAndMayStaySilent) {
  const World w;
  std::vector<Rank> ranks = planned(w, Dtype::F64, 6);
  Rank most = ranks[0], silent = ranks[0];
  const double large = static_cast<double>(program::encode_overflow(1 << 20, 3));
  most.overflow.set(0, large);
  trim(w, most, 1, 0);
  EXPECT_EQ(most.overflow.at(0), large);
  trim(w, silent, 1, 0, false);
  EXPECT_EQ(silent.overflow.at(0), 0);
  EXPECT_EQ(silent.token_row, most.token_row);
}

TEST(TrimPlan, Overflow) {
  using namespace program;
  EXPECT_EQ(overflow_rows(encode_overflow(57, 1023)), 57);
  EXPECT_EQ(overflow_rank(encode_overflow(57, 1023)), 1023);
  EXPECT_GT(encode_overflow(58, 1023), encode_overflow(57, 0));
  EXPECT_GT(encode_overflow(57, 1), encode_overflow(57, 2));  // of equal ones the lower rank
}

TEST(TrimPlan, Refuses) {
  World w;
  std::vector<Rank> ranks = planned(w, Dtype::F64, 7);
  Rank& r = ranks[0];
  expect_refused([&] { trim(w, r, 0, 0); }, "[trim_plan] budget is 0, needed 1 or more");
  expect_refused([&] { trim(w, r, 5, 2); }, "[trim_plan] policy is 2, needed 0 or 1");
  w.copies = 3;
  expect_refused([&] { trim(w, r, 5, 0); }, "needed a positive multiple");
}

}  // namespace
}  // namespace pleat::kernels::testing
