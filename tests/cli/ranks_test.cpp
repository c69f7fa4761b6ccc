// What commands say about ranks that do not run here: GPU ranks over NCCL, and ranks of several machines.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/process.h"
#include "support/small_models.h"

namespace pleat {
namespace {

using testing::Ended;
using Words = std::vector<std::string>;

const std::string kEightMicrobatches = testing::kRunModel + R"(
moe.num_experts = 4
train.steps = 2
train.num_microbatches = 8
data.tokenizer = "byte"
)";

class RanksCli : public ::testing::Test {
 protected:
  RanksCli() {
    testing::write_file(config_, kEightMicrobatches);
    std::string text;
    for (int i = 0; i < 400; ++i) text += fmt::format("line {} of some text\n", i * i);
    testing::write_file(folder_.at("text.txt"), text);
  }

  Ended run(const std::string& command, int ranks, const Words& sets, const Words& more = {}) {
    Words all = {command, config_, "--ranks", std::to_string(ranks)};
    for (const std::string& set : sets) all.insert(all.end(), {"--set", set});
    all.insert(all.end(), more.begin(), more.end());
    return testing::run_pleat(folder_.path(), all);
  }
  nlohmann::json json(const std::string& command, int ranks, const Words& sets) {
    const Ended ended = run(command, ranks, sets, {"--json"});
    EXPECT_EQ(ended.code, 0) << ended.err;
    return nlohmann::json::parse(ended.out);
  }

