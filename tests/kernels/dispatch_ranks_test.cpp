// Routed rows between ranks, all simulated in one process: tokens gathered everywhere and rows exchanged must
// give every expert the same rows in the same order, and every token the same bits, forward and backward.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "kernels/dense_support.h"

namespace pleat::kernels::testing {
namespace {

using program::KernelKind;
using program::Phase;
using tensor::Dtype;

struct World {
  int64_t n = 1, copies = 1, El = 1, T = 5, k = 2, h = 3;
  int64_t capacity = 0, pad = 0;
  int64_t idle = -1;  // a rank that keeps none of its choices
  Dtype C = Dtype::F64, R = Dtype::F64;

  int64_t E() const { return n / copies * El; }
  int64_t sent_budget() const { return std::max(T * k, E() * capacity) + 2; }
  int64_t held_budget() const { return n * std::max(T * k, El * capacity) + 3; }
  program::AttrSet attrs() const { return {{"copies", 1.0 * copies}, {"experts_per_rank", 1.0 * El}}; }
  Tensor coords(int64_t rank) const {
    Tensor t = Tensor::zeros(Dtype::I64, {program::kNumGroups});
    t.set(static_cast<int64_t>(program::Group::Dispatch), static_cast<double>(rank));
    return t;
  }
};

using Ranks = std::vector<Tensor>;  // one value on every rank

int64_t number(const Tensor& t, int64_t i) { return static_cast<int64_t>(t.at(i)); }

// Rows are dimension 0, whatever else there is.
int64_t width(const Tensor& t) {
  return std::accumulate(t.shape.begin() + 1, t.shape.end(), int64_t{1}, std::multiplies<>());
}
void copy_row(const Tensor& from, int64_t r, Tensor& to, int64_t q) {
  for (int64_t c = 0; c < width(from); ++c) to.set(q * width(to) + c, from.at(r * width(from) + c));
}
Tensor with_rows(const Tensor& like, int64_t rows) {
  std::vector<int64_t> shape = like.shape;
  shape[0] = rows;
  return Tensor::nan(like.dtype, shape);
}

Tensor all_gather(const Ranks& x) {
  Tensor y = with_rows(x[0], static_cast<int64_t>(x.size()) * x[0].shape[0]);
  int64_t q = 0;
  for (const Tensor& part : x)
    for (int64_t r = 0; r < part.shape[0]; ++r) copy_row(part, r, y, q++);
  return y;
}

Ranks reduce_scatter(const Ranks& x) {
  const int64_t n = static_cast<int64_t>(x.size()), rows = x[0].shape[0] / n, count = rows * width(x[0]);
  Ranks y(x.size(), with_rows(x[0], rows));
  for (int64_t j = 0; j < n; ++j)
    for (int64_t i = 0; i < count; ++i) {
      double sum = x[0].at(j * count + i);
      for (size_t s = 1; s < x.size(); ++s) sum += x[s].at(j * count + i);
      y[static_cast<size_t>(j)].set(i, sum);
    }
  return y;
}

// Rows [begin, end) of source s that rank j's experts get.
std::pair<int64_t, int64_t> piece(const World& w, const Tensor& all_offsets, int64_t s, int64_t j) {
  const int64_t e = j / w.copies * w.El, at = s * (w.E() + 1) + e;
  return {number(all_offsets, at), number(all_offsets, at + w.El)};
}

Ranks rows_to_experts(const World& w, const Ranks& x, const Tensor& all_offsets) {
  Ranks y(x.size(), with_rows(x[0], w.held_budget()));
  for (int64_t j = 0; j < w.n; ++j)
    for (int64_t s = 0, q = 0; s < w.n; ++s) {
      const auto [begin, end] = piece(w, all_offsets, s, j);
      for (int64_t r = begin; r < end; ++r) copy_row(x[size_t(s)], r, y[size_t(j)], q++);
    }
  return y;
}

Ranks rows_to_tokens(const World& w, const Ranks& x, const Tensor& all_offsets) {
  Ranks y(x.size(), with_rows(x[0], w.copies * w.sent_budget()));
  std::vector<int64_t> filled(x.size());
  for (int64_t j = 0; j < w.n; ++j)
    for (int64_t s = 0, r = 0; s < w.n; ++s) {
      const auto [begin, end] = piece(w, all_offsets, s, j);
      for (int64_t i = begin; i < end; ++i) copy_row(x[size_t(j)], r++, y[size_t(s)], filled[size_t(s)]++);
    }
  return y;
}

Tensor take_rows(const Tensor& x, const Tensor& index) {
  Tensor y = with_rows(x, index.size());
  for (int64_t r = 0; r < index.size(); ++r)
    if (index.at(r) >= 0) copy_row(x, number(index, r), y, r);
  return y;
}

Tensor choices(const World& w, uint64_t seed) {
  Tensor idx = Tensor::zeros(Dtype::I32, {w.T, w.k});
  const base::RandomStream stream(seed, base::RandomUse::Test, 0, 9);
  for (int64_t t = 0; t < w.T; ++t) {
    std::vector<std::pair<double, int64_t>> order;
    // Low experts are liked better, the last ones stay empty.
    for (int64_t e = 0; e < w.E(); ++e)
      order.push_back({stream.uniform(static_cast<uint64_t>(t * w.E() + e)) + 0.15 * double(e), e});
    std::sort(order.begin(), order.end());
    std::vector<int64_t> pick;
    for (int64_t s = 0; s < w.k; ++s) pick.push_back(order[size_t(s)].second);
    std::sort(pick.begin(), pick.end());
    for (int64_t s = 0; s < w.k; ++s) idx.set(t * w.k + s, double(pick[size_t(s)]));
  }
  return idx;
}

struct Plan {
  Tensor offsets, row_token, row_slot, token_row;
};

Plan empty_plan(int64_t experts, int64_t rows, int64_t tokens, int64_t k) {
  return {Tensor::nan(Dtype::I32, {experts + 1}), Tensor::nan(Dtype::I32, {rows}),
          Tensor::nan(Dtype::I32, {rows}), Tensor::nan(Dtype::I32, {tokens, k})};
}

Plan local_plan(const World& w, Tensor& idx, Tensor& probs, bool idle) {
  Plan p = empty_plan(w.E(), w.sent_budget(), w.T, w.k);
  Tensor dropped = Tensor::nan(Dtype::I64, {1});
  call(KernelKind::dispatch_plan, Phase::Forward,
       {in(idx), in(probs), none(), out(p.offsets), out(p.row_token), out(p.row_slot), out(p.token_row),
        out(dropped)},
       {{"capacity", 1.0 * w.capacity},
        {"experts", 1.0 * w.E()},
        {"pad", 1.0 * w.pad},
        {"policy", 0.0},
        {"top_k", 1.0 * w.k}});
  if (idle) {
    for (Tensor* t : {&p.row_token, &p.row_slot, &p.token_row})
      for (int64_t i = 0; i < t->size(); ++i) t->set(i, -1);
    if (!w.pad)
      for (int64_t i = 0; i <= w.E(); ++i) p.offsets.set(i, 0);
  }
  return p;
}

Plan gather_plan(const World& w, Tensor& idx, Tensor& kept, int64_t rank, int64_t budget) {
  Plan p = empty_plan(w.El, budget, w.n * w.T, w.k);
  Tensor coords = w.coords(rank);
  call(KernelKind::gather_plan, Phase::Forward,
       {in(idx), in(kept), in(coords), out(p.offsets), out(p.row_token), out(p.row_slot), out(p.token_row)},
       {{"capacity", 1.0 * w.capacity},
        {"copies", 1.0 * w.copies},
        {"experts_per_rank", 1.0 * w.El},
        {"pad", 1.0 * w.pad},
        {"ranks", 1.0 * w.n}});
  return p;
}

struct Received {
  Tensor offsets, source_row, sorted_row;
};

Received receive_plan(const World& w, Tensor& all_offsets, int64_t rank, int64_t budget) {
  Received p{Tensor::nan(Dtype::I32, {w.El + 1}), Tensor::nan(Dtype::I32, {budget}),
             Tensor::nan(Dtype::I32, {budget})};
  Tensor coords = w.coords(rank);
  call(KernelKind::receive_plan, Phase::Forward,
       {in(all_offsets), in(coords), out(p.offsets), out(p.source_row), out(p.sorted_row)}, w.attrs());
  return p;
}

// The factor of column c for expert e; copies of a rank hold different parts of an expert.
double factor(int64_t rank, int64_t e, int64_t c) {
  return std::sin(1.0 + 3.0 * double(e) + 0.7 * double(c) + 11.0 * double(rank));
}

// Forward: y = factor * x * prob. Backward: d -> {factor * d * prob, sum_c factor * d * x}.
struct Expert {
  const World& w;
  int64_t rank;

