// The planner against brute force, and planted faults against check_plan.
#include "interpret/plan/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "interpret/brute_plan.h"
#include "interpret/interpret_support.h"
#include "program/brute_order.h"

namespace pleat::interpret {
namespace {

using namespace program;

Program golden() { return parse(golden_text()); }

size_t index_of(const Program& p, const std::string& name) {
  for (size_t i = 0; i < p.values.size(); ++i)
    if (p.values[i].name == name) return i;
  ADD_FAILURE() << name;
  return 0;
}

TEST(Plan, RandomProgramsShareOnlyWhatIsOrdered) {
  int64_t shared = 0;
  for (uint32_t seed = 0; seed < 60; ++seed) {
    const Program p = random_program(seed, 50);
    const Plan made = plan(p);
    int64_t here = 0;
    ASSERT_EQ(BruteJudge(p).fault(made, &here), "") << "seed " << seed;
    ASSERT_EQ(joined(check_plan(p, made)), "") << "seed " << seed;
    shared += here;
  }
  EXPECT_GT(shared, 100) << "the random programs must give the planner something to share";
}

TEST(Plan, GoldenStep) {
  const Program p = golden();
  const Plan made = plan(p);
  EXPECT_EQ(BruteJudge(p).fault(made), "");
  EXPECT_EQ(joined(check_plan(p, made)), "");
  EXPECT_GE(made.arena_bytes, made.live_peak_bytes);
  EXPECT_LE(double(made.arena_bytes), 1.15 * double(made.live_peak_bytes));
}

TEST(Plan, CountsLiveBytesAndOwners) {
  const Program p = parse(kSmall);
  const Plan made = plan(p);
  // w and two moments of 64 bytes, each in 256.
  EXPECT_EQ(made.persistent_bytes, 3 * 256);
  EXPECT_EQ(made.offset[index_of(p, "w")], 0);
  EXPECT_EQ(made.offset[index_of(p, "w.moment2")], 512);
  EXPECT_EQ(made.offset[index_of(p, "y[1]")], made.offset[index_of(p, "y")] + 64);
  ASSERT_EQ(made.live.size(), p.stages.size());
  // First stage: state, five inputs, y. Results are not there yet.
  EXPECT_EQ(made.live[0], (3 + 5 + 1) * 256);
  // wgrad: state, x and hyper, loss, y, w.grad.
  EXPECT_EQ(made.live[3], (3 + 2 + 1 + 1 + 1) * 256);
  // adamw: state, hyper, three results, w.grad.
  EXPECT_EQ(made.live[6], (3 + 1 + 3 + 1) * 256);
  EXPECT_EQ(made.peak_stage, 2);
  EXPECT_EQ(made.live_peak_bytes, (3 + 5 + 1 + 1) * 256);
  int64_t at_peak = 0;
  for (int64_t bytes : made.at_peak) at_peak += bytes;
  EXPECT_EQ(at_peak, made.live_peak_bytes);
  EXPECT_EQ(made.total[size_t(Owner::Optimizer)], 512);
  EXPECT_EQ(made.total[size_t(Owner::Gradients)], 256);
}

TEST(Plan, UnusedValuesTakeNothing) {
  const std::string text = with(kSmall, "value parts", "value ghost f32[1000] workspace step\nvalue parts");
  const Program p = parse(text);
  const Plan made = plan(p);
  EXPECT_EQ(made.offset[index_of(p, "ghost")], -1);
  EXPECT_EQ(made.arena_bytes, plan(parse(kSmall)).arena_bytes);
}

TEST(Plan, AnUnwrittenResultStillHasAPlace) {
  const Program p = parse(with(kSmall, "value parts", "value extra f64[1] results result\nvalue parts"));
  const Plan made = plan(p);
  EXPECT_GE(made.offset[index_of(p, "extra")], 0);
  EXPECT_EQ(made.live[0], plan(parse(kSmall)).live[0] + 256);
}

// a dies before b is born in the list; whether the lanes say so decides.
Program two_lanes(bool same_lane, bool edge) {
  Builder b("lanes");
  const int side = same_lane ? 0 : b.lane("side", "compute");
  const auto value = [&](const char* name, Life life) {
    return b.value(name, tensor::Dtype::F32, {1024}, Owner::Activations, life);
  };
  const ValueId x = value("x", Life::Input), out1 = value("out1", Life::Result),
                out2 = value("out2", Life::Result);
  const ValueId a = value("a", Life::Step), c = value("c", Life::Step);
  b.at({0, -1, 0});
  b.forward(Op::router_record, {r(x), w(a)});
  b.at({0, -1, 1});
  b.forward(Op::router_record, {r(a), w(out1)});
  b.at({0, -1, 2}, side);
  b.forward(Op::router_record, {r(edge ? out1 : x), w(c)});
  b.at({0, -1, 3}, side);
  b.forward(Op::router_record, {r(c), w(out2)});
  return b.take();
}

TEST(Plan, ListOrderAloneDoesNotShareBetweenLanes) {
  const auto shares = [](const Program& p) {
    const Plan made = plan(p);
    EXPECT_EQ(BruteJudge(p).fault(made), "");
    return made.offset[index_of(p, "a")] == made.offset[index_of(p, "c")];
  };
  EXPECT_TRUE(shares(two_lanes(true, false)));
  EXPECT_FALSE(shares(two_lanes(false, false)));
  EXPECT_TRUE(shares(two_lanes(false, true))) << "a data edge orders the lanes";

  const Program p = two_lanes(false, false);
  Plan bad = plan(p);
  bad.offset[index_of(p, "c")] = bad.offset[index_of(p, "a")];
  EXPECT_TRUE(names(check_plan(p, bad), {"'a'", "'c'", "share bytes"}));
}

TEST(CheckPlan, CatchesEveryValueMovedOntoALiveOne) {
  const Program p = golden();
  const Plan good = plan(p);
  const BruteJudge judge(p);
  int moved = 0;
  for (size_t i = 0; i < p.values.size(); i += 3) {
    if (p.values[i].view_of != kNoValue || good.offset[i] < 0) continue;
    for (size_t j = 0; j < p.values.size(); j += 5) {
      if (i == j || p.values[j].view_of != kNoValue || good.offset[j] < 0) continue;
      Plan bad = good;
      move_value(p, bad, i, good.offset[j]);
      const bool fault = !judge.fault(bad).empty();
      ASSERT_EQ(!check_plan(p, bad).ok(), fault) << p.values[i].name << " moved onto " << p.values[j].name;
      moved += fault;
      if (moved > 150) return;
    }
  }
  EXPECT_GT(moved, 50);
}

TEST(CheckPlan, CatchesOneByte) {
  const Program p = parse(kSmall);
  const Plan good = plan(p);
  // x gives its last byte away.
  Plan bad = good;
  const size_t x = index_of(p, "x"), y = index_of(p, "y");
  move_value(p, bad, y, good.offset[x] + num_bytes(p.values[x]) - 1);
  EXPECT_TRUE(names(check_plan(p, bad), {"'x'", "'y'", "share bytes but may be alive together"}));
  // The arena ends one byte before its last value does.
  int64_t end = 0;
  std::string last;
  for (size_t i = 0; i < p.values.size(); ++i)
    if (good.offset[i] + num_bytes(p.values[i]) > end)
      end = good.offset[i] + num_bytes(p.values[i]), last = p.values[i].name;
  bad = good;
  bad.arena_bytes = end;
  EXPECT_TRUE(check_plan(p, bad).ok());
  bad.arena_bytes = end - 1;
  EXPECT_TRUE(
      names(check_plan(p, bad), {"the arena of space device has " + std::to_string(end - 1) + " bytes"}))
      << last;
  bad = good;
  bad.offset[y] = -1;
  EXPECT_TRUE(names(check_plan(p, bad), {"'y' lies at -1"}));
  bad = good;
  bad.offset[index_of(p, "y[1]")] += 4;
  EXPECT_TRUE(names(check_plan(p, bad), {"'y[1]'", "what it views"}));
}

TEST(CheckPlan, PersistentValuesShareWithNobody) {
  const Program p = parse(kSmall);
  Plan bad = plan(p);
  bad.offset[index_of(p, "parts")] = bad.offset[index_of(p, "w.moment1")];
  EXPECT_TRUE(names(check_plan(p, bad), {"'w.moment1'", "'parts'"}));
}

// Scratch of some stages, of sizes at random.
Program with_scratch(Program p, uint32_t seed) {
  std::mt19937 random(seed);
  for (size_t s = 0; s < p.stages.size(); ++s) {
    if (random() % 3 == 0) continue;
    Value v;
    v.name = "scratch" + std::to_string(s);
    v.dtype = tensor::Dtype::U8;
    v.shape = {1 + static_cast<int64_t>(random() % 4000) + (random() % 4 == 0 ? kHotScratchBytes : 0)};
    v.owner = Owner::Workspace;
    p.stages[s].scratch = static_cast<ValueId>(p.values.size());
    p.values.push_back(std::move(v));
  }
  return p;
}

TEST(Plan, ScratchMovesNothingAndLiesInOnePlace) {
  int64_t one_place = 0, side_by_side = 0;
  for (uint32_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    const Program bare = random_program(seed, 50), p = with_scratch(bare, seed);
    ASSERT_EQ(joined(check_plan(p, plan(p, Packing::Frames))), "");
    ASSERT_EQ(BruteJudge(p).fault(plan(p, Packing::Frames)), "");
    const Plan before = plan(bare), made = plan(p);
    ASSERT_EQ(BruteJudge(p).fault(made), "");
    ASSERT_EQ(joined(check_plan(p, made)), "");
    for (size_t i = 0; i < bare.values.size(); ++i)
      ASSERT_EQ(made.offset[i], before.offset[i]) << "scratch moves nothing";
    std::vector<int64_t> most(p.lanes.size(), 0);
    int64_t hot = -1;
    for (const Stage& stage : p.stages) {
      if (stage.scratch == kNoValue) continue;
      const size_t v = static_cast<size_t>(stage.scratch);
      const int64_t bytes = (num_bytes(p.values[v]) + 255) / 256 * 256;
      most[static_cast<size_t>(stage.lane)] = std::max(most[static_cast<size_t>(stage.lane)], bytes);
      if (p.lanes.size() > 1 || bytes > kHotScratchBytes) continue;
      if (hot < 0) hot = made.offset[v];
      EXPECT_EQ(made.offset[v], hot) << "on one lane all of it lies in one place";
      ++one_place;
    }
    if (p.lanes.size() == 1) {
      EXPECT_LE(made.arena_bytes, before.arena_bytes + most[0] + kHotScratchBytes);
    } else {
      side_by_side += made.arena_bytes > before.arena_bytes + *std::max_element(most.begin(), most.end());
    }
    EXPECT_GE(made.live_peak_bytes, before.live_peak_bytes);
    EXPECT_LE(made.live_peak_bytes, made.arena_bytes);
  }
  EXPECT_GT(one_place, 100);
  EXPECT_GT(side_by_side, 0) << "stages that may run at the same time have bytes of their own";
}

TEST(Plan, ScratchOfStagesInOrderSharesBytes) {
  const std::string two = with(with(kSmall, "value parts",
                                    "value s0 u8[4096] workspace step\n"
                                    "value s1 u8[4096] workspace step\nvalue parts"),
                               "fwd mb0 head @compute", "fwd mb0 head @compute scratch=s0");
  const Program one_lane = parse(with(two, "wgrad mb0 head @compute", "wgrad mb0 head @compute scratch=s1"));
  const Plan made = plan(one_lane);
  EXPECT_LT(std::abs(made.offset[index_of(one_lane, "s0")] - made.offset[index_of(one_lane, "s1")]), 4096);
  // Nothing orders the halves of the forward.
  const Program two_lanes = parse(with(two, "head.1 @side", "head.1 @side scratch=s1"));
  const Plan apart = plan(two_lanes);
  EXPECT_EQ(joined(check_plan(two_lanes, apart)), "");
  EXPECT_GE(std::abs(apart.offset[index_of(two_lanes, "s0")] - apart.offset[index_of(two_lanes, "s1")]),
            4096);
  Plan fault = apart;
  fault.offset[index_of(two_lanes, "s1")] = fault.offset[index_of(two_lanes, "s0")];
  EXPECT_FALSE(check_plan(two_lanes, fault).ok());
}

}  // namespace
}  // namespace pleat::interpret
