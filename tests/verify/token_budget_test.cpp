// The token budget under forced skew: exactly at it, one row below, one row above, for every policy and both
// dispatchers.
#include "base/error.h"
#include "model/overflow.h"
#include "verify/verify_support.h"

namespace pleat::verify {
namespace {

constexpr int kTokens = 16;  // of a rank
constexpr int kSkewed = 12;  // of them to expert 0
constexpr int kRows = 24;    // what the first of two expert ranks gets from both

// Token 0 chooses expert 0, token 1 expert 3: attention adds nothing, and what experts add is small.
double skewed_weight(const model::Parameter& p, int64_t i, double initial) {
  const int64_t h = 16;
  if (p.name == "embedding.weight") return i / h == i % h ? 8 : 0;
  if (p.name.ends_with("attn.out.weight")) return 0;
  if (p.name.ends_with("router.weight")) return i == 0 || i == 3 * h + 1 ? 2 : initial;
  return initial;
}

config::Config skewed_model(double budget, const char* overflow, std::vector<std::string> more = {}) {
  more.insert(more.end(), {"moe.num_experts=4", "moe.top_k=1", "moe.pre_softmax=true",
                           "train.num_microbatches=2", "train.seq_len=16"});
  config::Config c = small_model(more);
  c.moe.token_budget = budget;
  c.moe.overflow = overflow;
  return c;
}

RunOptions skewed_run(const config::Config& c) {
  RunOptions options;
  options.weight = skewed_weight;
  options.taps = {"x_out", "x_mid"};
  for (int s = 0; s < 3; ++s) {
    Batch batch = packed_batch(c, {{{16}, {s + 1}}, {{16}, {s + 4}}});
    for (runtime::Microbatch& m : batch.microbatches)
      for (int t = 0; t < kTokens; ++t) m.tokens[size_t(t)] = t % 4 == 3;
    options.batches.push_back(batch);
  }
  return options;
}

std::vector<model::Mesh> budget_meshes() {
  std::vector<model::Mesh> out;
  for (const int pp : {1, 2})
    for (const auto dispatcher : {model::Dispatcher::AllToAll, model::Dispatcher::AllGather}) {
      out.push_back(mesh_of({1, 1, 2, pp, 2, 1}));
      out.back().dispatcher = dispatcher;
    }
  return out;
}

const double kAt = kRows / 16.0, kBelow = (kRows + 1) / 16.0, kAbove = (kRows - 1) / 16.0;

TEST(TokenBudget, RowsOfAnExpertRank) {
  const auto rows = [](double factor, const Axes& axes, std::vector<std::string> more = {}) {
    return model::expert_rows(skewed_model(factor, "stop", std::move(more)), mesh_of(axes));
  };
  const model::ExpertRows r = rows(kAt, {1, 1, 2, 1, 2, 1});
  EXPECT_EQ(r.expected, 16);
  EXPECT_EQ(r.budget, kRows);
  EXPECT_EQ(r.maximum, 32);
  EXPECT_EQ(rows(0, {1, 1, 2, 1, 2, 1}).budget, 32);
  EXPECT_EQ(rows(9, {1, 1, 2, 1, 2, 1}).budget, 32);
  EXPECT_EQ(rows(1.01, {1, 1, 2, 1, 2, 1}).budget, 17);
  EXPECT_EQ(rows(kAt, {2, 1, 2, 1, 2, 2}).budget, kRows);  // half the tokens, for two ranks
  EXPECT_EQ(rows(kAt, {}).budget, 16);                     // one rank: always all its choices
}

TEST(TokenBudget, PlanShowsAllThree) {
  const config::Config c = skewed_model(kAt, "stop");
  const program::Program p = schedule::build_training_step(
      c, model::make_parameters(c), {model::RoutingUse::Choose, mesh_of({1, 1, 2, 1, 2, 1}), {}});
  int routed = 0;
  for (const program::Value& v : p.values) {
    if (v.name != "mb0.L0.expert_rows" && v.name != "mb0.L1.expert_gate_up") continue;
    EXPECT_EQ(v.expected_rows, 16);
    EXPECT_EQ(v.shape[0], kRows);
    EXPECT_EQ(v.maximum_rows, 32);
    ++routed;
  }
  EXPECT_EQ(routed, 2);
}

TEST(TokenBudget, AtItAndBelowEveryPolicyGivesOneRanksStep) {
  const LayoutRun reference = run_on(skewed_model(0, "stop"), {}, skewed_run(skewed_model(0, "stop")));
  ASSERT_EQ(reference.steps[0].layers.at(0).load, (std::vector<int64_t>{kRows, 0, 0, 8}));
  ASSERT_EQ(reference.steps[2].layers.at(1).load, (std::vector<int64_t>{kRows, 0, 0, 8}));
  for (const char* policy : {"stop", "drop", "rerun"})
    for (const double factor : {kAt, kBelow})
      for (const model::Mesh& mesh : budget_meshes()) {
        SCOPED_TRACE(fmt::format("{} {} {}", policy, factor, text_of(mesh)));
        const config::Config c = skewed_model(factor, policy);
        const LayoutRun run = run_on(c, mesh, skewed_run(c));
        EXPECT_EQ(difference(c, reference, run), "");
        for (const StepResults& s : run.steps) {
          EXPECT_FALSE(s.rerun);
          EXPECT_TRUE(s.committed);
          for (const auto& [layer, r] : s.layers) EXPECT_EQ(r.dropped, 0);
        }
      }
}

TEST(TokenBudget, OneRowAboveStopsOnAllRanks) {
  for (const model::Mesh& mesh : budget_meshes()) {
    SCOPED_TRACE(text_of(mesh));
    const config::Config c = skewed_model(kAbove, "stop");
    try {
      run_on(c, mesh, skewed_run(c));
      FAIL() << "the step was taken";
    } catch (const base::Error& e) {
      const std::string text = e.what();
      EXPECT_NE(
          text.find("step 1: layer 0: the experts of rank 0 need 24 rows, moe.token_budget = 1.4375 has "
                    "room for 23; moe.token_budget = 1.5 would fit this step"),
          std::string::npos)
          << text;
    }
  }
}

// Both sources send 12 rows to expert 0: the second may send 11.
void expect_one_dropped(const char* policy) {
  config::Config c = skewed_model(kAbove, "drop");
  c.moe.drop_policy = policy;
  const LayoutRun whole = run_on(skewed_model(0, "stop"), {}, skewed_run(c));
  LayoutRun first;
  for (const model::Mesh& mesh : budget_meshes()) {
    SCOPED_TRACE(text_of(mesh));
    const LayoutRun run = run_on(c, mesh, skewed_run(c));
    for (const StepResults& s : run.steps) {
      EXPECT_TRUE(s.committed);
      for (const int l : {0, 1}) {
        EXPECT_EQ(s.layers.at(l).dropped, 1);
        std::vector<int> lost;
        for (const int mb : {0, 1})
          for (int t = 0; t < kTokens; ++t) {
            const auto row = [&](const char* what) {
              const Tensor& all = s.taps.at(fmt::format("mb{}.L{}.{}", mb, l, what));
              return Tensor(all.begin() + t * 16, all.begin() + (t + 1) * 16);
            };
            if (row("x_out") == row("x_mid")) lost.push_back(mb * kTokens + t);
          }
        ASSERT_EQ(lost.size(), 1u);
        EXPECT_GE(lost[0], kTokens);
        EXPECT_NE(lost[0] % 4, 3);
        if (c.moe.drop_policy == "position") {
          EXPECT_EQ(lost[0], kTokens + 14);
        }
      }
    }
    EXPECT_NE(difference(c, whole, run), "");
    if (first.steps.empty()) first = run;
    EXPECT_TRUE(compare(first, run, model::make_parameters(c)).bitwise);
  }
}

TEST(TokenBudget, OneRowAboveDropsOneChoice) { expect_one_dropped("probs"); }
TEST(TokenBudget, OneRowAboveDropsTheLastToken) { expect_one_dropped("position"); }

TEST(TokenBudget, OneRowAboveRunsTheStepAgain) {
  const config::Config c = skewed_model(kAbove, "rerun"), roomy = skewed_model(0, "stop");
  for (const model::Mesh& mesh : budget_meshes()) {
    SCOPED_TRACE(text_of(mesh));
    const LayoutRun run = run_on(c, mesh, skewed_run(c)), whole = run_on(roomy, mesh, skewed_run(roomy));
    for (const StepResults& s : run.steps) {
      EXPECT_TRUE(s.rerun && s.committed);
      for (const auto& [layer, r] : s.layers) EXPECT_EQ(r.dropped, 0);
    }
    EXPECT_TRUE(compare(whole, run, model::make_parameters(c)).bitwise);
  }
}

TEST(TokenBudget, AStepIsRunAgainWhereAPipelineStageHasNoExperts) {
  const std::vector<std::string> dense_first = {"model.leading_dense_layers=1", "model.ffn_hidden_size=8"};
  const config::Config c = skewed_model(kAbove, "rerun", dense_first),
                       roomy = skewed_model(0, "stop", dense_first);
  for (const model::Mesh& mesh : budget_meshes()) {
    if (mesh.pp == 1) continue;
    SCOPED_TRACE(text_of(mesh));
    const LayoutRun run = run_on(c, mesh, skewed_run(c)), whole = run_on(roomy, mesh, skewed_run(roomy));
    for (const StepResults& s : run.steps) EXPECT_TRUE(s.rerun && s.committed);
    EXPECT_TRUE(compare(whole, run, model::make_parameters(c)).bitwise);
  }
}

TEST(TokenBudget, ExpertTensorRanksDropTheSame) {
  const config::Config c = skewed_model(1.0, "drop", {"moe.top_k=2"});
  LayoutRun first;
  for (const auto dispatcher : {model::Dispatcher::AllToAll, model::Dispatcher::AllGather}) {
    model::Mesh mesh = mesh_of({2, 1, 2, 1, 2, 2});
    mesh.dispatcher = dispatcher;
    const LayoutRun run = run_on(c, mesh, {});
    int64_t dropped = 0;
    for (const StepResults& s : run.steps)
      for (const auto& [layer, r] : s.layers) dropped += r.dropped;
    EXPECT_GT(dropped, 0);
    if (first.steps.empty()) first = run;
    EXPECT_TRUE(compare(first, run, model::make_parameters(c)).bitwise);
  }
}

}  // namespace
}  // namespace pleat::verify
