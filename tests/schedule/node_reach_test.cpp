// How groups and cuts of a pipeline lie on nodes, and which links a simulated step uses because of it.
#include "schedule/node_reach.h"

#include <gtest/gtest.h>

#include "cost/machine_file.h"
#include "schedule/schedule_support.h"

namespace pleat::schedule {
namespace {

using namespace program;

cost::Reach reach(const Words& sets, int ranks, int64_t per_node) {
  return reach_of(build_ranks(make_config(sets), ranks).layout, per_node);
}

const Words kPipeline = {"model.num_layers=4", "parallel.pp=2", "parallel.tp=2", "train.num_microbatches=4",
                         "parallel.ep=2"};

TEST(NodeReach, GroupsAreCountedByNodes) {
  const auto of = [&](int64_t per_node, Group g) { return reach(kPipeline, 8, per_node).groups[size_t(g)]; };
  for (const Group g : {Group::Tensor, Group::Data, Group::Pipeline, Group::Expert}) {
    EXPECT_EQ(of(8, g).nodes, 1);
    EXPECT_EQ(of(8, g).ranks, 2);
    EXPECT_EQ(of(8, g).here, 2);
    EXPECT_EQ(of(1, g).nodes, 2);
    EXPECT_EQ(of(1, g).here, 1);
  }
  EXPECT_EQ(of(4, Group::Tensor).nodes, 1);
  EXPECT_EQ(of(4, Group::Pipeline).nodes, 2);
  EXPECT_EQ(of(2, Group::Data).nodes, 2);
  EXPECT_EQ(of(4, Group::World).nodes, 2);
  EXPECT_EQ(of(4, Group::World).here, 4);
  EXPECT_EQ(of(3, Group::World).nodes, 3);
  EXPECT_EQ(of(3, Group::World).here, 2) << "the last node has fewest";
}

// Four stages, two to a node: every other cut leaves it.
TEST(NodeReach, CutsOfThePipelineDiffer) {
  const Words sets = {"model.num_layers=4", "parallel.pp=4", "train.num_microbatches=4"};
  EXPECT_EQ(reach(sets, 4, 2).far_cuts, (std::vector<char>{0, 1, 0, 1}));
  const config::Config c = make_config(sets);
  const RankPrograms r = build_ranks(c, 4);
  const cost::Machine machine = cost::find_machine("h100");
  const cost::Reach at = reach_of(r.layout, 2);
  for (size_t i = 0; i + 1 < r.programs.size(); ++i)
    for (const Stage& s : r.programs[i].stages)
      if (s.op == Op::send_x && s.phase == Phase::Forward) {
        const cost::ExchangeTime t = cost::exchange_time(machine, at, r.mesh, r.programs[i], s);
        EXPECT_EQ(t.network_ns > 0, i % 2 == 1) << i;
        EXPECT_EQ(t.link_ns > 0, i % 2 == 0) << i;
      }
}

TEST(NodeReach, TheKeyMayDeclareFewerRanksThanANodeHas) {
  const cost::Machine machine = cost::find_machine("h100");
  EXPECT_EQ(ranks_per_node(make_config({}), machine), 8);
  EXPECT_EQ(ranks_per_node(make_config({"parallel.ranks_per_node=4"}), machine), 4);
  EXPECT_THROW(ranks_per_node(make_config({"parallel.ranks_per_node=9"}), machine), base::Error);
}

}  // namespace
}  // namespace pleat::schedule
