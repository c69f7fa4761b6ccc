// Where the time of a step went: every stage in one class, gaps counted once.
#include "train/step_breakdown.h"

#include <gtest/gtest.h>

namespace pleat::train {
namespace {

using program::Op;

interpret::Breakdown timed(const std::vector<std::pair<Op, std::pair<int64_t, int64_t>>>& stages) {
  program::Program p;
  interpret::Timeline t;
  for (const auto& [op, ns] : stages) {
    t.spans.push_back({static_cast<program::StageId>(p.stages.size()), ns.first, ns.second});
    program::Stage stage;
    stage.op = op;
    p.stages.push_back(stage);
  }
  return interpret::breakdown(p, t);
}

TEST(StepBreakdown, EveryClassIsThereAndGapsAreWhatNoStageCovers) {
  constexpr int64_t ms = 1'000'000;
  const auto classes = step_breakdown(timed({{Op::embedding, {1 * ms, 2 * ms}},
                                             {Op::qkv, {3 * ms, 6 * ms}},
                                             {Op::shared_up, {5 * ms, 8 * ms}},  // beside the one above
                                             {Op::expert_up, {8 * ms, 10 * ms}},
                                             {Op::mlp_up, {10 * ms, 11 * ms}},
                                             {Op::adamw, {11 * ms, 15 * ms}}}),
                                      20e-3);
  const std::vector<std::pair<std::string, double>> want = {
      {"attention", 3e-3}, {"router", 0},       {"dispatch", 0}, {"experts", 5e-3},  {"combine", 0},
      {"head", 0},         {"optimizer", 4e-3}, {"other", 2e-3}, {"host gaps", 7e-3}};
  ASSERT_EQ(classes.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(classes[i].first, want[i].first);
    EXPECT_NEAR(classes[i].second, want[i].second, 1e-12) << want[i].first;
  }
}

TEST(StepBreakdown, MakingCodesIsAClassOfItsOwnWhereThereIsAny) {
  constexpr int64_t ms = 1'000'000;
  const auto classes = step_breakdown(timed({{Op::attn_quantize, {0, 2 * ms}},
                                             {Op::qkv_scaled, {2 * ms, 3 * ms}},
                                             {Op::expert_weight_codes, {3 * ms, 4 * ms}},
                                             {Op::expert_turn, {4 * ms, 5 * ms}}}),
                                      5e-3);
  ASSERT_EQ(classes.size(), 10u);
  EXPECT_EQ(classes[0], (std::pair<std::string, double>{"attention", 1e-3}));
  EXPECT_EQ(classes[3].second, 0);
  EXPECT_EQ(classes[8].first, "codes");
  EXPECT_NEAR(classes[8].second, 4e-3, 1e-12);
}

}  // namespace
}  // namespace pleat::train
