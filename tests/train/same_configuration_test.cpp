// Ranks whose configurations differ stop before anything is built, all with the same words.
#include "train/same_configuration.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "comm/local/local_world.h"
#include "support/refusal.h"
#include "support/small_models.h"

namespace pleat::train {
namespace {

config::Config with(const std::vector<std::string>& sets) {
  return config::resolve(
      config::parse(::pleat::testing::kRunModel + "moe.num_experts = 4\n", sets, "same.toml"));
}

std::vector<std::string> said(const std::vector<std::vector<std::string>>& sets) {
  std::vector<std::string> out(sets.size());
  comm::LocalWorld world(static_cast<int>(sets.size()));
  comm::run_ranks(world, [&](int rank) {
    const auto endpoint = world.endpoint(rank);
    try {
      require_same_configuration(*endpoint, with(sets[static_cast<size_t>(rank)]));
    } catch (const base::Error& e) {
      EXPECT_EQ(e.code(), base::ExitCode::BadInput);
      out[static_cast<size_t>(rank)] = e.what();
    }
  });
  return out;
}

TEST(SameConfiguration, ADifferenceIsNamedByAllRanks) {
  EXPECT_EQ(said({{}, {}, {}}), (std::vector<std::string>{"", "", ""}));
  EXPECT_EQ(said({{}, {"device.threads=1"}}), (std::vector<std::string>{"", ""}));
  for (const std::string& words :
       said({{"optimizer.lr=0.001"}, {"optimizer.lr=0.001"}, {"optimizer.lr=0.005"}})) {
    EXPECT_NE(words.find("rank 2 has optimizer.lr = 0.005"), std::string::npos) << words;
    EXPECT_NE(words.find("rank 0 has optimizer.lr = 0.001"), std::string::npos) << words;
  }
}

TEST(SameConfiguration, WhatWasAskedBesideIsComparedToo) {
  comm::LocalWorld world(2);
  comm::run_ranks(world, [&](int rank) {
    const auto endpoint = world.endpoint(rank);
    const auto compare = [&] {
      require_same_configuration(*endpoint, with({}), rank == 0 ? "--init = yes\n" : "--init = no\n");
    };
    const std::string words = ::pleat::testing::refusal(compare);
    EXPECT_NE(words.find("rank 1 has --init = no, rank 0 has --init = yes"), std::string::npos) << words;
  });
}

}  // namespace
}  // namespace pleat::train
