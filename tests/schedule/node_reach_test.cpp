// Which links a simulated step uses where it is declared how many ranks share a machine.
#include "schedule/node_reach.h"

#include <gtest/gtest.h>

#include "schedule/schedule_support.h"

namespace pleat::schedule {
namespace {

using namespace program;

// What a stage of this op takes beyond what the machine's links cost: with one of the two links free.
std::vector<int64_t> times(const Words& sets, int ranks, Op op, bool free_near) {
  const config::Config c = make_config(sets);
  const RankPrograms r = build_ranks(c, ranks);
  cost::Machine machine = with_nodes(cost::toy_machine(), c, r.layout);
  (free_near ? machine.near : machine.far) = {};
  std::vector<int64_t> out;
  for (const Program& p : r.programs)
    for (const Stage& s : p.stages)
      if (s.op == op) out.push_back(cost::stage_ns(machine, r.mesh, p, s));
  EXPECT_FALSE(out.empty());
  return out;
}

bool all_near(const Words& sets, int ranks, Op op) {
  const std::vector<int64_t> near = times(sets, ranks, op, true), far = times(sets, ranks, op, false);
  const bool is_near = near == std::vector<int64_t>(near.size(), 0);
  EXPECT_NE(is_near, far == std::vector<int64_t>(far.size(), 0)) << "each is on one kind of link";
  return is_near;
}

TEST(NodeReach, GroupsInsideAMachineAreNear) {
  const Words pipeline = {"model.num_layers=4", "parallel.pp=2", "parallel.tp=2", "train.num_microbatches=4",
                          "parallel.ep=2"};
  const auto with = [&](const char* more) {
    Words out = pipeline;
    out.push_back(more);
    return out;
  };
  // Nothing declared: tensor near, all others far.
  EXPECT_TRUE(all_near(pipeline, 8, Op::attn_gather));
  EXPECT_FALSE(all_near(pipeline, 8, Op::send_x));
  EXPECT_FALSE(all_near(pipeline, 8, Op::grad_reduce));
  // All on one machine, one each, one pipeline stage each.
  EXPECT_TRUE(all_near(with("parallel.ranks_per_node=8"), 8, Op::send_x));
  EXPECT_TRUE(all_near(with("parallel.ranks_per_node=8"), 8, Op::grad_reduce));
  EXPECT_FALSE(all_near(with("parallel.ranks_per_node=1"), 8, Op::attn_gather));
  EXPECT_TRUE(all_near(with("parallel.ranks_per_node=4"), 8, Op::attn_gather));
  EXPECT_TRUE(all_near(with("parallel.ranks_per_node=4"), 8, Op::grad_reduce));
  EXPECT_FALSE(all_near(with("parallel.ranks_per_node=4"), 8, Op::send_x));
}

// Four stages, two to a machine: every other cut leaves it.
TEST(NodeReach, CutsOfThePipelineDiffer) {
  const Words sets = {"model.num_layers=4", "parallel.pp=4", "train.num_microbatches=4",
                      "parallel.ranks_per_node=2"};
  const config::Config c = make_config(sets);
  const RankPrograms r = build_ranks(c, 4);
  const cost::Machine machine = with_nodes(cost::toy_machine(), c, r.layout);
  ASSERT_TRUE(machine.nodes);
  EXPECT_EQ(machine.nodes->near_cuts, (std::vector<char>{1, 0, 1, 0}));
  for (size_t i = 0; i + 1 < r.programs.size(); ++i)
    for (const Stage& s : r.programs[i].stages)
      if (s.op == Op::send_x && s.phase == Phase::Forward) {
        const cost::Link& link = i % 2 == 0 ? machine.near : machine.far;
        EXPECT_GE(cost::stage_ns(machine, r.mesh, r.programs[i], s), link.latency_ns);
        EXPECT_LT(cost::stage_ns(machine, r.mesh, r.programs[i], s), link.latency_ns + 5000) << i;
      }
}

}  // namespace
}  // namespace pleat::schedule
