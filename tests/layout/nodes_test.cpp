// Ranks on machines: which groups and cuts stay inside one, and what a launcher may have done instead.
#include "layout/nodes.h"

#include <gtest/gtest.h>

namespace pleat::layout {
namespace {

Layout sixteen(const std::string& order = "tp-cp-ep-dp-pp") {
  Sizes s;
  s.world = 16, s.tp = 2, s.cp = 2, s.pp = 2, s.ep = 4, s.order = order;
  return Layout(s);
}

TEST(Nodes, GroupsThatCross) {
  const Layout l = sixteen();
  EXPECT_EQ(num_nodes(16, 4), 4);
  EXPECT_EQ(num_nodes(16, 5), 4);
  EXPECT_EQ(num_crossing(l, GroupKind::Tensor, 4), 0);
  EXPECT_EQ(num_crossing(l, GroupKind::TensorContext, 4), 0);
  EXPECT_EQ(num_crossing(l, GroupKind::Expert, 4), 0);
  EXPECT_EQ(num_crossing(l, GroupKind::Data, 4), 8);
  EXPECT_EQ(num_crossing(l, GroupKind::Data, 8), 0);
  EXPECT_EQ(num_crossing(l, GroupKind::Pipeline, 8), 8);
  EXPECT_EQ(num_crossing(l, GroupKind::World, 16), 0);
  // Three to a machine: {0,1} {2,3} {4,5} {6,7} ...: pairs that a border cuts.
  EXPECT_EQ(num_crossing(l, GroupKind::Tensor, 3), 3);
}

TEST(Nodes, CutsOfThePipeline) {
  for (const int64_t stage : {0, 1}) {
    EXPECT_TRUE(cut_crosses_nodes(sixteen(), stage, 8));
    EXPECT_FALSE(cut_crosses_nodes(sixteen(), stage, 16));
    // Stages of a pipeline on neighbours, machines by data replicas.
    EXPECT_FALSE(cut_crosses_nodes(sixteen("tp-cp-ep-pp-dp"), stage, 8));
  }
}

TEST(Nodes, WhatWasStartedIsWhatWasDeclared) {
  EXPECT_EQ(node_fault(0, {3, 8, 1, 2}), "") << "nothing is declared";
  EXPECT_EQ(node_fault(4, {5, 8, 1, 4}), "");
  EXPECT_EQ(node_fault(4, {5, 6, 1, 2}), "") << "the last machine may have fewer";
  EXPECT_EQ(node_fault(8, {2, 4, 2, 4}), "");
  EXPECT_EQ(
      node_fault(4, {5, 8, 1, 2}),
      "parallel.ranks_per_node = 4 puts 4 of 8 ranks on the machine of rank 5, but 2 run there; start them "
      "so, or change the key");
  EXPECT_NE(node_fault(4, {1, 6, 1, 6}), "");
  // Dealt out in turn: as many on each, but not neighbours.
  EXPECT_EQ(node_fault(4, {2, 8, 1, 4}),
            "parallel.ranks_per_node = 4 makes rank 2 number 2 on its machine, but it was started as number "
            "1: ranks "
            "of a machine must be neighbours; start them so, or remove the key");
}

}  // namespace
}  // namespace pleat::layout