  template <class Body>
  void for_each(const Tensor& offsets, const Body& body) const {
    for (int64_t e = 0; e < w.El; ++e)
      for (int64_t r = number(offsets, e); r < number(offsets, e + 1); ++r)
        for (int64_t c = 0; c < w.h; ++c)
          body(r, r * w.h + c, factor(rank, rank / w.copies * w.El + e, c), c == 0);
  }
  Tensor forward(const Tensor& x, const Tensor& probs, const Tensor& offsets) const {
    Tensor y = with_rows(x, x.shape[0]);
    for_each(offsets, [&](int64_t r, int64_t i, double f, bool) { y.set(i, f * x.at(i) * probs.at(r)); });
    return y;
  }
  std::pair<Tensor, Tensor> backward(const Tensor& d, const Tensor& x, const Tensor& probs,
                                     const Tensor& offsets) const {
    Tensor dx = with_rows(x, x.shape[0]), dprobs = with_rows(probs, probs.shape[0]);
    for_each(offsets, [&](int64_t r, int64_t i, double f, bool first) {
      dx.set(i, f * d.at(i) * probs.at(r));
      dprobs.set(r, (first ? 0 : dprobs.at(r)) + f * d.at(i) * x.at(i));
    });
    return {dx, dprobs};
  }
};

struct Outcome {
  Ranks expert_rows, expert_probs, y, dx, dprobs;
};

struct Inputs {
  Ranks idx, probs, x, dy;
  std::vector<Plan> plan;