  testing::TemporaryFolder folder_;
  const std::string config_ = folder_.at("config.toml");
};

const Words kInterleaved = {"device.kind=cuda", "parallel.pp=2", "parallel.vpp=2", "parallel.ep=2",
                            "model.num_layers=4"};

TEST_F(RanksCli, InterleavedGpuRanksAreOneChain) {
  for (const char* command : {"plan", "explain", "simulate"}) {
    const Ended ended = run(command, 4, kInterleaved);
    EXPECT_EQ(ended.code, 0) << command << ended.err;
  }
  const nlohmann::json chain = json("simulate", 4, kInterleaved);
  EXPECT_EQ(chain.at("meeting"), "device");
  EXPECT_EQ(chain.at("single_lane_hang"), "");
  EXPECT_GE(chain.at("step_ns"), chain.at("on_lanes").at("step_ns"));
  EXPECT_GE(chain.at("bubble"), chain.at("on_lanes").at("bubble"));
  EXPECT_EQ(chain.at("host_waits"), 0);
  Words counted = kInterleaved;
  counted.push_back("parallel.exchange=counted");
  EXPECT_GT(json("simulate", 4, counted).at("host_waits"), 0);
  const Ended text = run("simulate", 4, kInterleaved);
  EXPECT_NE(text.out.find("over NCCL: their exchanges are one chain"), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("the chain takes +"), std::string::npos) << text.out;
  // Threads on CPUs have lanes, and need them here.
  Words cpu = kInterleaved;
  cpu[0] = "device.kind=cpu";
  const nlohmann::json lanes = json("simulate", 4, cpu);
  EXPECT_EQ(lanes.at("meeting"), "host");
  EXPECT_NE(lanes.at("single_lane_hang"), "");
  EXPECT_FALSE(lanes.contains("on_lanes"));
}

TEST_F(RanksCli, LayoutSaysWhichGroupsCrossMachines) {
  const Words sets = {"parallel.tp=2", "parallel.pp=2", "parallel.ranks_per_node=4"};
  const Ended text = run("layout", 8, sets);
  ASSERT_EQ(text.code, 0) << text.err;
  EXPECT_NE(text.out.find("machines   2, up to 4 ranks on each; pipeline messages across machines: stage "
                          "0 to 1\n"),
            std::string::npos)
      << text.out;
  EXPECT_NE(text.out.find("tp: 4 groups of 2, inside machines\n"), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("pp: 4 groups of 2, across machines\n"), std::string::npos) << text.out;
  const nlohmann::json j = json("layout", 8, sets);
  EXPECT_EQ(j.at("nodes").at("nodes"), 2);
  EXPECT_EQ(j.at("groups_across_nodes").at("tp"), 0);
  EXPECT_EQ(j.at("groups_across_nodes").at("pp"), 4);
  const nlohmann::json without = json("layout", 8, {"parallel.tp=2", "parallel.pp=2"});
  EXPECT_FALSE(without.contains("nodes"));
  EXPECT_EQ(run("layout", 8, {"parallel.tp=2"}).out.find("machines"), std::string::npos);
}

TEST_F(RanksCli, LinksFollowTheMachines) {
  for (const char* machine : {"h200", "h100", "a100", "b200", "gb200-nvl72", "cpu"}) {
    SCOPED_TRACE(machine);
    const auto step = [&](int per_node) {
      const Ended ended = run("simulate", 8,
                              {"parallel.pp=2", "parallel.tp=2", "device.threads=1",
                               fmt::format("parallel.ranks_per_node={}", per_node)},
                              {"--json", "--machine", machine});
      EXPECT_EQ(ended.code, 0) << ended.err;
      return nlohmann::json::parse(ended.out).at("step_ns").get<int64_t>();
    };
    if (std::string(machine) == "cpu") {
      EXPECT_NE(step(4), step(1)) << "a node of its own brings cores too";
      continue;
    }
    EXPECT_LT(step(8), step(4));
    EXPECT_LT(step(4), step(1));
  }
}

TEST_F(RanksCli, SimulateSaysWhatScriptsWant) {
  const nlohmann::json j = json("simulate", 8, {"parallel.pp=2", "parallel.tp=2"});
  for (const char* key :
       {"step_ms", "tokens_per_s_per_gpu", "model_tflops_per_gpu", "mfu", "memory_limit_bytes"})
    EXPECT_GT(j.at(key).get<double>(), 0) << key;
  EXPECT_EQ(j.at("fits"), true);
  EXPECT_EQ(j.at("machine"), "h200");
  for (const char* key : {"bytes", "limit_bytes", "over_bytes"})
    EXPECT_TRUE(j.at("host").contains(key)) << key;
  for (const auto& stage : j.at("pipeline")) {
    int64_t sum =
        stage.at("by_link").at("work_ns").get<int64_t>() + stage.at("by_link").at("idle_ns").get<int64_t>();
    for (const auto& part : stage.at("by_link").at("parts")) sum += part.at("exposed_ns").get<int64_t>();
    EXPECT_EQ(sum, j.at("step_ns"));
  }
}

// Every stage of the step counts once, whatever is asked of it behind.
TEST_F(RanksCli, TimesComeFromEveryExchangeOnce) {
  const nlohmann::json j = json("simulate", 4, {"parallel.tp=2", "parallel.pp=2"});
  double exchanges = 0;
  for (const auto& stage : j.at("pipeline")) exchanges += stage.at("exchange_ns").get<double>();
  // Of the stage's own clock: with launches, with waits for others, and slowed by what runs beside.
  EXPECT_GT(j.at("times_from").at("links_ns").get<double>(), 0);
  EXPECT_LE(j.at("times_from").at("links_ns").get<double>(), exchanges);
}

TEST_F(RanksCli, APictureOfAGpusStepIsDrawn) {
  const Ended drawn =
      run("simulate", 2, {"parallel.ep=2", "device.kind=cuda"}, {"--svg", folder_.at("step.svg")});
  EXPECT_EQ(drawn.code, 0) << drawn.err;
  EXPECT_NE(testing::read_file(folder_.at("step.svg")).find("</svg>"), std::string::npos);
}

TEST_F(RanksCli, ThreadsShareAMachine) {
  const auto train = [&](const char* set) {
    return run("train", 2, {"data.train=" + folder_.at("text.txt"), "log.run_dir=" + folder_.at("run"), set});
  };
  const Ended refused = train("parallel.ranks_per_node=1");
  EXPECT_EQ(refused.code, 65);
  EXPECT_NE(refused.err.find(
                "parallel.ranks_per_node = 1 puts 1 of 2 ranks on the machine of rank 0, but 2 run there"),
            std::string::npos)
      << refused.err;
  EXPECT_EQ(train("parallel.ranks_per_node=2").code, 0);
}

TEST_F(RanksCli, ProcessesAreWhereTheyWereDeclared) {
  const auto launch = [&](const std::string& set) {
    return testing::run_pleat(folder_.path(), {"launch", "--ranks", "2", "train", config_, "--set",
                                               "data.train=" + folder_.at("text.txt"), "--set",
                                               "log.run_dir=" + folder_.at("launched"), "--set", set});
  };
  const Ended refused = launch("parallel.ranks_per_node=1");
  EXPECT_EQ(refused.code, 65) << refused.err;
  EXPECT_NE(refused.err.find("but 2 run there; start them so, or change the key"), std::string::npos)
      << refused.err;
  EXPECT_EQ(launch("parallel.ranks_per_node=4").code, 0) << "one machine, not full";
}

}  // namespace
}  // namespace pleat
