// Row plans equal to the CPU's, element by element, and the permutations with their gradients.
#include <cmath>

#include "cuda/routing_support.h"

namespace pleat::kernels::testing {
namespace {

using program::KernelKind;
using program::Phase;
using tensor::Dtype;

struct Case {
  int64_t T, k, E;
  bool one = false;
};
const Case kCases[] = {{0, 2, 8},    {1, 1, 1},     {7, 2, 8},     {129, 3, 9},       {500, 8, 128},
                       {3000, 2, 8}, {1300, 6, 64}, {700, 4, 300}, {600, 1, 8, true}, {2100, 2, 16, true}};

TEST(CudaDispatchPlan, IsThePlanOfTheCpu) {
  PLEAT_NEEDS_GPU();
  for (const Case& c : kCases)
    for (int capacity : {0, 1, 7, 40, 5000})
      for (int policy : {0, 1})
        for (int pad : {0, 1}) {
          if ((pad && !capacity) || (policy && !capacity)) continue;
          if (pad && capacity == 5000 && c.E > 16) continue;
          if (only_once() && (capacity == 1 || capacity == 40 || policy != pad)) continue;
          SCOPED_TRACE("T " + std::to_string(c.T) + " k " + std::to_string(c.k) + " E " +
                       std::to_string(c.E) + " capacity " + std::to_string(capacity) + " policy " +
                       std::to_string(policy) + " pad " + std::to_string(pad));
          const int64_t R = pad ? c.E * capacity + 5 : c.T * c.k + 5;
          Tensor idx = random_choice(c.T, c.k, c.E, 3, c.one),
                 probs = Tensor::normal(Dtype::F32, {c.T, c.k}, 4);
          for (int64_t i = 0; i < probs.size(); ++i) probs.set(i, std::round(4 * probs.at(i)) / 4);
          Tensor offsets = Tensor::nan(Dtype::I32, {c.E + 1}), row_token = Tensor::nan(Dtype::I32, {R}),
                 row_slot = Tensor::nan(Dtype::I32, {R}), token_row = Tensor::nan(Dtype::I32, {c.T, c.k}),
                 dropped = Tensor::zeros(Dtype::I64, {1});
          dropped.set(0, 9);
          expect_agrees(KernelKind::dispatch_plan, Phase::Forward,
                        {in(idx), in(probs), none(), out(offsets), out(row_token), out(row_slot),
                         out(token_row), policy ? add(dropped) : out(dropped)},
                        {{"capacity", double(capacity)},
                         {"experts", double(c.E)},
                         {"pad", double(pad)},
                         {"policy", double(policy)},
                         {"top_k", double(c.k)}},
                        {});
          if (::testing::Test::HasFatalFailure()) return;
        }
}

// More chunks than a thread of the scan holds at once, and more buckets than it has threads.
TEST(CudaDispatchPlan, OfManyChoicesIsThePlanOfTheCpu) {
  PLEAT_NEEDS_GPU();
  for (auto [T, k, E] : {std::tuple{26000, 4, 300}, {36001, 1, 1100}, {40000, 8, 64}, {33333, 2, 7}})
    for (int capacity : {0, 70}) {
      if (only_once() && capacity != (E == 300 ? 0 : 70)) continue;
      SCOPED_TRACE("T " + std::to_string(T) + " E " + std::to_string(E));
      const int64_t R = T * k + 3;
      Tensor idx = Tensor::zeros(Dtype::I32, {T, k}), probs = Tensor::normal(Dtype::F32, {T, k}, 4);
      for (int64_t i = 0; i < T * k; ++i)  // slot s takes one of the s-th E / k experts
        idx.set(i, static_cast<double>(i % k * (E / k) + i * i % 10007 % (E / k)));
      Tensor offsets = Tensor::nan(Dtype::I32, {E + 1}), row_token = Tensor::nan(Dtype::I32, {R}),
             row_slot = Tensor::nan(Dtype::I32, {R}), token_row = Tensor::nan(Dtype::I32, {T, k}),
             dropped = Tensor::nan(Dtype::I64, {1});
      expect_agrees(KernelKind::dispatch_plan, Phase::Forward,
                    {in(idx), in(probs), none(), out(offsets), out(row_token), out(row_slot), out(token_row),
                     out(dropped)},
                    {{"capacity", double(capacity)},
                     {"experts", double(E)},
                     {"pad", 0},
                     {"policy", 1},
                     {"top_k", double(k)}},
                    {});
      if (::testing::Test::HasFatalFailure()) return;
    }
}

// A kernel has one limit of shared memory, for all that is prepared with it.
TEST(CudaDispatchPlan, ASmallerPlanLeavesALargerOneItsSharedMemory) {
  PLEAT_NEEDS_GPU();
  const auto plan = [](int64_t E, const std::function<void()>& when_prepared) {
    const int64_t T = 50, k = 2;
    Tensor idx = random_choice(T, k, E, 3), probs = Tensor::normal(Dtype::F32, {T, k}, 4);
    Tensor offsets = Tensor::nan(Dtype::I32, {E + 1}), row_token = Tensor::nan(Dtype::I32, {T * k}),
           row_slot = Tensor::nan(Dtype::I32, {T * k}), token_row = Tensor::nan(Dtype::I32, {T, k}),
           dropped = Tensor::zeros(Dtype::I64, {1});
    call_cuda(KernelKind::dispatch_plan, Phase::Forward,
              {in(idx), in(probs), none(), out(offsets), out(row_token), out(row_slot), out(token_row),
               out(dropped)},
              {{"capacity", 0}, {"experts", double(E)}, {"pad", 0}, {"policy", 0}, {"top_k", double(k)}},
              when_prepared);
    EXPECT_EQ(offsets.at(E), double(T * k));
  };
  plan(4000, [&] { plan(2000, {}); });
  try {
    plan(9000, {});
    ADD_FAILURE() << "more experts than shared memory holds were accepted";
  } catch (const base::Error& e) {
    EXPECT_NE(std::string(e.what()).find("9000 experts"), std::string::npos) << e.what();
  }
}

TEST(CudaDispatchPlan, CapacityOfPieces) {
  PLEAT_NEEDS_GPU();
  const int64_t T = 400, k = 3, E = 12, pieces = 4;
  for (int pad : {0, 1})
    for (int policy : {0, 1}) {
      const int64_t capacity = 21, R = pad ? E * pieces * capacity : T * k;
      Tensor idx = random_choice(T, k, E, 3), probs = Tensor::normal(Dtype::F32, {T, k}, 4);
      Tensor piece = Tensor::zeros(Dtype::I32, {T});
      for (int64_t t = 0; t < T; ++t) piece.set(t, static_cast<double>(t * 7 % pieces));
      Tensor offsets = Tensor::nan(Dtype::I32, {E + 1}), row_token = Tensor::nan(Dtype::I32, {R}),
             row_slot = Tensor::nan(Dtype::I32, {R}), token_row = Tensor::nan(Dtype::I32, {T, k}),
             dropped = Tensor::nan(Dtype::I64, {1});
      expect_agrees(KernelKind::dispatch_plan, Phase::Forward,
                    {in(idx), in(probs), in(piece), out(offsets), out(row_token), out(row_slot),
                     out(token_row), out(dropped)},
                    {{"capacity", double(capacity)},
                     {"experts", double(E)},
                     {"pad", double(pad)},
                     {"pieces", double(pieces)},
                     {"policy", double(policy)},
                     {"top_k", double(k)}},
                    {});
    }
}

class CudaPermute : public ::testing::TestWithParam<Dtype> {};

TEST_P(CudaPermute, AgreesWithTheCpu) {
  PLEAT_NEEDS_GPU();
  const Dtype type = GetParam();
  for (auto [T, k, E, width, capacity, pad] : {std::tuple{1, 1, 1, 1, 0, 0},
                                               {7, 2, 8, 33, 0, 0},
                                               {65, 3, 9, 64, 10, 1},
                                               {65, 4, 9, 129, 10, 0},
                                               {40, 8, 64, 2048, 0, 0},
                                               {33, 6, 16, 4096, 0, 0},
                                               {20, 2, 8, 7168, 3, 0},
                                               {50, 10, 32, 72, 0, 0},
                                               {30, 40, 96, 264, 0, 0},
                                               {40, 2, 8, 1032, 30, 1},
                                               {2000, 8, 16, 257, 0, 0}}) {
    const int64_t R = (pad ? E * capacity : T * k) + 3;
    RowPlan p = cpu_plan(T, k, E, R, capacity, pad != 0);
    Tensor x = Tensor::normal(type, {T, width}, 1), rows = Tensor::nan(type, {R, width}),
           row_probs = Tensor::nan(Dtype::F32, {R});
    expect_agrees(KernelKind::permute, Phase::Forward,
                  {in(x), in(p.probs), in(p.offsets), in(p.row_token), in(p.row_slot), in(p.token_row),
                   out(rows), out(row_probs)},
                  {}, {});
    Tensor drows = Tensor::normal(type, {R, width}, 2), drow_probs = Tensor::normal(Dtype::F32, {R}, 3);
    for (bool update : {false, true}) {
      Tensor dx = Tensor::normal(type, {T, width}, 4), dprobs = Tensor::nan(Dtype::F32, {T, k});
      expect_agrees(KernelKind::permute, Phase::BackwardInput,
                    {in(drows), in(drow_probs), in(p.token_row), update ? add(dx) : out(dx), out(dprobs)}, {},
                    bound(type, k));
    }
    Tensor residual = Tensor::normal(type, {T, width}, 5), shared = Tensor::normal(type, {T, width}, 6);
    for (int with = 0; with < 4; ++with) {
      Tensor y = Tensor::nan(type, {T, width});
      expect_agrees(KernelKind::combine, Phase::Forward,
                    {in(drows), in(p.token_row), with & 1 ? in(residual) : none(),
                     with & 2 ? in(shared) : none(), out(y)},
                    {}, bound(type, k));
    }
    Tensor back = Tensor::nan(type, {R, width});
    expect_agrees(KernelKind::combine, Phase::BackwardInput,
                  {in(x), in(p.row_token), in(p.offsets), in(p.token_row), out(back)}, {}, {});
  }
}

TEST_P(CudaPermute, LeavesRowsBehindThePlanAlone) {
  PLEAT_NEEDS_GPU();
  const Dtype type = GetParam();
  const int64_t T = 9, k = 2, E = 4, R = 30, width = 40;
  RowPlan p = cpu_plan(T, k, E, R);
  Tensor x = Tensor::normal(type, {T, width}, 1), rows = Tensor::nan(type, {R, width}),
         row_probs = Tensor::nan(Dtype::F32, {R});
  call_cuda(KernelKind::permute, Phase::Forward,
            {in(x), in(p.probs), in(p.offsets), in(p.row_token), in(p.row_slot), in(p.token_row), out(rows),
             out(row_probs)});
  for (int64_t i = T * k * width; i < R * width; ++i) ASSERT_TRUE(std::isnan(rows.at(i)));
  for (int64_t r = T * k; r < R; ++r) ASSERT_TRUE(std::isnan(row_probs.at(r)));
}

TEST_P(CudaPermute, SumsOverRanks) {
  PLEAT_NEEDS_GPU();
  const Dtype type = GetParam();
  // Lists of up to two, four and eight rows at a time and longer ones; as many slots as lanes, more rows than
  // lanes; choices that were dropped; a warp that takes several steps, the last one cut.
  for (auto [T, ranks, El, copies, k, width, capacity] : {std::tuple{31, 1, 4, 1, 2, 33, 0},
                                                          {31, 4, 2, 1, 3, 64, 0},
                                                          {31, 3, 5, 2, 4, 129, 0},
                                                          {31, 8, 8, 1, 8, 512, 0},
                                                          {31, 4, 2, 1, 1, 1032, 0},
                                                          {31, 2, 3, 2, 1, 264, 3},
                                                          {31, 4, 4, 1, 4, 2056, 5},
                                                          {31, 5, 8, 3, 6, 136, 2},
                                                          {31, 4, 12, 1, 32, 40, 0},
                                                          {31, 3, 11, 4, 30, 72, 20},
                                                          {0, 2, 2, 1, 2, 8, 0},
                                                          {6000, 4, 4, 1, 5, 520, 0}}) {
    const int64_t E = ranks * El, R = T * k * copies + 4;
    RowPlan p = cpu_plan(T, k, E, T * k, capacity);
    const program::AttrSet attrs{{"copies", double(copies)}, {"experts_per_rank", double(El)}};
    Tensor rows = Tensor::normal(type, {R, width}, 1), y = Tensor::nan(type, {T, width});
    expect_agrees(KernelKind::combine_ranks, Phase::Forward,
                  {in(rows), in(p.token_row), in(p.offsets), out(y)}, attrs, bound(type, k * copies));
    Tensor drow_probs = Tensor::normal(Dtype::F32, {R}, 2);
    for (bool update : {false, true}) {
      Tensor dx = Tensor::normal(type, {T, width}, 3), dprobs = Tensor::nan(Dtype::F32, {T, k});
      expect_agrees(
          KernelKind::permute_ranks, Phase::BackwardInput,
          {in(rows), in(drow_probs), in(p.token_row), in(p.offsets), update ? add(dx) : out(dx), out(dprobs)},
          attrs, bound(type, k * copies));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, CudaPermute, ::testing::Values(Dtype::F32, Dtype::BF16));

}  // namespace
}  // namespace pleat::kernels::testing
