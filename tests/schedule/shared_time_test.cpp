// Stages that share resources: fair parts, to the nanosecond where the answer is known by hand.
#include "interpret/simulate/shared_time.h"

#include <gtest/gtest.h>

#include "interpret/simulate/intervals.h"
#include "interpret/simulate/simulate.h"
#include "interpret/simulate/step_parts.h"
#include "schedule/schedule_support.h"

namespace pleat::schedule {
namespace {

using namespace program;
using interpret::SharedMachine;
using interpret::Simulation;

// One stage per lane, none waiting for another; stage i takes times[i].
struct Lanes {
  Program program;
  std::vector<StageTime> times;

  explicit Lanes(std::vector<StageTime> t, size_t lanes = 0) : times(std::move(t)) {
    if (lanes == 0) lanes = times.size();
    for (size_t i = 0; i < lanes; ++i)
      program.lanes.push_back({"lane" + std::to_string(i), i == 0 ? "compute" : "links"});
    for (size_t i = 0; i < times.size(); ++i) {
      Stage s;
      s.op = Op::attn_norm;
      s.part = static_cast<int32_t>(i);
      s.lane = static_cast<int16_t>(i % lanes);
      program.stages.push_back(s);
    }
  }
  Simulation run(const SharedMachine& machine = {}) const {
    return interpret::simulate_shared(
        interpret::network_of_roles({&program, 1}),
        [&](const Program&, const Stage& s) { return times[static_cast<size_t>(s.part)]; }, machine);
  }
  std::vector<int64_t> ends(const SharedMachine& machine = {}) const {
    std::vector<int64_t> out;
    const Simulation s = run(machine);
    for (const interpret::Span& span : s.nodes[0].timeline.spans) out.push_back(span.end_ns);
    return out;
  }
};

StageTime takes(int64_t flow, std::initializer_list<std::pair<Resource, float>> shares, int64_t fixed = 0) {
  StageTime t;
  t.fixed_ns = fixed, t.flow_ns = flow;
  for (const auto& [r, share] : shares) t.of(r) = share;
  return t;
}

using R = Resource;

TEST(SharedTime, EqualStagesOnOneResourceTakeTurnsFairly) {
  EXPECT_EQ(Lanes({takes(1000, {{R::LinkOut, 1}}), takes(1000, {{R::LinkOut, 1}})}).ends(),
            (std::vector<int64_t>{2000, 2000}));
  // The shorter one is through at 1000; the longer then has the link alone.
  EXPECT_EQ(Lanes({takes(500, {{R::LinkOut, 1}}), takes(1500, {{R::LinkOut, 1}})}).ends(),
            (std::vector<int64_t>{1000, 2000}));
  // Different resources, or one of which both need half: nobody waits.
  EXPECT_EQ(Lanes({takes(1000, {{R::LinkOut, 1}}), takes(1000, {{R::NetworkOut, 1}})}).ends(),
            (std::vector<int64_t>{1000, 1000}));
  EXPECT_EQ(Lanes({takes(1000, {{R::Memory, 0.5F}}), takes(1000, {{R::Memory, 0.5F}})}).ends(),
            (std::vector<int64_t>{1000, 1000}));
}

// Seen on an H200: products take 85 ms beside copies both ways and 64 ms alone; the copies keep their pace.
TEST(SharedTime, AProductBesideTwoCopiesTakesAThirdLonger) {
  const auto copy = [](bool out) {
    return takes(1'000'000,
                 {{R::Processor, 0.125F}, {R::HostOut, out ? 1.0F : 0.08F}, {R::HostIn, out ? 0.08F : 1.0F}});
  };
  const std::vector<int64_t> ends =
      Lanes({takes(600'000, {{R::Processor, 1}}), copy(true), copy(false)}).ends();
  EXPECT_NEAR(double(ends[0]), 600'000 / 0.75, 2) << "64 ms become 85";
  EXPECT_NEAR(double(ends[1]), 1'000'000 / 0.92, 2) << "55.3 GB/s become 50.8";
  EXPECT_EQ(ends[1], ends[2]);
}

TEST(SharedTime, LatencyTakesNothingOfAResource) {
  // Both links are free while the first waits for its latency.
  EXPECT_EQ(Lanes({takes(1000, {{R::LinkOut, 1}}, 1000), takes(1000, {{R::LinkOut, 1}})}).ends(),
            (std::vector<int64_t>{2000, 1000}));
}

TEST(SharedTime, RanksOfACpuShareItsCores) {
  SharedMachine two;
  two.processor_of = {0};
  two.processors = 2;
  const auto core = takes(1000, {{R::Processor, 1}});
  EXPECT_EQ(Lanes({core, core}).ends(two), (std::vector<int64_t>{1000, 1000}));
  EXPECT_EQ(Lanes({core, core, core}).ends(two), (std::vector<int64_t>{1500, 1500, 1500}));
  two.crowd = {1, 1.25};
  EXPECT_EQ(Lanes({core, core}).ends(two), (std::vector<int64_t>{1250, 1250}));
  EXPECT_EQ(Lanes({core}).ends(two), (std::vector<int64_t>{1000}));
}

// Four ranks on a node of four cores in one collective, each with its core: crowding slows it once, not once a member.
TEST(SharedTime, AMeetingIsCrowdedOnce) {
  const RankPrograms r = build_ranks(make_config({"parallel.tp=4", "model.num_kv_heads=4"}), 4);
  const interpret::Network all = on_ranks(r);
  SharedMachine node;
  node.processor_of.assign(4, 0);
  node.processors = 4;
  const auto step = [&](bool crowds) {
    return interpret::simulate_shared(
               all,
               [&](const Program&, const Stage& s) {
                 StageTime t = takes(is_exchange(s.op) ? 1'000'000 : 0, {{R::Processor, 1}});
                 t.crowds = crowds;
                 return t;
               },
               node)
        .step_ns;
  };
  const int64_t alone = step(true);
  ASSERT_GT(alone, 0);
  node.crowd = {1, 1.1, 1.2, 1.5};
  EXPECT_NEAR(double(step(true)), 1.5 * double(alone), 1e-3 * double(alone));
  EXPECT_EQ(step(false), alone) << "it was measured among others";
}

// Links carry as much one way as the other: who sends to a rank that sends to it does not wait.
TEST(SharedTime, MessagesBothWaysKeepTheirPace) {
  EXPECT_EQ(Lanes({takes(1000, {{R::LinkOut, 1}}), takes(1000, {{R::LinkIn, 1}})}).ends(),
            (std::vector<int64_t>{1000, 1000}));
  // A collective takes both ways, a message beside it one of them.
  EXPECT_EQ(Lanes({takes(1000, {{R::LinkOut, 1}, {R::LinkIn, 1}}), takes(1000, {{R::LinkOut, 1}})}).ends(),
            (std::vector<int64_t>{2000, 2000}));
}

// The host issues one stage after the other, and where it waits it goes on behind what it waits for.
TEST(SharedTime, TheHostIsAResource) {
  StageTime quick = takes(10, {{R::Processor, 1}});
  quick.host_ns = 100;
  EXPECT_EQ(Lanes({quick, quick, quick}, 1).ends(), (std::vector<int64_t>{110, 210, 310}));
  StageTime slow = takes(1000, {{R::Processor, 1}});
  slow.host_ns = 100;
  EXPECT_EQ(Lanes({slow, slow, slow}, 1).ends(), (std::vector<int64_t>{1100, 2100, 3100}));
  Lanes waits({slow, takes(0, {}), slow}, 1);
  waits.program.stages[1].op = Op::host_wait;
  EXPECT_EQ(waits.ends(), (std::vector<int64_t>{1100, 1100, 2200}));
  SharedMachine graph;
  graph.start_ns = 70;
  EXPECT_EQ(Lanes({takes(10, {{R::Processor, 1}})}).ends(graph), (std::vector<int64_t>{80}));
}

// With nothing to share, both ways of simulating give the same times, stage by stage.
TEST(SharedTime, WithoutSharingItIsTheOtherSimulation) {
  for (const Words& sets :
       {Words{"parallel.pp=2", "model.num_layers=4", "train.num_microbatches=8", "parallel.ep=2"},
        Words{"parallel.cp=2", "parallel.context=\"ring\"", "parallel.tp=2"}}) {
    const RankPrograms r = build_ranks(make_config(sets), 4);
    // Both ends of a message say the same.
    const auto ns = [](const Stage& s) {
      return is_exchange(s.op) ? int64_t{300}
                               : int64_t{100} + 37 * (static_cast<int>(s.op) % 11) + 5 * s.layer;
    };
    // Stages of compute lanes that are ready at once would take turns there and run side by side here: one lane each.
    std::vector<Program> programs = r.programs;
    for (Program& p : programs)
      for (Lane& lane : p.lanes)
        if (lane.name != "compute") lane.resource = "links";
    const interpret::Network one = interpret::network_of_roles(programs);
    const Simulation alone = interpret::simulate(one, [&](const Program&, const Stage& s) { return ns(s); });
    const Simulation shared = interpret::simulate_shared(one, [&](const Program&, const Stage& s) {
      StageTime t;
      t.fixed_ns = ns(s) / 3, t.flow_ns = ns(s) - t.fixed_ns;
      return t;
    });
    ASSERT_EQ(alone.step_ns, shared.step_ns);
    for (size_t n = 0; n < alone.nodes.size(); ++n)
      for (size_t s = 0; s < alone.nodes[n].timeline.spans.size(); ++s) {
        ASSERT_EQ(alone.nodes[n].timeline.spans[s].start_ns, shared.nodes[n].timeline.spans[s].start_ns);
        ASSERT_EQ(alone.nodes[n].timeline.spans[s].end_ns, shared.nodes[n].timeline.spans[s].end_ns);
      }
  }
}

TEST(Intervals, UnitedCoveredAndOutside) {
  using interpret::Intervals;
  const Intervals u = interpret::united({{5, 8}, {0, 2}, {2, 3}, {7, 9}, {4, 4}});
  ASSERT_EQ(u.size(), 2u);
  EXPECT_EQ(interpret::length(u), 3 + 4);
  EXPECT_EQ(interpret::covered(u, 1, 6), 2 + 1);
  const Intervals rest = interpret::outside({{0, 10}}, u);
  ASSERT_EQ(rest.size(), 2u);
  EXPECT_EQ(interpret::length(rest), 2 + 1);
}

// Every nanosecond of a step is work, an exposed part, or idle.
TEST(StepParts, AddUpToTheStep) {
  const RankPrograms r = build_ranks(
      make_config({"parallel.pp=2", "model.num_layers=4", "train.num_microbatches=8", "parallel.ep=2"}), 4);
  const Simulation s = interpret::simulate(interpret::network_of_roles(r.programs),
                                           [](const Program&, const Stage& st) { return 100 + st.layer; });
  for (size_t i = 0; i < r.programs.size(); ++i) {
    const interpret::StepParts parts = interpret::step_parts(
        r.programs[i], s.nodes[i].timeline, s.step_ns, [](const Program& p, const Stage& st) -> std::string {
          const Lane& lane = p.lanes[size_t(st.lane)];
          return lane.resource == "compute" ? "" : lane.name;
        });
    int64_t sum = parts.work_ns + parts.idle_ns;
    for (const interpret::StepPart& p : parts.parts) {
      EXPECT_LE(p.exposed_ns, p.held_ns);
      sum += p.exposed_ns;
    }
    EXPECT_EQ(sum, s.step_ns);
    EXPECT_GT(parts.idle_ns, 0);
    EXPECT_FALSE(parts.parts.empty());
  }
}

}  // namespace
}  // namespace pleat::schedule
