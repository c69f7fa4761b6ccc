// Plans over several ranks, all of them simulated, equal to the CPU's.
#include <algorithm>
#include <cmath>

#include "cuda/routing_support.h"

namespace pleat::kernels::testing {
namespace {

using program::KernelKind;
using program::Phase;
using tensor::Dtype;

Tensor coords_of(int64_t rank) {
  Tensor coords = Tensor::zeros(Dtype::I64, {program::kNumGroups});
  coords.set(static_cast<int64_t>(program::Group::Dispatch), static_cast<double>(rank));
  coords.set(static_cast<int64_t>(program::Group::World), static_cast<double>(rank) + 10);
  return coords;
}

struct World {
  int64_t ranks, copies, El, T, k;
  int64_t E() const { return ranks / copies * El; }
};
const World kWorlds[] = {{1, 1, 8, 50, 2}, {4, 1, 3, 40, 2}, {4, 2, 5, 33, 3}, {8, 1, 16, 100, 8}};

// The plans of all ranks, each of its own tokens.
std::vector<RowPlan> plans_of(const World& w, int64_t capacity) {
  std::vector<RowPlan> plans;
  for (int64_t rank = 0; rank < w.ranks; ++rank) {
    RowPlan p = cpu_plan(w.T, w.k, w.E(), w.T * w.k);
    p.idx = random_choice(w.T, w.k, w.E(), static_cast<uint64_t>(20 + rank));
    for (int64_t i = 0; i < p.probs.size(); ++i) p.probs.set(i, std::round(4 * p.probs.at(i)) / 4);
    call(KernelKind::dispatch_plan, Phase::Forward,
         {in(p.idx), in(p.probs), none(), out(p.offsets), out(p.row_token), out(p.row_slot), out(p.token_row),
          out(p.dropped)},
         {{"capacity", double(capacity)},
          {"experts", double(w.E())},
          {"pad", 0},
          {"policy", 0},
          {"top_k", double(w.k)}});
    plans.push_back(p);
  }
  return plans;
}

Tensor all_offsets_of(const World& w, const std::vector<RowPlan>& plans) {
  Tensor all = Tensor::zeros(Dtype::I32, {w.ranks, w.E() + 1});
  for (int64_t s = 0; s < w.ranks; ++s)
    for (int64_t e = 0; e <= w.E(); ++e)
      all.set(s * (w.E() + 1) + e, plans[static_cast<size_t>(s)].offsets.at(e));
  return all;
}

TEST(CudaGatherPlan, IsThePlanOfTheCpu) {
  PLEAT_NEEDS_GPU();
  for (const World& w : kWorlds)
    for (bool pad : {false, true}) {
      const int64_t capacity = 9, n = w.ranks * w.T;
      const std::vector<RowPlan> plans = plans_of(w, pad ? capacity : 0);
      Tensor idx = Tensor::zeros(Dtype::I32, {n, w.k}), kept = Tensor::zeros(Dtype::I32, {n, w.k});
      for (int64_t s = 0; s < w.ranks; ++s)
        for (int64_t i = 0; i < w.T * w.k; ++i) {
          idx.set(s * w.T * w.k + i, plans[static_cast<size_t>(s)].idx.at(i));
          kept.set(s * w.T * w.k + i, plans[static_cast<size_t>(s)].token_row.at(i));
        }
      for (int64_t rank = 0; rank < w.ranks; ++rank) {
        const int64_t R = (pad ? w.ranks * w.El * capacity : n * w.k) + 3;
        Tensor coords = coords_of(rank), offsets = Tensor::nan(Dtype::I32, {w.El + 1}),
               row_token = Tensor::nan(Dtype::I32, {R}), row_slot = Tensor::nan(Dtype::I32, {R}),
               token_row = Tensor::nan(Dtype::I32, {n, w.k});
        expect_agrees(
            KernelKind::gather_plan, Phase::Forward,
            {in(idx), in(kept), in(coords), out(offsets), out(row_token), out(row_slot), out(token_row)},
            {{"capacity", double(capacity)},
             {"copies", double(w.copies)},
             {"experts_per_rank", double(w.El)},
             {"pad", double(pad)},
             {"ranks", double(w.ranks)}},
            {});
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
}

TEST(CudaReceivePlan, IsThePlanOfTheCpu) {
  PLEAT_NEEDS_GPU();
  for (const World& w : kWorlds) {
    Tensor all = all_offsets_of(w, plans_of(w, 0));
    for (int64_t rank = 0; rank < w.ranks; ++rank) {
      const int64_t R = w.ranks * w.T * w.k + 3;
      Tensor coords = coords_of(rank), offsets = Tensor::nan(Dtype::I32, {w.El + 1}),
             source_row = Tensor::nan(Dtype::I32, {R}), sorted_row = Tensor::nan(Dtype::I32, {R});
      expect_agrees(KernelKind::receive_plan, Phase::Forward,
                    {in(all), in(coords), out(offsets), out(source_row), out(sorted_row)},
                    {{"copies", double(w.copies)}, {"experts_per_rank", double(w.El)}}, {});
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(CudaTrimPlan, IsThePlanOfTheCpu) {
  PLEAT_NEEDS_GPU();
  for (const World& w : kWorlds)
    for (int64_t budget : {int64_t{1}, w.T * w.k / 2, w.ranks * w.T * w.k})
      for (int policy : {0, 1})
        for (int64_t rank = 0; rank < w.ranks; ++rank) {
          std::vector<RowPlan> plans = plans_of(w, 0);
          Tensor all = all_offsets_of(w, plans), coords = coords_of(rank);
          RowPlan& p = plans[static_cast<size_t>(rank)];
          Tensor overflow = Tensor::zeros(Dtype::I64, {1});
          expect_agrees(KernelKind::trim_plan, Phase::Forward,
                        {in(p.probs), in(coords), add(all), add(p.offsets), add(p.row_token), add(p.row_slot),
                         add(p.token_row), add(p.dropped), policy ? add(overflow) : none()},
                        {{"budget", double(budget)},
                         {"copies", double(w.copies)},
                         {"experts_per_rank", double(w.El)},
                         {"policy", double(policy)}},
                        {});
          if (::testing::Test::HasFatalFailure()) return;
        }
}

}  // namespace
}  // namespace pleat::kernels::testing
