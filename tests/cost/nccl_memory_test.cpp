// NCCL's line of the plan, against the formula written down a second time.
#include "cost/nccl_memory.h"

#include <gtest/gtest.h>

#include "config/resolve.h"
#include "schedule/ranks.h"

namespace pleat::cost {
namespace {

using program::Group;
using program::Op;

// Round numbers: a connection is 8 bytes and 8 of its sender, a communicator 1000.
constexpr NcclSizes kSizes = {.simple_bytes = 4,
                              .ll_bytes = 1,
                              .ll128_bytes = 2,
                              .granule = 8,
                              .group_bytes = 1000,
                              .collective_channels = 10,
                              .message_channels = 16,
                              .collectives_over_sum = 2};

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
  EXPECT_EQ(got.bytes, 1000 + 1000 + 2 * 10 * 16);
}

// A ring hears from one side, a tree from both; two ranks have one side only.
TEST(NcclMemory, ASumHasTreesToo) {
  const NcclMemory got = nccl_memory(mesh(4, 1, 1), calls({{Op::norm_reduce, Group::World, 0}}), kSizes);
  EXPECT_EQ(got.bytes, 1000 + 1000 + 2 * 2 * 10 * 16);
  const NcclMemory pair = nccl_memory(mesh(2, 1, 1), calls({{Op::norm_reduce, Group::World, 0}}), kSizes);
  EXPECT_EQ(pair.bytes, 1000 + 1000 + 2 * 10 * 16);
}

TEST(NcclMemory, CallsOfAGroupOnOneLaneShareAndLanesDoNot) {
  const NcclMemory one =
      nccl_memory(mesh(4, 1, 1),
                  calls({{Op::attn_gather, Group::Tensor, 0}, {Op::attn_scatter, Group::Tensor, 0}}), kSizes);
  EXPECT_EQ(one.num_groups, 1);
  EXPECT_EQ(one.bytes, 2000 + 320);
  const NcclMemory two =
      nccl_memory(mesh(4, 1, 1),
                  calls({{Op::attn_gather, Group::Tensor, 0}, {Op::attn_scatter, Group::Tensor, 1}}), kSizes);
  EXPECT_EQ(two.num_groups, 2);
  EXPECT_EQ(two.bytes, 1000 + 2 * (1000 + 320));
}

TEST(NcclMemory, MessagesConnectNeighboursOnOneLane) {
  const auto p = calls({{Op::send_x, Group::Pipeline, 0}, {Op::receive_x, Group::Pipeline, 1}});
  EXPECT_EQ(nccl_memory(mesh(1, 1, 4), p, kSizes).num_groups, 1);
  EXPECT_EQ(nccl_memory(mesh(1, 1, 4), p, kSizes).bytes, 2000 + 2 * 16 * 16);
  EXPECT_EQ(nccl_memory(mesh(1, 1, 2), p, kSizes).bytes, 2000 + 1 * 16 * 16);
}

// Nine peers have half as many channels each as eight.
TEST(NcclMemory, AnAllToAllConnectsEveryPeer) {
  const auto p = calls({{Op::cp_exchange, Group::Tensor, 0}});
  EXPECT_EQ(nccl_memory(mesh(9, 1, 1), p, kSizes).bytes, 2000 + 8 * 16 * 16);
  EXPECT_EQ(nccl_memory(mesh(10, 1, 1), p, kSizes).bytes, 2000 + 9 * 8 * 16);
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
  EXPECT_EQ(one.bytes, static_cast<int64_t>((2 * 6 + 2.76 * 24 * 12) * 1048576));
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

// The one that there is: four ranks on one GPU took 34.5 GiB (docs/measurements.md), of tiny.toml in bfloat16 with
// windows over four.
TEST(NcclMemory, TheMeasuredPointIsMet) {
  const config::Config config =
      config::resolve(config::load(PLEAT_SOURCE_DIR "/configs/tiny.toml",
                                   {"parallel.ep=4", "device.kind=\"cuda\"", "model.dtype=\"bfloat16\"",
                                    "parallel.exchange=\"windows\"", "train.num_microbatches=4"}));
  const schedule::RankPrograms ranks = schedule::build_ranks(config, 4);
  const NcclMemory got = nccl_memory(ranks.mesh, ranks.programs.front());
  EXPECT_EQ(got.num_groups, 7);
  EXPECT_NEAR(double(got.bytes) / (1 << 30), 34.5 / 4, 0.1);
}

}  // namespace
}  // namespace pleat::cost
