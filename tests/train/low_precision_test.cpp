// Steps with products in few bits, by exact rounding on the CPU.
#include <gtest/gtest.h>

#include <cmath>

#include "program/step_values.h"
#include "schedule/build.h"
#include "schedule/pass/pass.h"
#include "support/refusal.h"
#include "train/code_health.h"
#include "train/train_support.h"

namespace pleat::train::testing {
namespace {

const std::vector<std::string> kModel = {"model.dtype=\"float32\"",
                                         "model.hidden_size=64",
                                         "model.leading_dense_layers=1",
                                         "model.ffn_hidden_size=80",
                                         "moe.ffn_hidden_size=48",
                                         "moe.shared_ffn_hidden_size=32",
                                         "model.vocab_size=50",
                                         "model.head_dim=16",
                                         "train.seq_len=40",
                                         "optimizer.lr=2e-3",
                                         "optimizer.schedule=\"constant\""};

config::Config model(std::vector<std::string> more) {
  more.insert(more.begin(), kModel.begin(), kModel.end());
  return small_config("", more);
}

struct Trained {
  std::vector<double> losses;
  std::string state;
  std::vector<report::CodeHealth> codes;  // of the last step
};
// The same batch again and again: the loss falls.
Trained trained(const config::Config& c, int steps) {
  runtime::Programs programs(c, train_only());
  programs.initialize();
  Trained out;
  for (int step = 1; step <= steps; ++step) {
    write_random_batch(programs.train(), c, 1);
    programs.train().run();
    const auto loss = programs.train().at(program::step::loss);
    out.losses.push_back(loss[0] / loss[1]);
    EXPECT_NE(programs.train().at(program::step::commit)[0], 0) << step;
  }
  out.state = digest(snapshot(programs));
  out.codes = code_health(programs.train());
  return out;
}

TEST(LowPrecision, LossesFollowThoseOfWideProducts) {
  const Trained wide = trained(model({}), 40), fp8 = trained(model({"precision.recipe=\"fp8\""}), 40);
  EXPECT_NE(fp8.state, wide.state);
  for (size_t i = 0; i < wide.losses.size(); ++i)
    EXPECT_NEAR(fp8.losses[i], wide.losses[i], 0.03 * wide.losses[0]) << "step " << i + 1;
  EXPECT_LT(fp8.losses.back(), 0.8 * fp8.losses.front());
}

TEST(LowPrecision, BitsDependOnNeitherThreadsNorRecompute) {
  const std::string recipe = "precision.recipe=\"fp8\"";
  const Trained one = trained(model({recipe, "device.threads=1"}), 3);
  const Trained three = trained(model({recipe, "device.threads=3"}), 3);
  EXPECT_EQ(three.state, one.state);
  EXPECT_EQ(three.codes, one.codes);
  EXPECT_EQ(trained(model({recipe}), 3).state, one.state);
  for (const char* modules : {"[\"norm\", \"activation\"]", "[\"layer\"]"}) {
    const Trained again = trained(model({recipe, std::string("recompute.modules=") + modules}), 3);
    EXPECT_EQ(again.state, one.state) << modules;
    EXPECT_EQ(again.codes, one.codes) << modules;
  }
}

// Every class that has products and was asked for, all three sides of it; none without a recipe.
TEST(LowPrecision, SaysHowCodesFared) {
  const std::vector<std::string> modules = {"attention", "mlp", "experts", "shared_experts"};
  const Trained all = trained(model({"precision.recipe=\"fp8\""}), 1);
  ASSERT_EQ(all.codes.size(), 3 * modules.size());
  for (size_t i = 0; i < all.codes.size(); ++i) {
    const report::CodeHealth& row = all.codes[i];
    EXPECT_EQ(row.module, modules[i / 3]);
    EXPECT_EQ(row.side, (std::vector<std::string>{"activations", "gradients", "weights"}[i % 3]));
    EXPECT_GT(row.largest, 0);
    EXPECT_EQ(row.saturated + row.nan, 0);
    EXPECT_LT(row.share(row.flushed), report::kMuchFlushed);
  }
  const Trained experts = trained(model({"precision.recipe=\"fp8\"", "precision.modules=[\"experts\"]"}), 1);
  EXPECT_EQ(experts.codes.size(), 3u);
  EXPECT_TRUE(trained(model({}), 1).codes.empty());
}

// Gradients of one step: of every parameter near those of wide products, the more so where fewer products are coded.
TEST(LowPrecision, GradientsAreNearThoseOfWideProducts) {
  const auto gradients_of = [](const config::Config& c, const runtime::Programs& start) {
    Runtime bound(with_gradients_kept(runtime::without_update(
                      schedule::apply_passes(schedule::build_training_step(c, start.table()), c))),
                  2);
    copy_state(start, bound);
    write_random_batch(bound.executor(), c, 1);
    bound.executor().run();
    return gradients(bound.program(), bound.executor());
  };
  const config::Config plain = model({"moe.force_routing=\"balanced\""});
  runtime::Programs start(plain, train_only());
  start.initialize();
  const Snapshot wide = gradients_of(plain, start);
  double worst_of_all = 0;
  for (const char* modules : {"[\"experts\"]", "[]"}) {
    config::Config c = model({"moe.force_routing=\"balanced\"", "precision.recipe=\"fp8\"",
                              std::string("precision.modules=") + modules});
    double worst = 0;
    for (const auto& [name, bytes] : gradients_of(c, start)) {
      const auto* got = reinterpret_cast<const float*>(bytes.data());
      const auto* want = reinterpret_cast<const float*>(wide.at(name).data());
      double apart = 0, length = 0;
      for (size_t i = 0; i < bytes.size() / sizeof(float); ++i)
        apart += std::pow(got[i] - want[i], 2), length += std::pow(want[i], 2);
      if (length > 0) worst = std::max(worst, std::sqrt(apart / length));
    }
    // A product is off by 4 %; a few of them lie one behind the other.
    EXPECT_LT(worst, 0.2) << modules;
    EXPECT_GT(worst, worst_of_all) << modules;
    worst_of_all = worst;
  }
}

TEST(LowPrecision, WhatNothingComputesIsNotTrained) {
  const auto refused = [](const std::vector<std::string>& sets) {
    return pleat::testing::refusal([&] { runtime::Programs(model(sets), train_only()); });
  };
  EXPECT_NE(refused({"precision.recipe=\"mxfp8\""}).find("has no kernels yet"), std::string::npos);
  EXPECT_NE(refused({"precision.recipe=\"nvfp4\""}).find("has no kernels yet"), std::string::npos);
}

}  // namespace
}  // namespace pleat::train::testing
