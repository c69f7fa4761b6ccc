// The small copy keeps what layouts could get wrong: where layers lie, the token budget and what happens beyond it.
#include "verify/shrink.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "layout/from_config.h"
#include "schedule/ranks.h"
#include "verify/budget.h"
#include "verify/compare.h"

namespace pleat::verify {
namespace {

config::Config to_shrink(const std::vector<std::string>& sets) {
  constexpr const char* kModel = R"(
[model]
vocab_size = 1000
hidden_size = 256
num_layers = 7
num_heads = 8
num_kv_heads = 4
leading_dense_layers = 2
ffn_hidden_size = 256
[moe]
num_experts = 16
top_k = 2
ffn_hidden_size = 64
[train]
num_microbatches = 4
micro_batch = 2
seq_len = 128
)";
  return config::parse(kModel, sets, "shrink.toml");
}

struct Laid {
  model::Mesh mesh;
  Shrunk small;
};
Laid laid_out(int ranks, const std::vector<std::string>& sets, SmallCopy copy = SmallCopy::Float64) {
  const config::Config asked = to_shrink(sets);
  Laid out;
  out.mesh = schedule::fitted_mesh(config::resolve(asked), layout::Layout(layout::sizes_of(asked, ranks)));
  out.small = shrink(asked, out.mesh, copy);
  return out;
}

TEST(Shrink, LayersStayWhereThePipelineLayoutPutsThem) {
  const Laid l = laid_out(2, {"parallel.pp=2", "parallel.pipeline_layout=\"Ett|tttttL\""});
  EXPECT_EQ(l.small.config.model.num_layers, 7);
  EXPECT_EQ(l.small.config.model.leading_dense_layers, 2);
  ASSERT_EQ(l.small.roles.size(), 2u);
  EXPECT_EQ(l.small.roles[0].chunks.at(0).layers, (std::vector<int>{0, 1}));
  EXPECT_EQ(l.small.roles[1].chunks.at(0).layers, (std::vector<int>{2, 3, 4, 5, 6}));
  const LayoutRun one = run_layout(l.small.config, {}, {}, {}),
                  under = run_layout(l.small.config, l.mesh, l.small.roles, {});
  EXPECT_TRUE(compare(one, under, model::make_parameters(l.small.config)).bitwise);
}

TEST(Shrink, TheLayoutWasListedAmongTheChangesThoughItIsKept) {
  const auto parallel_changes = [](const Laid& l) {
    std::vector<std::string> out;
    for (const std::string& change : l.small.changes)
      if (change.starts_with("parallel.")) out.push_back(change);
    return out;
  };
  EXPECT_EQ(parallel_changes(laid_out(2, {"parallel.pp=2", "parallel.pipeline_layout=\"Ett|tttttL\""})),
            std::vector<std::string>());
  EXPECT_EQ(parallel_changes(laid_out(4, {"parallel.tp=2", "parallel.ep=2", "parallel.bucket_mib=0",
                                          "parallel.dispatcher=\"allgather\""})),
            std::vector<std::string>());
  // What is not kept is said.
  EXPECT_EQ(parallel_changes(laid_out(4, {"parallel.tp=2", "parallel.order=\"tp-cp-ep-pp-dp\""})).size(), 1u);
}

TEST(Shrink, APaddingTokenOutsideTheSmallVocabularyWasRefused) {
  const auto padding = [](const Laid& l) {
    const std::vector<std::string>& all = l.small.changes;
    const auto said = std::find_if(all.begin(), all.end(),
                                   [](const auto& c) { return c.starts_with("model.padding_token"); });
    return std::pair(l.small.config.model.padding_token, said == all.end() ? "" : *said);
  };
  EXPECT_EQ(padding(laid_out(1, {"model.padding_token=999"})),
            (std::pair<int64_t, std::string>(15, "model.padding_token: 999 -> 15")));
  // Each tensor rank has 16 rows of 500; the one that holds the token keeps it.
  EXPECT_EQ(padding(laid_out(2, {"parallel.tp=2", "model.padding_token=503"})).first, 19);
  EXPECT_EQ(padding(laid_out(2, {"parallel.tp=2", "model.padding_token=20"})).first, 15);
  EXPECT_EQ(padding(laid_out(2, {"parallel.tp=2", "model.padding_token=3"})).second, "") << "no change";
  EXPECT_EQ(padding(laid_out(2, {"parallel.tp=2"})).first, -1);

  const Laid l = laid_out(2, {"parallel.tp=2", "model.padding_token=999"});
  const LayoutRun one = run_layout(l.small.config, {}, {}, {}),
                  under = run_layout(l.small.config, l.mesh, l.small.roles, {});
  EXPECT_EQ(compare(one, under, model::make_parameters(l.small.config)).verdict(1e-10), "");
}

TEST(Shrink, WithoutOneLayersAreFewAndEven) {
  const Laid l = laid_out(2, {"model.num_layers=8", "parallel.pp=2"});
  EXPECT_EQ(l.small.config.model.num_layers, 2);
  EXPECT_EQ(l.small.roles.at(1).chunks.at(0).layers, (std::vector<int>{1}));
}

TEST(Shrink, ABudgetIsPartOfTheCopy) {
  for (const std::string overflow : {"stop", "drop", "rerun"}) {
    SCOPED_TRACE(overflow);
    Laid l = laid_out(2, {"parallel.ep=2", "moe.token_budget=1.02", "moe.overflow=\"" + overflow + "\""});
    config::Config& c = l.small.config;
    EXPECT_EQ(c.moe.token_budget, 1.02);
    RunOptions record;
    record.routing = model::RoutingUse::Record;
    const LayoutRun one = run_layout(c, {}, {}, record);
    const std::string raised = fit_budget(c, l.mesh, one);
    EXPECT_EQ(raised.empty(), overflow == "rerun") << raised;
    const LayoutRun under = run_layout(c, l.mesh, {}, {});
    EXPECT_EQ(compare(one, under, model::make_parameters(c)).verdict(1e-10), "");
    EXPECT_EQ(std::any_of(under.steps.begin(), under.steps.end(), [](const auto& s) { return s.rerun; }),
              overflow == "rerun");
    if (overflow != "stop") continue;
    // It is the smallest: a row or two less are refused.
    c.moe.token_budget -= 0.06;
    EXPECT_THROW(run_layout(c, l.mesh, {}, {}), base::Error);
  }
}

TEST(Shrink, PrecisionAndDeviceAreKeptWhenAsked) {
  const std::vector<std::string> sets = {"model.dtype=\"bfloat16\"", "device.kind=\"cuda\""};
  const Laid kept = laid_out(1, sets, SmallCopy::Asked), cpu = laid_out(1, sets, SmallCopy::AskedOnCpu),
             wide = laid_out(1, sets);
  EXPECT_EQ(kept.small.config.model.dtype + kept.small.config.device.kind, "bfloat16cuda");
  EXPECT_EQ(cpu.small.config.model.dtype + cpu.small.config.device.kind, "float32cpu");
  EXPECT_EQ(wide.small.config.model.dtype + wide.small.config.device.kind, "float64cpu");
}

TEST(Shrink, FormatsOfTheOptimizerThatFloat64DropsAreListed) {
  const auto lists = [](const Laid& l, const std::string& key) {
    return std::any_of(l.small.changes.begin(), l.small.changes.end(),
                       [&](const std::string& change) { return change.starts_with(key + ":"); });
  };
  const Laid own =
      laid_out(1, {"optimizer.moment1_dtype=\"bfloat16\"", "optimizer.moment2_dtype=\"bfloat16\""});
  EXPECT_TRUE(lists(own, "optimizer.moment1_dtype"));
  EXPECT_TRUE(lists(own, "optimizer.moment2_dtype"));
  const std::vector<std::string> narrow = {
      "model.dtype=\"bfloat16\"", "device.kind=\"cuda\"", "optimizer.moment_dtype=\"bfloat16\"",
      "optimizer.grad_dtype=\"bfloat16\"", "optimizer.groups.norm.grad_dtype=\"float32\""};
  EXPECT_TRUE(lists(laid_out(1, narrow), "optimizer.moment_dtype"));
  EXPECT_TRUE(lists(laid_out(1, narrow), "optimizer.grad_dtype"));
  EXPECT_TRUE(lists(laid_out(1, narrow), "optimizer.groups.norm.grad_dtype"));
  EXPECT_FALSE(lists(laid_out(1, {}), "optimizer.moment1_dtype"));
  // On the CPU by rounding they are kept.
  const Laid rounded = laid_out(1, narrow, SmallCopy::AskedOnCpu);
  EXPECT_EQ(model::optimizer_of(rounded.small.config).states.at(0).format, tensor::Dtype::BF16);
  EXPECT_EQ(model::optimizer_of(rounded.small.config).states.at(1).format, tensor::Dtype::BF16);
}

}  // namespace
}  // namespace pleat::verify
