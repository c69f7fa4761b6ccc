// Programs of several ranks together: what meets, what hangs, when it runs; on roles and with every rank
// expanded.
#include <gtest/gtest.h>

#include <functional>

#include "base/error.h"
#include "interpret/check/check.h"
#include "interpret/check/check_network.h"
#include "interpret/print/print.h"
#include "interpret/simulate/simulate.h"
#include "program/edit.h"
#include "program/turns.h"
#include "schedule/ranks.h"
#include "schedule/schedule_support.h"

namespace pleat::schedule {
namespace {

using namespace program;
using interpret::check_network;
using interpret::Network;
using interpret::NetworkReport;

struct Layouts {
  int ranks;
  Words sets;
};

Words pipeline(int pp, int vpp, int layers, int microbatches, Words more = {}) {
  Words out = {"model.vocab_size=64", fmt::format("parallel.pp={}", pp), fmt::format("parallel.vpp={}", vpp),
               fmt::format("model.num_layers={}", layers),
               fmt::format("train.num_microbatches={}", microbatches)};
  out.insert(out.end(), more.begin(), more.end());
  return out;
}

const std::vector<Layouts>& layouts() {
  static const std::vector<Layouts> all = {
      {2, pipeline(2, 1, 4, 4)},
      {4, pipeline(4, 1, 4, 8, {"model.tie_embeddings=true"})},
      {4, pipeline(2, 2, 4, 4, {"parallel.tp=2"})},
      {4, pipeline(4, 2, 8, 8)},
      {8, pipeline(2, 1, 4, 8, {"parallel.tp=2", "parallel.ep=4"})},
      {8, pipeline(2, 2, 4, 8,
                   {"parallel.cp=2", "parallel.ep=2", "parallel.etp=2", "model.tie_embeddings=true"})},
      {8, pipeline(4, 1, 4, 8,
                   {"parallel.ep=2", "moe.load_balancing=[\"aux\",\"seq_aux\"]", "moe.aux_coef=[0.1,0.1]"})},
      {4, pipeline(4, 1, 3, 4, {"parallel.pipeline_layout=\"E|tt|t|L\""})},
      {2, pipeline(2, 2, 2, 4, {"parallel.pipeline_layout=\"Et|t||L\""})},  // a chunk that computes nothing
      {4, {"model.vocab_size=64", "parallel.tp=2", "parallel.ep=4"}},
      {2, pipeline(2, 2, 4, 4, {"recompute.modules=[\"activation\",\"norm\"]"})},
      {8, pipeline(2, 2, 4, 8, {"parallel.tp=2", "parallel.ep=2", "parallel.bucket_mib=0"})},
      {16, pipeline(2, 1, 4, 8, {"parallel.tp=2", "parallel.ep=2", "parallel.optimizer_group=2"})},
      {8,
       {"model.vocab_size=64", "train.num_microbatches=8", "parallel.bucket_mib=0",
        "parallel.optimizer_group=4"}},
  };
  return all;
}

interpret::Duration uneven_times() {
  return [](const Program& p, const Stage& s) -> int64_t {
    int64_t bytes = 0;
    for (const Use& u : s.uses)
      if (u.value != kNoValue) bytes += num_bytes(p.values[static_cast<size_t>(u.value)]);
    return 7 + bytes % 1013 + static_cast<int64_t>(s.phase) * 11;
  };
}

size_t find_stage(const Program& p, const std::function<bool(const Stage&)>& is, size_t nth = 0) {
  for (size_t i = 0; i < p.stages.size(); ++i)
    if (is(p.stages[i]) && nth-- == 0) return i;
  ADD_FAILURE() << "no such stage";
  return 0;
}

void remove_stage(Program& p, size_t at) {
  program::Edit edit(std::move(p));
  edit.erase(static_cast<StageId>(at));
  p = edit.apply();
}

auto is_op(Op op, Phase phase) {
  return [=](const Stage& s) { return s.op == op && s.phase == phase; };
}

TEST(Networks, FitAndCannotHangOnRolesAndOnRanks) {
  for (const Layouts& l : layouts()) {
    SCOPED_TRACE(joined(l.sets));
    const RankPrograms r = build_ranks(make_config(l.sets), l.ranks);
    for (const Program& p : r.programs) {
      EXPECT_EQ(joined(interpret::check(p).faults), "");
      EXPECT_TRUE(interpret::parse(interpret::print(p)) == p);
    }
    const Network roles = interpret::network_of_roles(r.programs), ranks = on_ranks(r);
    const NetworkReport a = check_network(roles), b = check_network(ranks);
    EXPECT_EQ(joined(a.faults), "");
    EXPECT_EQ(joined(b.faults), "");
    EXPECT_EQ(a.single_lane_hang.empty(), b.single_lane_hang.empty());
    EXPECT_EQ(a.num_messages > 0, r.mesh.pp > 1);
    EXPECT_EQ(b.num_messages, a.num_messages * static_cast<size_t>(l.ranks / r.mesh.pp));
  }
}

// Steady 1F1B sends and receives at once: fine on one lane as long as both are one call.
TEST(Networks, OneForwardOneBackwardNeedsOneLaneOnly) {
  for (const int pp : {2, 3, 4, 8})
    for (const int microbatches : {1, 2, 8, 12}) {
      RankPrograms r = build_ranks(make_config(pipeline(pp, 1, pp, microbatches)), pp);
      EXPECT_EQ(check_network(interpret::network_of_roles(r.programs)).single_lane_hang, "");
      if (microbatches == 1) continue;
      // With something between them they are two calls, and both ends send first.
      for (Program& p : r.programs) {
        program::Edit edit(std::move(p));
        for (StageId i = 1; i < edit.num_stages(); ++i)
          if (kernel_of(edit[i - 1].op) == KernelKind::send && kernel_of(edit[i].op) == KernelKind::receive) {
            Stage between;
            between.op = Op::zero;
            between.part = 1000 + i;
            edit.insert_before(i, between);
          }
        p = edit.apply();
      }
      EXPECT_NE(check_network(interpret::network_of_roles(r.programs)).single_lane_hang, "");
    }
}

// Interleaved chunks go round the ring while others wait: their lanes are needed.
TEST(Networks, InterleavedNeedsItsLanes) {
  const RankPrograms r = build_ranks(make_config(pipeline(2, 2, 4, 4)), 2);
  const NetworkReport report = check_network(interpret::network_of_roles(r.programs));
  EXPECT_EQ(joined(report.faults), "");
  EXPECT_NE(report.single_lane_hang, "");
}

TEST(Networks, RunAtTheSameTimesOnRolesAndOnRanks) {
  for (const Layouts& l : layouts()) {
    SCOPED_TRACE(joined(l.sets));
    const RankPrograms r = build_ranks(make_config(l.sets), l.ranks);
    const auto roles = interpret::simulate(interpret::network_of_roles(r.programs), uneven_times());
    const auto ranks = interpret::simulate(on_ranks(r), uneven_times());
    EXPECT_EQ(roles.step_ns, ranks.step_ns);
    ASSERT_EQ(ranks.nodes.size(), static_cast<size_t>(l.ranks));
    for (int rank = 0; rank < l.ranks; ++rank) {
      const auto& a = roles.nodes[static_cast<size_t>(r.layout.attention(rank).pp)].timeline.spans;
      const auto& b = ranks.nodes[static_cast<size_t>(rank)].timeline.spans;
      ASSERT_EQ(a.size(), b.size());
      for (size_t i = 0; i < a.size(); ++i)
        ASSERT_TRUE(a[i].start_ns == b[i].start_ns && a[i].end_ns == b[i].end_ns) << rank << " " << i;
    }
  }
}

// ---- planted faults: both views must see them.

void expect_caught(const std::function<void(RankPrograms&)>& plant, const std::string& text) {
  RankPrograms r =
      build_ranks(make_config(pipeline(4, 1, 4, 8, {"parallel.ep=2", "model.tie_embeddings=true"})), 8);
  ASSERT_TRUE(check_network(interpret::network_of_roles(r.programs)).ok());
  plant(r);
  for (const bool expanded : {false, true}) {
    const NetworkReport report =
        check_network(expanded ? on_ranks(r) : interpret::network_of_roles(r.programs));
    ASSERT_FALSE(report.ok()) << text;
    EXPECT_NE(joined(report.faults).find(text), std::string::npos) << joined(report.faults);
    EXPECT_NE(report.faults[0].find(expanded ? "rank " : "stage "), std::string::npos) << report.faults[0];
  }
}

TEST(PlantedFaults, MissingReceive) {
  expect_caught(
      [](RankPrograms& r) {
        Program& p = r.programs[2];
        remove_stage(p, find_stage(p, is_op(Op::receive_x, Phase::Forward), 3));
      },
      "fwd mb3 send_x.1: ");
}

TEST(PlantedFaults, ReceiveFromTheWrongSide) {
  expect_caught(
      [](RankPrograms& r) {
        Program& p = r.programs[1];
        p.stages[find_stage(p, is_op(Op::receive_x, Phase::BackwardInput), 2)].peer = Peer::Previous;
      },
      "has no send for it");
}

TEST(PlantedFaults, DifferentSizes) {
  expect_caught(
      [](RankPrograms& r) {
        Program& p = r.programs[3];
        const size_t at = find_stage(p, is_op(Op::receive_x, Phase::Forward));
        p.values[static_cast<size_t>(p.stages[at].uses[0].value)].shape[0] -= 1;
      },
      "sends");
}

TEST(PlantedFaults, CollectivesOfOneGroupInAnotherOrder) {
  expect_caught(
      [](RankPrograms& r) {
        // A second sum over the pipeline, on one stage before and on the others behind the first.
        for (size_t i = 0; i < r.programs.size(); ++i) {
          Program& p = r.programs[i];
          const size_t at = find_stage(p, is_op(Op::norm_reduce, Phase::Update));
          p.stages[at].group = Group::Pipeline;
          if (i == 1)
            std::swap(p.stages[at], p.stages[find_stage(p, [](const Stage& s) {
              return s.op == Op::loss_reduce && s.group == Group::Pipeline;
            })]);
        }
      },
      "collective 0 of group pp is");
}

TEST(PlantedFaults, CollectivesOfTwoGroupsInAnotherOrder) {
  expect_caught(
      [](RankPrograms& r) {
        Program& p = r.programs[2];
        std::swap(p.stages[find_stage(p, is_op(Op::norm_reduce, Phase::Update))],
                  p.stages[find_stage(p, [](const Stage& s) {
                    return s.op == Op::loss_reduce && s.group == Group::Pipeline;
                  })]);
      },
      "hang: ");
}

TEST(PlantedFaults, AMissingCollective) {
  expect_caught(
      [](RankPrograms& r) {
        Program& p = r.programs[3];
        remove_stage(p, find_stage(p, is_op(Op::tie_reduce, Phase::BackwardWeight)));
      },
      "never comes to this collective 0 of group embedding");
}

TEST(PlantedFaults, BothSendFirstOnOneLane) {
  expect_caught(
      [](RankPrograms& r) {
        for (Program& p : r.programs)
          for (Stage& s : p.stages)
            if (class_of(s.op) == OpClass::Transfer) s.lane = static_cast<int16_t>(p.lanes.size() - 1);
      },
      "hang: ");
}

TEST(PlantedFaults, AWaitThatCannotEnd) {
  expect_caught(
      [](RankPrograms& r) {
        // The first send waits for what only comes when it is taken.
        Program& p = r.programs[0];
        p.stages[find_stage(p, is_op(Op::send_x, Phase::Forward))].after = {
            static_cast<StageId>(find_stage(p, is_op(Op::receive_x, Phase::BackwardInput)))};
      },
      "hang: ");
}

// ---- schedules

// Every layer costs the same, nothing else costs anything.
interpret::Duration layer_times(int64_t forward, int64_t backward, int slow_layer = -1) {
  return [=](const Program&, const Stage& s) -> int64_t {
    if (s.op != Op::attention) return 0;
    const int64_t t = s.phase == Phase::Forward ? forward : s.phase == Phase::BackwardInput ? backward : 0;
    return s.layer == slow_layer ? 2 * t : t;
  };
}

interpret::Simulation simulated(int pp, int vpp, int layers, int microbatches, const interpret::Duration& d) {
  const RankPrograms r = build_ranks(make_config(pipeline(pp, vpp, layers, microbatches)), pp);
  return interpret::simulate(interpret::network_of_roles(r.programs), d);
}

TEST(Schedules, BubbleIsTheFormula) {
  for (const int p : {2, 4, 8})
    for (const int m : {8, 16, 24})
      for (const int v : {1, 2, 4})
        for (const int64_t backward : {100, 200}) {
          SCOPED_TRACE(fmt::format("p {} m {} v {} backward {}", p, m, v, backward));
          const auto s = simulated(p, v, p * v, m, layer_times(100, backward));
          for (const auto& node : s.nodes) {
            const int64_t ideal = int64_t{m} * v * (100 + backward);
            EXPECT_EQ(node.busy_ns, ideal);
            // idle / busy = (p - 1) / (v m), as whole numbers
            EXPECT_EQ((s.step_ns - ideal) * v * m, ideal * (p - 1));
          }
        }
}

TEST(Schedules, TheUpdateIsWorkAndNoBubble) {
  const RankPrograms r = build_ranks(make_config({}), 1);
  const auto s = interpret::simulate(interpret::network_of_roles(r.programs),
                                     [](const Program&, const Stage&) -> int64_t { return 100; });
  EXPECT_EQ(s.nodes[0].busy_ns, s.step_ns) << "one rank waits for nobody";
  EXPECT_EQ(s.bubble(), 0);
}

TEST(Schedules, ASlowStageMovesTheStep) {
  const int p = 4, m = 8;
  const int64_t even = simulated(p, 1, p, m, layer_times(100, 200)).step_ns;
  EXPECT_EQ(even, (m + p - 1) * 300);
  // The slow stage starts after one forward, waits for its first gradient (two ranks behind it, less the two
  // forwards it does meanwhile), is busy from then on, and leaves one backward to the rank before it.
  EXPECT_EQ(simulated(p, 1, p, m, layer_times(100, 200, 1)).step_ns,
            100 + (2 * 300 - 2 * 200) + m * 600 + 200);
}

TEST(Schedules, InFlightIsReadOffTheProgram) {
  const auto counts = [](int pp, int vpp, int microbatches) {
    const RankPrograms r = build_ranks(make_config(pipeline(pp, vpp, pp * vpp, microbatches)), pp);
    std::vector<std::pair<int, int>> out;
    for (const Program& p : r.programs) {
      const InFlight f = in_flight(turns(p));
      out.emplace_back(f.warm_up, f.most_chunks);
    }
    return out;
  };
  using Pairs = std::vector<std::pair<int, int>>;
  EXPECT_EQ(counts(4, 1, 8), (Pairs{{4, 4}, {3, 3}, {2, 2}, {1, 1}}));
  // Warm-up of 18, 16, 14, 12 and the forward of the first pair.
  EXPECT_EQ(counts(4, 4, 8), (Pairs{{19, 19}, {17, 17}, {15, 15}, {13, 13}}));
  const auto eight = counts(8, 4, 16);
  for (int r = 0; r < 8; ++r) EXPECT_EQ(eight[static_cast<size_t>(r)].first, 38 - 2 * r + 1);
}

}  // namespace
}  // namespace pleat::schedule
