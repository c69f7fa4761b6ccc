// Costs of a tiny model: whatever its programs run is in the file, and what is near it too.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "bench/cost_bench.h"
#include "bench/cost_variants.h"
#include "bench/crowd.h"
#include "bench/link_times.h"
#include "bench/rank_bench.h"
#include "cost/stage_work.h"
#include "schedule/ranks.h"
#include "support/refusal.h"

namespace pleat::bench {
namespace {

config::Config tiny(std::vector<std::string> sets = {}) {
  sets.push_back("device.threads=1");
  return config::resolve(config::load(std::string(PLEAT_SOURCE_DIR) + "/configs/tiny.toml", sets));
}

CostBenchOptions quick(int64_t ranks = 1) {
  CostBenchOptions out;
  out.name = "tiny";
  out.ranks = ranks;
  out.steps = 2;
  out.neighbours = out.crowd = out.links = false;
  return out;
}

void expect_all_stages(const cost::CostFile& file, const config::Config& config, int64_t ranks) {
  const cost::CostTable table(file.entries);
  for (const program::Program& p : schedule::build_ranks(config, ranks).programs)
    for (const program::Stage& stage : p.stages) {
      if (!cost::has_cost_key(stage)) continue;
      const cost::CostEntry* entry = table.find(cost::stage_key(p, stage));
      ASSERT_TRUE(entry) << stage_name(stage) << ": " << cost::stage_key(p, stage).kind;
      const kernels::Work work = cost::stage_work(p, stage, cost::RoutedRows::Balanced);
      EXPECT_EQ(entry->work.flops, work.flops);
      EXPECT_EQ(entry->work.bytes, work.bytes);
      EXPECT_GE(entry->seen, 2);
      EXPECT_GE(entry->ns, entry->low_ns);
      EXPECT_LE(entry->ns, entry->high_ns);
    }
}

TEST(Costs, EveryStageOfTheStepHasItsOwn) {
  const config::Config config = tiny();
  std::vector<std::string> lines;
  CostBenchOptions options = quick();
  options.steps = 5;
  options.note = [&](const std::string& line) { lines.push_back(line); };
  const cost::CostFile file = measure_costs(config, options);
  expect_all_stages(file, config, 1);
  EXPECT_EQ(file.machine.kind, "cpu");
  EXPECT_EQ(file.machine.threads, 1);
  EXPECT_GE(file.machine.cores, 1);
  EXPECT_TRUE(file.crowd.empty());
  EXPECT_TRUE(file.links.empty());
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_TRUE(lines[0].starts_with("1/1 the step")) << lines[0];
  // One after the other, the stages are the step; but a machine that does other things too can take time from either.
  ASSERT_EQ(file.steps.size(), 1u);
  EXPECT_GT(file.steps[0].stages_ns, 0.1 * file.steps[0].ns);
  EXPECT_LT(file.steps[0].stages_ns, 5 * file.steps[0].ns);
  double sum = 0;
  for (const KindTime& k : kind_times(config, 1, file)) sum += k.ns;
  EXPECT_NEAR(sum, file.steps[0].stages_ns, 1e-9 * sum);
  cost::costs_from_json(cost::to_json(file), "written");
}

TEST(Costs, NeighboursAreInIt) {
  const config::Config config = tiny();
  CostBenchOptions options = quick();
  options.neighbours = true;
  const cost::CostFile file = measure_costs(config, options);
  expect_all_stages(file, config, 1);
  const CostVariants near = cost_variants(config, 1);
  EXPECT_EQ(near.fitting.size(), 21u);
  // One expert for each token is another router.
  ASSERT_EQ(near.skipped.size(), 1u);
  EXPECT_TRUE(near.skipped[0].starts_with("moe.top_k 2 -> 1")) << near.skipped[0];
  for (const CostVariant& variant : near.fitting) {
    SCOPED_TRACE(variant.name);
    expect_all_stages(file, variant.config, variant.ranks);
  }
  EXPECT_EQ(file.steps.size(), 1u) << "only the configuration's own";
  // A size nobody measured, between two that were: something between their times per work is said of every stage.
  const config::Config between = tiny({"model.hidden_size=96", "model.head_dim=16"});
  const cost::CostTable table(file.entries);
  const program::Program p = schedule::build_ranks(between, 1).programs.at(0);
  for (const program::Stage& stage : p.stages)
    if (cost::has_cost_key(stage)) {
      const auto ns =
          table.ns(cost::stage_key(p, stage), cost::stage_work(p, stage, cost::RoutedRows::Balanced),
                   [](const kernels::Work& w, const std::string&) { return w.bytes + w.flops; });
      ASSERT_TRUE(ns) << stage_name(stage);
      EXPECT_GT(*ns, 0);
    }
}

// Any rank of any layout, by itself.
TEST(Costs, RanksOfLayoutsAreMeasuredAmongTheirImages) {
  struct Layout {
    int64_t ranks;
    std::vector<std::string> sets;
  };
  const Layout layouts[] = {
      {8, {"parallel.tp=2", "parallel.ep=4", "moe.capacity_factor=1.5", "train.num_microbatches=4"}},
      {4, {"parallel.pp=2", "parallel.ep=2"}},
      {4, {"parallel.pp=2", "parallel.vpp=2", "model.num_layers=4", "train.num_microbatches=4"}},
      {2, {"parallel.cp=2", "parallel.context=\"ring\""}},
      {2, {"parallel.cp=2", "parallel.context=\"alltoall\""}},
      {2, {"parallel.cp=2"}},
      {4, {"parallel.ep=4", "parallel.exchange=\"padded\"", "train.num_microbatches=4"}},
      {4, {"parallel.ep=4", "parallel.dispatcher=\"allgather\"", "train.num_microbatches=4"}},
      {4,
       {"parallel.ep=2", "parallel.etp=2", "parallel.tp=2", "moe.token_budget=1.5", "moe.overflow=\"drop\""}},
      {2, {"model.dtype=\"float64\"", "parallel.pp=2", "model.num_mtp_layers=1"}},
  };
  for (const Layout& layout : layouts) {
    SCOPED_TRACE(layout.sets[0] + " " + layout.sets.back());
    const config::Config config = tiny(layout.sets);
    const cost::CostFile file = measure_costs(config, quick(layout.ranks));
    expect_all_stages(file, config, layout.ranks);
    EXPECT_EQ(std::ssize(file.steps), config.parallel.pp);
  }
}

TEST(Costs, StagesOfAPipelineThatAreKnownAreLeftOut) {
  const config::Config config =
      tiny({"model.num_layers=6", "parallel.pp=4", "parallel.pipeline_layout=\"Et|tt|tt|tL\""});
  std::vector<std::string> lines;
  CostBenchOptions options = quick(4);
  options.note = [&](const std::string& line) { lines.push_back(line); };
  const cost::CostFile file = measure_costs(config, options);
  expect_all_stages(file, config, 4);
  EXPECT_EQ(file.steps.size(), 2u) << "the first and the last";
  ASSERT_EQ(lines.size(), 4u);
  for (const size_t stage : {1, 2})
    EXPECT_NE(lines[stage].find("measured already"), std::string::npos) << lines[stage];
}

TEST(Costs, WhatCannotBeMeasuredIsRefusedByName) {
  config::Config gpu = tiny();
  gpu.device.kind = "cuda";
  EXPECT_NE(testing::refusal([&] { measure_costs(gpu, quick(2)); }).find("device.kind = \"cuda\""),
            std::string::npos);
  EXPECT_NE(testing::refusal([&] { measure_costs(tiny(), quick(3)); }).find("num_microbatches"),
            std::string::npos);
  const config::Config windows = tiny({"parallel.ep=2", "parallel.exchange=\"windows\""});
  EXPECT_NE(testing::refusal([&] { measure_costs(windows, quick(2)); }).find("windows"), std::string::npos);
}

TEST(CostVariants, AreShortAndHaveEveryKindOfLayer) {
  const config::Config config =
      tiny({"model.num_layers=8", "model.leading_dense_layers=1", "model.ffn_hidden_size=96",
            "model.sliding_window=16", "model.window_layers=[1,1,0]", "train.num_microbatches=8",
            "parallel.pp=2", "parallel.tp=2"});
  const CostVariants near = cost_variants(config, 8);
  ASSERT_FALSE(near.fitting.empty());
  for (const CostVariant& variant : near.fitting) {
    EXPECT_EQ(variant.config.model.num_layers, 3) << "dense, experts with a window, experts without";
    EXPECT_EQ(variant.config.train.num_microbatches, 4) << "two of each replica";
    EXPECT_EQ(variant.config.parallel.pp, 1);
    EXPECT_EQ(variant.ranks, 4);
  }
  // A key head cannot be cut over two ranks; that is said.
  ASSERT_EQ(near.skipped.size(), 3u);
  EXPECT_TRUE(near.skipped[0].starts_with("model.num_heads 4 -> 2")) << near.skipped[0];
  EXPECT_TRUE(near.skipped[1].starts_with("model.num_kv_heads 2 -> 1")) << near.skipped[1];
  EXPECT_TRUE(near.skipped[2].starts_with("moe.top_k 2 -> 1")) << near.skipped[2];
  EXPECT_EQ(short_single(config).parallel.tp, 1);
  EXPECT_EQ(short_single(config).device.threads, 1);
}

TEST(CostVariants, HeadsOfLatentAttentionAreOneNumber) {
  const config::Config config =
      tiny({"model.attention=\"mla\"", "model.num_kv_heads=", "model.kv_lora_rank=16",
            "model.qk_nope_head_dim=16", "model.qk_rope_head_dim=8", "model.v_head_dim=16"});
  const CostVariants near = cost_variants(config, 1);
  ASSERT_EQ(near.skipped.size(), 1u);
  EXPECT_TRUE(near.skipped[0].starts_with("moe.top_k 2 -> 1")) << near.skipped[0];
  for (const char* width : {"model.kv_lora_rank 16 -> 32", "model.qk_nope_head_dim 16 -> 8",
                            "model.qk_rope_head_dim 8 -> 16", "model.v_head_dim 16 -> 32"})
    EXPECT_TRUE(std::any_of(near.fitting.begin(), near.fitting.end(), [&](const CostVariant& v) {
      return v.name == width;
    })) << width;
}

TEST(Crowd, OneAloneIsTheMeasure) {
  std::vector<int64_t> asked;
  const std::vector<double> crowd =
      measure_crowd(short_single(tiny()), 3, 2, [&](int64_t k, double) { asked.push_back(k); });
  ASSERT_EQ(crowd.size(), 3u);
  EXPECT_EQ(crowd[0], 1);
  EXPECT_GT(crowd[2], 0);
  EXPECT_EQ(asked, (std::vector<int64_t>{1, 2, 3}));
}

TEST(LinkTimes, EveryOperationAndSize) {
  const std::vector<cost::LinkTime> links =
      measure_links({.ranks = {2, 4}, .least_bytes = 1024, .most_bytes = 16384, .repeats = 2});
  EXPECT_EQ(links.size(), 2u * 6 * 3);
  std::set<std::string> operations;
  for (const cost::LinkTime& l : links) {
    operations.insert(l.operation);
    EXPECT_GT(l.ns, 0);
  }
  EXPECT_EQ(operations, (std::set<std::string>{"all_gather", "all_reduce", "all_to_all", "reduce_scatter",
                                               "send", "shift"}));
  EXPECT_NE(testing::refusal([] { measure_links({.ranks = {3}}); }).find("got 3"), std::string::npos);
}

}  // namespace
}  // namespace pleat::bench
