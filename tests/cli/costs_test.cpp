// `pleat bench costs` as it is typed: a small run, its file, and what it refuses.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cost/cost_file.h"
#include "support/process.h"
#include "support/small_models.h"

namespace pleat {
namespace {

class CostsCli : public ::testing::Test {
 protected:
  CostsCli() {
    testing::write_file(config_,
                        testing::kRunModel +
                            "moe.num_experts = 4\nmodel.vocab_size = 64\ntrain.num_microbatches = 2\n"
                            "device.threads = 1\n");
  }
  testing::Ended run(std::vector<std::string> more) {
    std::vector<std::string> all = {"bench", "costs", config_, "--steps", "2"};
    all.insert(all.end(), more.begin(), more.end());
    return testing::run_pleat(folder_.path(), all);
  }
  void expect_costs_refused(const std::vector<std::string>& more, const std::string& word) {
    const testing::Ended ended = run(more);
    EXPECT_NE(ended.code, 0) << word;
    EXPECT_NE(ended.err.find(word), std::string::npos) << ended.err;
  }

  testing::TemporaryFolder folder_;
  const std::string config_ = folder_.at("small.toml"), out_ = folder_.at("costs.json");
};

TEST_F(CostsCli, WritesAFileAndSaysWhereTheTimeGoes) {
  const testing::Ended ended = run({"--out", out_, "--no-crowd", "--no-links"});
  ASSERT_EQ(ended.code, 0) << ended.err;
  EXPECT_NE(ended.out.find("step: "), std::string::npos) << ended.out;
  EXPECT_NE(ended.out.find(" others "), std::string::npos) << ended.out;
  EXPECT_NE(ended.err.find("model.hidden_size 32 -> 64"), std::string::npos) << ended.err;
  EXPECT_NE(ended.err.find(" left"), std::string::npos) << ended.err;
  const cost::CostFile file = cost::read_costs(out_);
  EXPECT_EQ(file.config, "small");
  EXPECT_GT(file.entries.size(), 100u);
  EXPECT_TRUE(file.crowd.empty());
  EXPECT_TRUE(file.links.empty());
}

TEST_F(CostsCli, RanksOfALayoutAsJson) {
  const testing::Ended ended = run(
      {"--out", out_, "--no-neighbours", "--no-links", "--json", "--ranks", "2", "--set", "parallel.pp=2"});
  ASSERT_EQ(ended.code, 0) << ended.err;
  const nlohmann::json result = nlohmann::json::parse(ended.out);
  EXPECT_EQ(result.at("steps").size(), 2u);
  EXPECT_EQ(result.at("file"), out_);
  const cost::CostFile file = cost::read_costs(out_);
  EXPECT_EQ(result.at("entries"), file.entries.size());
  ASSERT_FALSE(file.crowd.empty());
  EXPECT_EQ(std::ssize(file.crowd), file.machine.cores);
}

TEST_F(CostsCli, WhatCannotBeIsRefusedAndNothingWritten) {
  expect_costs_refused({}, "--out");
  expect_costs_refused({"--out", out_, "--ranks", "0"}, "--ranks");
  expect_costs_refused({"--out", out_, "--steps", "0"}, "--steps");
  expect_costs_refused({"--out", out_, "--ranks", "3"}, "num_microbatches");
  expect_costs_refused({"--out", out_, "--ranks", "2", "--set", "device.kind=cuda"}, "cuda");
  expect_costs_refused(
      {"--out", folder_.at("nowhere/costs.json"), "--no-neighbours", "--no-crowd", "--no-links"}, "nowhere");
  EXPECT_EQ(testing::read_by_now(out_), "");
}

}  // namespace
}  // namespace pleat
