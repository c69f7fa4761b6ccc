// Keys that need several ranks, or one, have an effect or are refused: once the number of ranks is known.
#include "config/rank_effect.h"

#include "config/schema.h"
#include "config_support.h"
#include "support/refusal.h"

namespace pleat::config {
namespace {

std::string refused_on(int64_t num_ranks, const Words& sets) {
  return testing::message_of([&] { require_rank_effects(parse(kMoe, sets, "test.toml"), num_ranks); });
}

TEST(ConfigRankEffect, OnOneRankKeysOfCommunicationWereTakenWithoutEffect) {
  for (const char* set :
       {"comm.mpi_native=true", "comm.check=true", "comm.timeout=60", "parallel.bucket_mib=64",
        "parallel.optimizer_group=2", "parallel.order=\"tp-cp-ep-pp-dp\""}) {
    const std::string path = std::string(set).substr(0, std::string(set).find('='));
    EXPECT_TRUE(begins(refused_on(1, {set}), path + " = ")) << set;
    EXPECT_TRUE(holds(refused_on(1, {set}),
                      "has no effect here: it applies when the run has several ranks (now 1); "
                      "change that or remove " +
                          path));
    EXPECT_EQ(refused_on(2, {set}), "") << set;
    EXPECT_EQ(refusal(kMoe, {set}), "") << "a file may be meant for several ranks: " << set;
    EXPECT_TRUE(holds(explain(path), "the run has several ranks")) << set;
  }
}

TEST(ConfigRankEffect, ADefaultWrittenDownIsNoSetting) {
  EXPECT_EQ(refused_on(1, {"comm.timeout=300", "parallel.bucket_mib=128", "comm.check=false"}), "");
  // What a run writes down of itself holds every key, and is read again.
  EXPECT_NO_THROW(require_rank_effects(parse(to_toml(resolve(parse(kMoe)))), 1));
}

// A step of one lane is in order already.
TEST(ConfigRankEffect, InOrderOfOneLaneWasTakenWithoutEffect) {
  const char* set = "device.in_order=true";
  EXPECT_EQ(refused_on(1, {set}),
            "device.in_order = true has no effect here: it applies when device.kind is \"cuda\", "
            "moe.shared_ffn_hidden_size > 0, offload.modules is not empty or the run has several ranks (now "
            "1); change "
            "that or remove "
            "device.in_order");
  EXPECT_EQ(refused_on(2, {set}), "");
  EXPECT_EQ(refused_on(1, {set, "device.kind=cuda"}), "");
  EXPECT_EQ(refused_on(1, {set, "moe.shared_ffn_hidden_size=8"}), "");
  EXPECT_EQ(refused_on(1, {"device.in_order=false"}), "");
  EXPECT_EQ(refusal(kMoe, {set}), "") << "a file may be meant for several ranks";
  EXPECT_TRUE(holds(explain("device.in_order"), "the run has several ranks"));
}

// Where the host reads how many rows go where, a step of several ranks is no graph.
TEST(ConfigRankEffect, AGraphOfSeveralRanksNeedsNoCounts) {
  const Words off = {"device.kind=cuda", "device.graph=false"};
  const auto with = [&](Words more) {
    more.insert(more.begin(), off.begin(), off.end());
    return more;
  };
  EXPECT_EQ(refused_on(1, off), "");
  EXPECT_EQ(refused_on(2, off), "");
  EXPECT_EQ(refused_on(2, with({"parallel.ep=2", "parallel.dispatcher=allgather"})), "");
  for (const char* way : {"parallel.exchange=auto", "parallel.exchange=padded", "parallel.exchange=windows"})
    EXPECT_EQ(refused_on(2, with({"parallel.ep=2", way})), "") << way;
  for (const char* spread : {"parallel.ep=2", "parallel.etp=2"})
    EXPECT_EQ(
        refused_on(2, with({spread, "parallel.exchange=counted"})),
        "device.graph = false has no effect here: it applies when the run has one rank, or several that do "
        "not exchange experts' rows by parallel.exchange \"counted\" (now 2); change that or remove "
        "device.graph");
  EXPECT_NE(refusal(kMoe, {"device.graph=false"}), "") << "the CPU has no graphs";
}

TEST(ConfigRankEffect, TheBoundOfStoresNamesAllThatDecidesIt) {
  const auto said = [&](const char* set) {
    return refusal(kMoe, {"comm.exchange_sms=8", "device.kind=cuda", "parallel.ep=2", set});
  };
  EXPECT_EQ(said("parallel.exchange=auto"), "");
  EXPECT_EQ(said("parallel.exchange=windows"), "");
  for (const char* set :
       {"parallel.dispatcher=allgather", "parallel.exchange=counted", "parallel.ep=1", "device.kind=cpu"}) {
    EXPECT_TRUE(holds(said(set), "comm.exchange_sms = 8 has no effect here")) << set << ": " << said(set);
    EXPECT_TRUE(holds(said(set), "parallel.dispatcher = \"alltoall\"")) << said(set);
    const std::string key = std::string(set).substr(0, std::string(set).find('='));
    EXPECT_TRUE(holds(said(set).substr(said(set).find("(now")), key)) << said(set);
  }
}

TEST(ConfigRankEffect, RanksOfAMachineAreDeclaredForSeveral) {
  const char* set = "parallel.ranks_per_node=8";
  EXPECT_EQ(
      refused_on(1, {set}),
      "parallel.ranks_per_node = 8 has no effect here: it applies when the run has several ranks (now 1); "
      "change that or remove parallel.ranks_per_node");
  EXPECT_EQ(refused_on(4, {set}), "") << "one machine, not full";
  EXPECT_EQ(refused_on(16, {set}), "");
  EXPECT_EQ(refused_on(1, {"parallel.ranks_per_node=0"}), "");
  EXPECT_TRUE(holds(refusal(kMoe, {"parallel.ranks_per_node=-1"}), "parallel.ranks_per_node"));
  EXPECT_TRUE(holds(explain("parallel.ranks_per_node"), "when the run has several ranks"));
}

}  // namespace
}  // namespace pleat::config
