// Row plans against brute force, capacity and padding, and the two permutations with their gradients.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/kernel_support.h"

namespace pleat::kernels::testing {
namespace {

using program::AttrSet;
using program::KernelKind;
using program::Phase;
using tensor::Dtype;

struct Plan {
  Tensor offsets, row_token, row_slot, token_row, dropped;
};

Plan plan(Tensor& idx, Tensor& probs, int64_t experts, int64_t rows, int capacity = 0, int policy = 0,
          int pad = 0) {
  const int64_t T = idx.shape[0], k = idx.shape[1];
  Plan p{Tensor::nan(Dtype::I32, {experts + 1}), Tensor::nan(Dtype::I32, {rows}),
         Tensor::nan(Dtype::I32, {rows}), Tensor::nan(Dtype::I32, {T, k}), Tensor::nan(Dtype::I64, {1})};
  call(KernelKind::dispatch_plan, Phase::Forward,
       {in(idx), in(probs), none(), out(p.offsets), out(p.row_token), out(p.row_slot), out(p.token_row),
        out(p.dropped)},
       {{"capacity", 1.0 * capacity},
        {"experts", 1.0 * experts},
        {"pad", 1.0 * pad},
        {"policy", 1.0 * policy},
        {"top_k", 1.0 * k}});
  return p;
}

// Distinct ascending experts per token; some experts stay empty.
Tensor random_choice(int64_t T, int64_t k, int64_t E, uint64_t seed) {
  Tensor idx = Tensor::zeros(Dtype::I32, {T, k});
  const base::RandomStream stream(seed, base::RandomUse::Test, 0, 9);
  for (int64_t t = 0; t < T; ++t) {
    std::vector<std::pair<double, int64_t>> order;
    for (int64_t e = 0; e < E; ++e)
      if (e % 4 != 1)
        order.push_back({stream.uniform(static_cast<uint64_t>(t * E + e)) + 0.1 * static_cast<double>(e), e});
    std::sort(order.begin(), order.end());
    std::vector<int64_t> pick;
    for (int64_t s = 0; s < k; ++s) pick.push_back(order[s].second);
    std::sort(pick.begin(), pick.end());
    for (int64_t s = 0; s < k; ++s) idx.set(t * k + s, static_cast<double>(pick[s]));
  }
  return idx;
}

TEST(DispatchPlan, AgreesWithBruteForceForEveryPolicy) {
  for (const Dtype dtype : {Dtype::F32, Dtype::F64})
    for (int capacity : {0, 1, 7, 19, 1000})
      for (int policy : {0, 1})
        for (int pad : {0, 1}) {
          if (pad && !capacity) continue;
          const int64_t T = 101, k = 3, E = 9, R = pad ? E * capacity + 5 : T * k + 5;
          Tensor idx = random_choice(T, k, E, 3), probs = Tensor::normal(dtype, {T, k}, 4);
          for (int64_t i = 0; i < T * k; ++i) probs.set(i, std::round(4 * probs.at(i)) / 4);  // many ties
          Plan got = plan(idx, probs, E, R, capacity, policy, pad);
          std::vector<double> row_token, row_slot, offsets = {0}, token_row(T * k, -1.0);
          double dropped = 0;
          for (int64_t e = 0; e < E; ++e) {
            std::vector<int64_t> mine;
            for (int64_t i = 0; i < T * k; ++i)
              if (idx.at(i) == static_cast<double>(e)) mine.push_back(i);
            if (capacity && static_cast<int64_t>(mine.size()) > capacity) {
              dropped += static_cast<double>(mine.size()) - capacity;
              if (policy == 0)
                std::stable_sort(mine.begin(), mine.end(),
                                 [&](int64_t a, int64_t b) { return probs.at(a) > probs.at(b); });
              mine.resize(capacity);
              std::sort(mine.begin(), mine.end());
            }
            for (int64_t i : mine) {
              token_row[i] = static_cast<double>(row_token.size());
              row_token.push_back(static_cast<double>(i / k));
              row_slot.push_back(static_cast<double>(i % k));
            }
            if (pad)
              row_token.resize(static_cast<size_t>((e + 1) * capacity), -1.0),
                  row_slot.resize(row_token.size(), -1.0);
            offsets.push_back(static_cast<double>(row_token.size()));
          }
          row_token.resize(R, -1.0), row_slot.resize(R, -1.0);
          EXPECT_EQ(got.offsets.numbers(), offsets);
          EXPECT_EQ(got.row_token.numbers(), row_token);
          EXPECT_EQ(got.row_slot.numbers(), row_slot);
          EXPECT_EQ(got.token_row.numbers(), token_row);
          EXPECT_EQ(got.dropped.at(0), dropped);
        }
}

TEST(DispatchPlan, CountsDropsOverCallsAndToleratesNan) {
  Tensor idx = Tensor::zeros(Dtype::I32, {6, 1}), probs = Tensor::nan(Dtype::F64, {6, 1});
  probs.set(4, 0.5);
  Plan p = plan(idx, probs, 2, 6, 2);
  EXPECT_EQ(p.row_token.numbers(), (std::vector<double>{0, 4, -1, -1, -1, -1}));
  EXPECT_EQ(p.dropped.at(0), 4);
  call(KernelKind::dispatch_plan, Phase::Forward,
       {in(idx), in(probs), none(), out(p.offsets), out(p.row_token), out(p.row_slot), out(p.token_row),
        add(p.dropped)},
       {{"capacity", 2}, {"experts", 2}, {"pad", 0}, {"policy", 1}, {"top_k", 1}});
  EXPECT_EQ(p.row_token.numbers(), (std::vector<double>{0, 1, -1, -1, -1, -1}));
  EXPECT_EQ(p.dropped.at(0), 8);
}

TEST(DispatchPlan, RefusesMoreRowsThanTheBudget) {
  Tensor idx = Tensor::zeros(Dtype::I32, {6, 1}), probs = Tensor::zeros(Dtype::F32, {6, 1});
  try {
    plan(idx, probs, 2, 5);
    ADD_FAILURE() << "accepted";
  } catch (const base::Error& e) {
    EXPECT_NE(std::string(e.what()).find("routing needs 6 rows, the budget is 5"), std::string::npos);
  }
  EXPECT_THROW(plan(idx, probs, 2, 6, 0, 0, 1), base::Error);   // padding without capacity
  EXPECT_THROW(plan(idx, probs, 2, 6, -1, 0, 0), base::Error);  // negative capacity
  EXPECT_THROW(plan(idx, probs, 2, 6, 0, 2, 0), base::Error);   // unknown policy
  idx.set(3, 2);
  EXPECT_THROW(plan(idx, probs, 2, 6), base::Error);  // expert out of range
}

struct Case {
  int64_t T, k, E, h;
  int capacity, pad;
};
constexpr Case kCases[] = {
    {1, 1, 2, 1, 0, 0}, {67, 3, 9, 33, 0, 0}, {67, 3, 9, 1030, 8, 0}, {67, 3, 9, 20, 8, 1}};

TEST(Permute, ForwardAndBackwardMoveExactly) {
  for (const auto& [C, Rt] :
       {std::pair{Dtype::F32, Dtype::F32}, {Dtype::F32, Dtype::F64}, {Dtype::F64, Dtype::F64}})
    for (const Case c : kCases)
      for (int threads : {1, 2, 4}) {
        const int64_t budget = c.T * c.k + c.E * c.capacity + 3;
        Tensor idx = c.E > 2 ? random_choice(c.T, c.k, c.E, 3) : Tensor::zeros(Dtype::I32, {c.T, c.k});
        Tensor probs = Tensor::normal(Rt, {c.T, c.k}, 1), x = Tensor::normal(C, {c.T, c.h}, 2);
        Plan p = plan(idx, probs, c.E, budget, c.capacity, 0, c.pad);
        Tensor rows = Tensor::nan(C, {budget, c.h}), row_probs = Tensor::nan(Rt, {budget});
        call(KernelKind::permute, Phase::Forward,
             {in(x), in(probs), in(p.offsets), in(p.row_token), in(p.row_slot), in(p.token_row), out(rows),
              out(row_probs)},
             {}, threads);
        const int64_t used = static_cast<int64_t>(p.offsets.at(c.E));
        for (int64_t r = 0; r < budget; ++r) {
          const int64_t t = static_cast<int64_t>(p.row_token.at(r));
          for (int64_t j = 0; j < c.h; ++j) {
            if (r >= used) {
              ASSERT_TRUE(std::isnan(rows.at(r * c.h + j)));
            } else {
              ASSERT_EQ(rows.at(r * c.h + j), t < 0 ? 0.0 : x.at(t * c.h + j));
            }
          }
          if (r < used) {
            ASSERT_EQ(row_probs.at(r),
                      t < 0 ? 0.0 : probs.at(t * c.k + static_cast<int64_t>(p.row_slot.at(r))));
          } else {
            ASSERT_TRUE(std::isnan(row_probs.at(r)));
          }
        }
        // Backward: rows past the end and fillers hold NaN and must not be read.
        Tensor drows = Tensor::normal(C, {budget, c.h}, 5), drow_probs = Tensor::normal(Rt, {budget}, 6);
        for (int64_t r = 0; r < budget; ++r)
          if (p.row_token.at(r) < 0) {
            for (int64_t j = 0; j < c.h; ++j) drows.set(r * c.h + j, NAN);
            drow_probs.set(r, NAN);
          }
        Tensor dx = Tensor::nan(C, {c.T, c.h}), dprobs = Tensor::nan(Rt, {c.T, c.k});
        call(KernelKind::permute, Phase::BackwardInput,
             {in(drows), in(drow_probs), in(p.token_row), out(dx), out(dprobs)}, {}, threads);
        Tensor sum = x;
        call(KernelKind::permute, Phase::BackwardInput,
             {in(drows), in(drow_probs), in(p.token_row), add(sum), out(dprobs)}, {}, threads);
        const double eps = C == Dtype::F32 ? 1e-6 : 1e-14;
        for (int64_t t = 0; t < c.T; ++t) {
          for (int64_t j = 0; j < c.h; ++j) {
            double want = 0;
            for (int64_t s = 0; s < c.k; ++s)
              if (const int64_t r = static_cast<int64_t>(p.token_row.at(t * c.k + s)); r >= 0)
                want += drows.at(r * c.h + j);
            ASSERT_NEAR(dx.at(t * c.h + j), want, eps);
            ASSERT_NEAR(sum.at(t * c.h + j), want + x.at(t * c.h + j), 2 * eps);
          }
          for (int64_t s = 0; s < c.k; ++s) {
            const int64_t r = static_cast<int64_t>(p.token_row.at(t * c.k + s));
            ASSERT_EQ(dprobs.at(t * c.k + s), r < 0 ? 0.0 : drow_probs.at(r));
          }
        }
      }
}

TEST(Combine, ForwardAndBackward) {
  for (const Dtype C : {Dtype::F32, Dtype::F64})
    for (const Case c : kCases) {
      const int64_t budget = c.T * c.k + c.E * c.capacity + 3;
      Tensor idx = c.E > 2 ? random_choice(c.T, c.k, c.E, 3) : Tensor::zeros(Dtype::I32, {c.T, c.k});
      Tensor probs = Tensor::normal(Dtype::F64, {c.T, c.k}, 1);
      Plan p = plan(idx, probs, c.E, budget, c.capacity, 1, c.pad);
      const int64_t used = static_cast<int64_t>(p.offsets.at(c.E));
      Tensor rows = Tensor::normal(C, {budget, c.h}, 5), residual = Tensor::normal(C, {c.T, c.h}, 6),
             shared = Tensor::normal(C, {c.T, c.h}, 7);
      for (int64_t i = used * c.h; i < budget * c.h; ++i) rows.set(i, NAN);
      for (int with = 0; with < 4; ++with) {
        Tensor y = Tensor::nan(C, {c.T, c.h}), y4 = y;
        for (Tensor* o : {&y, &y4})
          call(KernelKind::combine, Phase::Forward,
               {in(rows), in(p.token_row), with & 1 ? in(residual) : none(), with & 2 ? in(shared) : none(),
                out(*o)},
               {}, o == &y ? 1 : 4);
        EXPECT_EQ(y, y4);
        for (int64_t i = 0; i < c.T * c.h; ++i) {
          const int64_t t = i / c.h, j = i % c.h;
          double want = (with & 1 ? residual.at(i) : 0) + (with & 2 ? shared.at(i) : 0);
          for (int64_t s = 0; s < c.k; ++s)
            if (const int64_t r = static_cast<int64_t>(p.token_row.at(t * c.k + s)); r >= 0)
              want += rows.at(r * c.h + j);
          ASSERT_NEAR(y.at(i), want, C == Dtype::F32 ? 3e-6 : 1e-14);
        }
      }
      Tensor drows = Tensor::nan(C, {budget, c.h});
      call(KernelKind::combine, Phase::BackwardInput,
           {in(residual), in(p.row_token), in(p.offsets), in(p.token_row), out(drows)});
      for (int64_t r = 0; r < budget; ++r)
        for (int64_t j = 0; j < c.h; ++j) {
          const int64_t t = static_cast<int64_t>(p.row_token.at(r));
          if (r >= used) {
            ASSERT_TRUE(std::isnan(drows.at(r * c.h + j)));
          } else {
            ASSERT_EQ(drows.at(r * c.h + j), t < 0 ? 0.0 : residual.at(t * c.h + j));
          }
        }
    }
}

TEST(Permute, RefusesOtherShapes) {
  Tensor x = Tensor::zeros(Dtype::F32, {4, 8}), probs = Tensor::zeros(Dtype::F32, {4, 2}),
         offsets = Tensor::zeros(Dtype::I32, {3});
  Tensor token = Tensor::zeros(Dtype::I32, {8}), rows = Tensor::zeros(Dtype::F32, {8, 8}),
         row_probs = Tensor::zeros(Dtype::F32, {8});
  const auto message = [&](int64_t slots, int64_t tokens) -> std::string {
    Tensor slot = Tensor::zeros(Dtype::I32, {slots}), token_row = Tensor::zeros(Dtype::I32, {tokens, 2});
    try {
      call(KernelKind::permute, Phase::Forward,
           {in(x), in(probs), in(offsets), in(token), in(slot), in(token_row), out(rows), out(row_probs)});
    } catch (const base::Error& e) {
      return e.what();
    }
    return "accepted";
  };
  EXPECT_EQ(message(7, 4), "[permute] argument 'row_slot' is [7], needed [8]");
  EXPECT_EQ(message(8, 3), "[permute] argument 'token_row' is [3, 2], needed [4, 2]");
}

}  // namespace
}  // namespace pleat::kernels::testing
