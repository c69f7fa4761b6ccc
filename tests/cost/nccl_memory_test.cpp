// NCCL's line of the plan, against the formula written down a second time.
#include "cost/nccl_memory.h"

#include <gtest/gtest.h>

#include "config/resolve.h"
#include "schedule/ranks.h"

namespace pleat::cost {
namespace {

using program::Group;
using program::Op;

// Round numbers: a buffer is 8 bytes, a communicator 1000.
constexpr NcclSizes kSizes = {.simple_bytes = 4,
                              .ll_bytes = 1,
                              .ll128_bytes = 2,
                              .granule = 8,
                              .group_bytes = 1000,
                              .collective_channels = 10,
                              .message_channels = 16};

program::Program calls(const std::vector<std::tuple<Op, Group, int>>& stages) {
  program::Program p;
  p.lanes = {{"compute", "compute"}, {"reduce", "links"}};
  for (const auto& [op, group, lane] : stages) {
    program::Stage& stage = p.stages.emplace_back();
    stage.op = op;
    stage.group = group;
    stage.lane = static_cast<int16_t>(lane);
  }
  return p;
}

model::Mesh mesh(int64_t tp, int64_t dp, int64_t pp) {
  model::Mesh m;
  m.tp = tp, m.dp = dp, m.pp = pp;
  return m;
}

TEST(NcclMemory, ARingPerChannelOfAGather) {
  const NcclMemory got = nccl_memory(mesh(4, 1, 1), calls({{Op::attn_gather, Group::Tensor, 0}}), kSizes);
  EXPECT_EQ(got.num_groups, 1);
  EXPECT_EQ(got.bytes, 1000 + 1000 + 10 * 8);
}

TEST(NcclMemory, ASumHasTreesToo) {
  const NcclMemory got = nccl_memory(mesh(4, 1, 1), calls({{Op::norm_reduce, Group::World, 0}}), kSizes);
  EXPECT_EQ(got.bytes, 1000 + 1000 + 3 * 10 * 8);
}

TEST(NcclMemory, CallsOfAGroupOnOneLaneShareAndLanesDoNot) {
  const NcclMemory one =
      nccl_memory(mesh(4, 1, 1),
                  calls({{Op::attn_gather, Group::Tensor, 0}, {Op::attn_scatter, Group::Tensor, 0}}), kSizes);
  EXPECT_EQ(one.num_groups, 1);
  EXPECT_EQ(one.bytes, 2000 + 80);
  const NcclMemory two =
      nccl_memory(mesh(4, 1, 1),
                  calls({{Op::attn_gather, Group::Tensor, 0}, {Op::attn_scatter, Group::Tensor, 1}}), kSizes);
  EXPECT_EQ(two.num_groups, 2);
  EXPECT_EQ(two.bytes, 1000 + 2 * (1000 + 80));
}

TEST(NcclMemory, MessagesConnectNeighboursOnOneLane) {
  const auto p = calls({{Op::send_x, Group::Pipeline, 0}, {Op::receive_x, Group::Pipeline, 1}});
  EXPECT_EQ(nccl_memory(mesh(1, 1, 4), p, kSizes).num_groups, 1);
  EXPECT_EQ(nccl_memory(mesh(1, 1, 4), p, kSizes).bytes, 2000 + 2 * 16 * 8);
  EXPECT_EQ(nccl_memory(mesh(1, 1, 2), p, kSizes).bytes, 2000 + 1 * 16 * 8);
}

// Nine peers have half as many channels each as eight.
TEST(NcclMemory, AnAllToAllConnectsEveryPeer) {
  const auto p = calls({{Op::cp_exchange, Group::Tensor, 0}});
  EXPECT_EQ(nccl_memory(mesh(9, 1, 1), p, kSizes).bytes, 2000 + 8 * 16 * 8);
  EXPECT_EQ(nccl_memory(mesh(10, 1, 1), p, kSizes).bytes, 2000 + 9 * 8 * 8);
}

TEST(NcclMemory, AloneThereIsNone) {
  const auto p = calls({{Op::attn_gather, Group::Tensor, 0}, {Op::norm_reduce, Group::World, 0}});
  EXPECT_EQ(nccl_memory(mesh(1, 1, 1), p, kSizes).bytes, 0);
  EXPECT_EQ(nccl_memory(mesh(1, 1, 1), p, kSizes).num_groups, 0);
}

// As the library's own words have it: NCCL_BUFFSIZE 4 MiB, and the two protocols for short messages.
TEST(NcclMemory, DefaultsAreTheLibrarys) {
  const NcclSizes s;
  EXPECT_EQ(s.simple_bytes, 4194304);
  EXPECT_EQ(s.ll_bytes, 524288);
  EXPECT_EQ(s.ll128_bytes, 4915200);
  const NcclMemory one = nccl_memory(mesh(2, 1, 1), calls({{Op::attn_gather, Group::Tensor, 0}}));
  EXPECT_EQ(one.bytes, (2 * 6 + 24 * 10) * int64_t{1048576});
}

TEST(NcclMemory, ProgramsOfALayoutHaveIt) {
  const config::Config config = config::resolve(config::parse(
      "[model]\nffn_hidden_size = 682\n[train]\nnum_microbatches = 4\n[parallel]\ntp = 2\npp = 2\n", {},
      "x.toml"));
  const schedule::RankPrograms ranks = schedule::build_ranks(config, 4);
  for (const program::Program& p : ranks.programs) {
    const NcclMemory got = nccl_memory(ranks.mesh, p);
    EXPECT_GE(got.num_groups, 3);  // tp, pp, and sums of the update
    EXPECT_GT(got.bytes, 0);
  }
}

}  // namespace
}  // namespace pleat::cost