  explicit Inputs(const World& w) {
    for (int64_t s = 0; s < w.n; ++s) {
      const uint64_t seed = static_cast<uint64_t>(10 * s);
      idx.push_back(choices(w, seed));
      probs.push_back(Tensor::normal(w.R, {w.T, w.k}, seed + 1));
      x.push_back(Tensor::normal(w.C, {w.T, w.h}, seed + 2));
      dy.push_back(Tensor::normal(w.C, {w.T, w.h}, seed + 3));
      // Zeros of either sign must come out alike, too.
      if (x.back().size() > 1) x.back().set(0, -0.0), x.back().set(1, 0.0);
      plan.push_back(local_plan(w, idx.back(), probs.back(), s == w.idle));
    }
  }
};

Outcome by_gather(const World& w, Inputs& given) {
  Ranks token_rows;
  for (const Plan& p : given.plan) token_rows.push_back(p.token_row);
  Tensor idx = all_gather(given.idx), kept = all_gather(token_rows), x = all_gather(given.x),
         probs = all_gather(given.probs), dy = all_gather(given.dy);
  Outcome o;
  for (int64_t j = 0; j < w.n; ++j) {
    Plan p = gather_plan(w, idx, kept, j, w.held_budget());
    Tensor rows = Tensor::nan(w.C, {w.held_budget(), w.h}), row_probs = Tensor::nan(w.R, {w.held_budget()});
    call(KernelKind::permute, Phase::Forward,
         {in(x), in(probs), in(p.offsets), in(p.row_token), in(p.row_slot), in(p.token_row), out(rows),
          out(row_probs)});
    const Expert expert{w, j};
    Tensor expert_out = expert.forward(rows, row_probs, p.offsets);
    o.y.push_back(Tensor::nan(w.C, {w.n * w.T, w.h}));
    call(KernelKind::combine, Phase::Forward,
         {in(expert_out), in(p.token_row), none(), none(), out(o.y.back())});
    Tensor dout = Tensor::nan(w.C, {w.held_budget(), w.h});
    call(KernelKind::combine, Phase::BackwardInput,
         {in(dy), in(p.row_token), in(p.offsets), in(p.token_row), out(dout)});
    auto [drows, drow_probs] = expert.backward(dout, rows, row_probs, p.offsets);
    o.dx.push_back(Tensor::nan(w.C, {w.n * w.T, w.h}));
    o.dprobs.push_back(Tensor::nan(w.R, {w.n * w.T, w.k}));
    call(KernelKind::permute, Phase::BackwardInput,
         {in(drows), in(drow_probs), in(p.token_row), out(o.dx.back()), out(o.dprobs.back())});
    o.expert_rows.push_back(rows), o.expert_probs.push_back(row_probs);
  }
  o.y = reduce_scatter(o.y), o.dx = reduce_scatter(o.dx), o.dprobs = reduce_scatter(o.dprobs);
  return o;
}

Outcome by_exchange(const World& w, Inputs& given) {
  Ranks offsets, rows, row_probs, dout;
  for (size_t s = 0; s < given.plan.size(); ++s) {
    Plan& p = given.plan[s];
    offsets.push_back(p.offsets);
    rows.push_back(Tensor::nan(w.C, {w.sent_budget(), w.h}));
    row_probs.push_back(Tensor::nan(w.R, {w.sent_budget()}));
    dout.push_back(Tensor::nan(w.C, {w.sent_budget(), w.h}));
    call(KernelKind::permute, Phase::Forward,
         {in(given.x[s]), in(given.probs[s]), in(p.offsets), in(p.row_token), in(p.row_slot), in(p.token_row),
          out(rows[s]), out(row_probs[s])});
    call(KernelKind::combine, Phase::BackwardInput,
         {in(given.dy[s]), in(p.row_token), in(p.offsets), in(p.token_row), out(dout[s])});
  }
  Tensor all_offsets = all_gather(offsets);
  all_offsets.shape = {w.n, w.E() + 1};
  const Ranks got = rows_to_experts(w, rows, all_offsets),
              got_probs = rows_to_experts(w, row_probs, all_offsets),
              got_dout = rows_to_experts(w, dout, all_offsets);
  Outcome o;
  Ranks back, dback, dback_probs;
  for (int64_t j = 0; j < w.n; ++j) {
    const Received p = receive_plan(w, all_offsets, j, w.held_budget());
    const size_t at = static_cast<size_t>(j);
    const Tensor sorted = take_rows(got[at], p.source_row), probs = take_rows(got_probs[at], p.source_row);
    const Expert expert{w, j};
    back.push_back(take_rows(expert.forward(sorted, probs, p.offsets), p.sorted_row));
    auto [drows, drow_probs] =
        expert.backward(take_rows(got_dout[at], p.source_row), sorted, probs, p.offsets);
    dback.push_back(take_rows(drows, p.sorted_row));
    dback_probs.push_back(take_rows(drow_probs, p.sorted_row));
    o.expert_rows.push_back(sorted), o.expert_probs.push_back(probs);
  }
  back = rows_to_tokens(w, back, all_offsets);
  dback = rows_to_tokens(w, dback, all_offsets);
  dback_probs = rows_to_tokens(w, dback_probs, all_offsets);
  for (size_t s = 0; s < given.plan.size(); ++s) {
    Plan& p = given.plan[s];
    o.y.push_back(Tensor::nan(w.C, {w.T, w.h}));
    o.dx.push_back(Tensor::nan(w.C, {w.T, w.h}));
    o.dprobs.push_back(Tensor::nan(w.R, {w.T, w.k}));
    call(KernelKind::combine_ranks, Phase::Forward,
         {in(back[s]), in(p.token_row), in(p.offsets), out(o.y.back())}, w.attrs());
    call(KernelKind::permute_ranks, Phase::BackwardInput,
         {in(dback[s]), in(dback_probs[s]), in(p.token_row), in(p.offsets), out(o.dx.back()),
          out(o.dprobs.back())},
         w.attrs());
  }
  return o;
}

// What the whole must be, without ranks: every kept choice through all copies of its expert.
void expect_defined(const World& w, const Inputs& given, const Outcome& o) {
  const double eps = w.C == Dtype::F32 ? 2e-5 : 1e-13;
  for (int64_t s = 0; s < w.n; ++s)
    for (int64_t t = 0; t < w.T; ++t) {
      std::vector<double> y(size_t(w.h)), dx(size_t(w.h));
      for (int64_t slot = 0; slot < w.k; ++slot) {
        const int64_t i = t * w.k + slot, e = number(given.idx[size_t(s)], i);
        double dprob = 0;
        if (given.plan[size_t(s)].token_row.at(i) >= 0)
          for (int64_t copy = 0; copy < w.copies; ++copy)
            for (int64_t c = 0; c < w.h; ++c) {
              const double f = factor(e / w.El * w.copies + copy, e, c), p = given.probs[size_t(s)].at(i),
                           d = given.dy[size_t(s)].at(t * w.h + c), x = given.x[size_t(s)].at(t * w.h + c);
              y[size_t(c)] += f * x * p, dx[size_t(c)] += f * d * p, dprob += f * d * x;
            }
        ASSERT_NEAR(o.dprobs[size_t(s)].at(i), dprob, eps);
      }
      for (int64_t c = 0; c < w.h; ++c) {
        ASSERT_NEAR(o.y[size_t(s)].at(t * w.h + c), y[size_t(c)], eps);
        ASSERT_NEAR(o.dx[size_t(s)].at(t * w.h + c), dx[size_t(c)], eps);
      }
    }
}

void expect_both_ways_equal(const World& w) {
  Inputs given(w);
  const Outcome gathered = by_gather(w, given), exchanged = by_exchange(w, given);
  // Past the end both hold their first NaN.
  EXPECT_EQ(gathered.expert_rows, exchanged.expert_rows);
  EXPECT_EQ(gathered.expert_probs, exchanged.expert_probs);
  EXPECT_EQ(gathered.y, exchanged.y);
  EXPECT_EQ(gathered.dx, exchanged.dx);
  EXPECT_EQ(gathered.dprobs, exchanged.dprobs);
  expect_defined(w, given, exchanged);
}

TEST(DispatchRanks, GatherAndExchangeAgreeBitForBit) {
  for (int64_t n = 1; n <= 6; ++n)
    for (int64_t copies : {1, 2}) {
      if (n % copies) continue;
      for (int64_t El : {1, 3})
        for (int64_t T : {0, 1, 11})
          for (int64_t k : {1, 3})
            for (const auto& [capacity, pad] : {std::pair{0, 0}, {2, 0}, {3, 1}})
              for (int64_t idle : {int64_t{-1}, n - 1})
                for (const auto& [C, R] : {std::pair{Dtype::F32, Dtype::F32},
                                           {Dtype::F32, Dtype::F64},
                                           {Dtype::F64, Dtype::F64}}) {
                  World w{n, copies, El, T, k, 5, capacity, pad, idle, C, R};
                  if (w.E() < k) continue;
                  SCOPED_TRACE(::testing::Message()
                               << n << " ranks, copies " << copies << ", El " << El << ", T " << T << ", k "
                               << k << ", capacity " << capacity << ", pad " << pad << ", idle " << idle);
                  expect_both_ways_equal(w);
                  if (HasFailure()) return;
                }
    }
}

TEST(DispatchRanks, PlansMatchAHandWrittenCase) {
  // Two ranks of one expert each; rank 0 sends tokens to 1, 0, 1, rank 1 to 0, 0, 1 and drops its second.
  World w{2, 1, 1, 3, 1, 1};
  Tensor idx = Tensor::of(Dtype::I32, {6, 1}, {1, 0, 1, 0, 0, 1}),
         kept = Tensor::of(Dtype::I32, {6, 1}, {1, 0, 2, 0, -1, 1});
  const Plan p = gather_plan(w, idx, kept, 0, 4);
  EXPECT_EQ(p.offsets.numbers(), (std::vector<double>{0, 2}));
  EXPECT_EQ(p.row_token.numbers(), (std::vector<double>{1, 3, -1, -1}));
  EXPECT_EQ(p.row_slot.numbers(), (std::vector<double>{0, 0, -1, -1}));
  EXPECT_EQ(p.token_row.numbers(), (std::vector<double>{-1, 0, -1, 1, -1, -1}));
  w.capacity = 2, w.pad = 1;
  const Plan padded = gather_plan(w, idx, kept, 1, 5);
  EXPECT_EQ(padded.offsets.numbers(), (std::vector<double>{0, 4}));
  EXPECT_EQ(padded.row_token.numbers(), (std::vector<double>{0, 2, 5, -1, -1}));
  EXPECT_EQ(padded.token_row.numbers(), (std::vector<double>{0, -1, 1, -1, -1, 2}));
  // Two local experts of four; received (source, expert): 0:[2], 0:[3 3], 1:[2 2], 1:[3].
  World four{2, 1, 2};
  Tensor all_offsets = Tensor::of(Dtype::I32, {2, 5}, {0, 1, 1, 2, 4, 0, 0, 5, 7, 8});
  const Received r = receive_plan(four, all_offsets, 1, 7);
  EXPECT_EQ(r.offsets.numbers(), (std::vector<double>{0, 3, 6}));
  EXPECT_EQ(r.source_row.numbers(), (std::vector<double>{0, 3, 4, 1, 2, 5, -1}));
  EXPECT_EQ(r.sorted_row.numbers(), (std::vector<double>{0, 3, 4, 1, 2, 5, -1}));
}

// More columns than a chunk, more tokens than a tile.
TEST(DispatchRanks, SameBitsForAnyNumberOfThreadsAndAccumulates) {
  for (const Dtype C : {Dtype::F32, Dtype::F64}) {
    World w{4, 2, 3, 150, 3, 1100, 0, 0, -1, C, C};
    Tensor idx = choices(w, 1), probs = Tensor::normal(C, {w.T, w.k}, 2);
    Plan p = local_plan(w, idx, probs, false);
    Tensor rows = Tensor::normal(C, {w.copies * w.sent_budget(), w.h}, 3),
           row_probs = Tensor::normal(C, {w.copies * w.sent_budget()}, 4),
           before = Tensor::normal(C, {w.T, w.h}, 5);
    const auto run = [&](int num_threads) {
      Ranks o = {Tensor::nan(C, {w.T, w.h}), Tensor::nan(C, {w.T, w.h}), Tensor::nan(C, {w.T, w.k}), before,
                 Tensor::nan(C, {w.T, w.k})};
      call(KernelKind::combine_ranks, Phase::Forward, {in(rows), in(p.token_row), in(p.offsets), out(o[0])},
           w.attrs(), num_threads);
      call(KernelKind::permute_ranks, Phase::BackwardInput,
           {in(rows), in(row_probs), in(p.token_row), in(p.offsets), out(o[1]), out(o[2])}, w.attrs(),
           num_threads);
      call(KernelKind::permute_ranks, Phase::BackwardInput,
           {in(rows), in(row_probs), in(p.token_row), in(p.offsets), add(o[3]), out(o[4])}, w.attrs(),
           num_threads);
      return o;
    };
    expect_same_bits(run);
    const Ranks o = run(2);
    EXPECT_EQ(o[0], o[1]);
    EXPECT_EQ(o[2], o[4]);
    for (int64_t i = 0; i < before.size(); ++i)
      ASSERT_NEAR(o[3].at(i), before.at(i) + o[1].at(i), C == Dtype::F32 ? 3e-6 : 1e-14);
  }
}

TEST(DispatchRanks, MoreRowsThanTheBudget) {
  World w{2, 1, 1, 3, 1, 1};
  Tensor idx = Tensor::zeros(Dtype::I32, {6, 1}), kept = Tensor::zeros(Dtype::I32, {6, 1});
  expect_refused([&] { gather_plan(w, idx, kept, 0, 5); },
                 "[gather_plan] routing needs 6 rows, the budget is 5");
  EXPECT_NO_THROW(gather_plan(w, idx, kept, 0, 6));
  EXPECT_NO_THROW(gather_plan(w, idx, kept, 1, 0));
  Tensor all_offsets = Tensor::of(Dtype::I32, {2, 3}, {0, 3, 3, 0, 3, 3});
  expect_refused([&] { receive_plan(w, all_offsets, 0, 5); },
                 "[receive_plan] routing needs 6 rows, the budget is 5");
  EXPECT_NO_THROW(receive_plan(w, all_offsets, 0, 6));
  w.capacity = 4, w.pad = 1;
  expect_refused([&] { gather_plan(w, idx, kept, 1, 7); },
                 "[gather_plan] routing needs 8 rows, the budget is 7");
  w.capacity = 2;
  expect_refused([&] { gather_plan(w, idx, kept, 0, 99); }, "source 0 kept more than 2 choices of expert 0");
}

TEST(DispatchRanks, RefusesWhatDoesNotFit) {
  World w{2, 1, 1, 3, 1, 1};
  Tensor idx = Tensor::zeros(Dtype::I32, {6, 1}), kept = Tensor::zeros(Dtype::I32, {6, 1});
  const auto gather = [&](const World& world, int64_t rank = 0) { gather_plan(world, idx, kept, rank, 6); };
  World other = w;
  other.copies = 3;
  expect_refused([&] { gather(other); }, "2 ranks with 3 copies: needed a positive multiple");
  other = w, other.pad = 1;
  expect_refused([&] { gather(other); }, "padding needs a capacity, got 0");
  other = w, other.El = 0;
  expect_refused([&] { gather(other); }, "0 experts per rank, needed 1 to");
  other = w, other.n = 4;
  expect_refused([&] { gather(other); }, "6 tokens of 4 ranks: needed a multiple");
  expect_refused([&] { gather(w, 2); }, "this rank's experts begin at 2 of 2");
  idx.set(3, 2);
  expect_refused([&] { gather(w); }, "choice 3 is expert 2 of 2");
  Tensor all_offsets = Tensor::of(Dtype::I32, {2, 3}, {0, 3, 2, 0, 3, 3});
  expect_refused([&] { receive_plan(w, all_offsets, 1, 9); }, "offsets of rank 0 are not ascending");
  other = w, other.El = 2;
  expect_refused([&] { receive_plan(other, all_offsets, 0, 9); },
                 "[receive_plan] argument 'all_offsets' is [2, 3], needed [2, 5]");

  Tensor rows = Tensor::zeros(Dtype::F32, {8, 4}), row_probs = Tensor::zeros(Dtype::F32, {7}),
         token_row = Tensor::zeros(Dtype::I32, {3, 1}), offsets = Tensor::zeros(Dtype::I32, {5}),
         y = Tensor::zeros(Dtype::F32, {3, 5}), dprobs = Tensor::zeros(Dtype::F32, {3, 1});
  const auto combine = [&](program::AttrSet attrs) {
    call(KernelKind::combine_ranks, Phase::Forward, {in(rows), in(token_row), in(offsets), out(y)}, attrs);
  };
  expect_refused(
      [&] {
        combine({{"copies", 1}, {"experts_per_rank", 2}});
      },
      "[combine_ranks] argument 'y' is [3, 5], needed [3, 4]");
  expect_refused(
      [&] {
        combine({{"copies", 0}, {"experts_per_rank", 2}});
      },
      "[combine_ranks] copies is 0, needed 1 or more");
  expect_refused(
      [&] {
        combine({{"copies", 1}, {"experts_per_rank", 3}});
      },
      "[combine_ranks] 4 experts with 3 per rank: needed a multiple");
  expect_refused(
      [&] {
        call(KernelKind::permute_ranks, Phase::BackwardInput,
             {in(rows), in(row_probs), in(token_row), in(offsets), out(y), out(dprobs)},
             {{"copies", 1}, {"experts_per_rank", 2}});
      },
      "[permute_ranks] argument 'drow_probs' is [7], needed [8]");
}

}  // namespace
}  // namespace pleat::kernels::testing
