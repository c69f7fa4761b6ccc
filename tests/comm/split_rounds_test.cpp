// What ranks that open groups together agree on: the same rounds on all of them, whatever each asks for.
#include "comm/process/split_rounds.h"

#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "comm/comm_support.h"
#include "comm/local/local_world.h"

namespace pleat::comm {
namespace {

using Asked = std::vector<std::vector<AskedGroup>>;

// Every member asks for the group.
void ask(Asked& by_rank, const std::string& name, const std::vector<int>& ranks) {
  for (size_t place = 0; place < ranks.size(); ++place)
    by_rank[static_cast<size_t>(ranks[place])].push_back(
        {name, group_hash(name, ranks), static_cast<int>(ranks.size()), static_cast<int>(place)});
}

std::string text_of(const std::vector<SplitRound>& rounds) {
  std::string text;
  for (const SplitRound& round : rounds) {
    for (const SplitGroup& g : round) {
      text += g.name + "(";
      for (const int r : g.ranks) text += fmt::format(" {}", r);
      text += " )";
    }
    text += "\n";
  }
  return text;
}

std::string refusal(const Asked& by_rank) {
  try {
    split_rounds(by_rank);
  } catch (const base::Error& e) {
    return e.what();
  }
  return "not refused";
}

TEST(SplitRounds, GroupsThatShareNoRankAreOneSplit) {
  Asked by_rank(4);
  ask(by_rank, "tp@compute:0", {0, 1});
  ask(by_rank, "tp@compute:2", {2, 3});
  ask(by_rank, "world@reduce:0", {0, 1, 2, 3});
  EXPECT_EQ(text_of(split_rounds(by_rank)),
            "tp@compute:0( 0 1 )tp@compute:2( 2 3 )\nworld@reduce:0( 0 1 2 3 )\n");
}

// Stages of a pipeline have lanes that others lack; who is in no group of a round stands aside.
TEST(SplitRounds, RanksMayAskForDifferentGroups) {
  Asked by_rank(4);
  ask(by_rank, "pp@messages:0", {0, 2});
  ask(by_rank, "pp@messages:1", {1, 3});
  ask(by_rank, "tp@side:2", {2, 3});  // of the last stage alone
  EXPECT_EQ(text_of(split_rounds(by_rank)), "pp@messages:0( 0 2 )pp@messages:1( 1 3 )\ntp@side:2( 2 3 )\n");
  EXPECT_EQ(text_of(split_rounds(Asked(3))), "");
}

TEST(SplitRounds, MembersKeepTheOrderOfTheGroup) {
  Asked by_rank(3);
  ask(by_rank, "x", {2, 0, 1});
  EXPECT_EQ(text_of(split_rounds(by_rank)), "x( 2 0 1 )\n");
}

TEST(SplitRounds, AMemberThatDoesNotAskIsNamed) {
  Asked by_rank(4);
  ask(by_rank, "tp@compute:0", {0, 1, 2});
  by_rank[1].clear();
  EXPECT_EQ(refusal(by_rank),
            "group 'tp@compute:0' of 3 ranks is opened by rank 0, 2 only; its member 1 asks for others");
}

TEST(SplitRounds, TwoGroupsOfOneNameThatOverlapAreToldApart) {
  Asked by_rank(3);
  ask(by_rank, "x", {0, 1});
  ask(by_rank, "x", {1, 2});
  const std::vector<SplitRound> rounds = split_rounds(by_rank);
  ASSERT_EQ(rounds.size(), 2U);
  EXPECT_NE(rounds[0][0].ranks, rounds[1][0].ranks);
}

TEST(SplitRounds, OnePlaceForTwoRanksIsRefused) {
  Asked by_rank(2);
  const AskedGroup first{"x", 7, 2, 0};
  by_rank[0] = {first};
  by_rank[1] = {first};
  EXPECT_EQ(refusal(by_rank), "group 'x': ranks 0 and 1 ask for the same place, 0");
  by_rank[1] = {{"x", 7, 3, 1}};
  EXPECT_NE(refusal(by_rank).find("member 1 of 3"), std::string::npos);
}

TEST(SplitRounds, WhatRanksAskForReachesAll) {
  Asked want(4);
  ask(want, "tp@compute:0", {0, 1});
  ask(want, "a name with spaces, and more", {1, 3, 0});
  LocalWorld world(4);
  run_ranks(world, [&](int rank) {
    const auto group = world.group("all", testing::all_of(4), rank);
    EXPECT_EQ(exchange_asked(*group, want[static_cast<size_t>(rank)]), want);
    EXPECT_EQ(exchange_asked(*group, {}), Asked(4));
  });
}

// A large random world: every group is in exactly one round, and no round has a rank twice.
TEST(SplitRounds, EveryGroupHasOneRound) {
  constexpr int kWorld = 64;
  Asked by_rank(kWorld);
  int num_groups = 0;
  for (const int size : {2, 4, 8, 16, 64})
    for (int start = 0; start < kWorld; start += size) {
      std::vector<int> ranks;
      for (int i = 0; i < size; ++i) ranks.push_back(start + i);
      for (const char* lane : {"compute", "reduce", "gather"}) {
        ask(by_rank, fmt::format("g{}@{}:{}", size, lane, start), ranks);
        ++num_groups;
      }
    }
  int seen = 0;
  const std::vector<SplitRound> rounds = split_rounds(by_rank);
  for (const SplitRound& round : rounds) {
    std::set<int> taken;
    for (const SplitGroup& g : round) {
      ++seen;
      for (const int r : g.ranks) EXPECT_TRUE(taken.insert(r).second);
    }
  }
  EXPECT_EQ(seen, num_groups);
  EXPECT_EQ(rounds.size(), 15U);  // as many as one rank has groups: no split is wasted
}

}  // namespace
}  // namespace pleat::comm
