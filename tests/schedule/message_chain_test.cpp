// Interleaved pipelines whose exchanges are one chain: nothing hangs, nothing but messages moves, and a message on the
// wrong side of a turn is found.
#include "schedule/pass/message_chain.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "interpret/check/check.h"
#include "interpret/check/check_network.h"
#include "interpret/plan/plan.h"
#include "interpret/simulate/simulate.h"
#include "program/edit.h"
#include "program/message_calls.h"
#include "program/turns.h"
#include "schedule/pipeline_rounds.h"
#include "schedule/run_together.h"
#include "schedule/schedule_support.h"
#include "support/refusal.h"

namespace pleat::schedule {
namespace {

using namespace program;
using interpret::check_network;
using interpret::NetworkReport;

struct ChainCase {
  int ranks;
  Words sets;
};

Words interleaved_sets(int pp, int vpp, int microbatches, Words more = {}) {
  Words out = {"model.vocab_size=64",
               fmt::format("parallel.pp={}", pp),
               fmt::format("parallel.vpp={}", vpp),
               fmt::format("model.num_layers={}", pp * vpp),
               fmt::format("train.num_microbatches={}", microbatches),
               "device.kind=\"cuda\""};
  out.insert(out.end(), more.begin(), more.end());
  return out;
}

const std::vector<ChainCase>& chain_cases() {
  static const std::vector<ChainCase> all = [] {
    std::vector<ChainCase> out;
    for (const int pp : {2, 3, 4, 8})
      for (const int vpp : {2, 3, 4})
        for (const int groups : {1, 2, 3}) out.push_back({pp, interleaved_sets(pp, vpp, pp * groups)});
    out.push_back(
        {8, interleaved_sets(2, 2, 8, {"parallel.tp=2", "parallel.ep=2", "parallel.bucket_mib=0"})});
    out.push_back({8, interleaved_sets(2, 2, 8, {"parallel.cp=2", "parallel.ep=2", "parallel.etp=2"})});
    out.push_back({4, interleaved_sets(2, 2, 4, {"parallel.ep=2", "model.tie_embeddings=true"})});
    out.push_back({4, interleaved_sets(4, 2, 8, {"model.tie_embeddings=true"})});
    out.push_back({2, interleaved_sets(2, 2, 4, {"recompute.modules=[\"activation\",\"norm\"]"})});
    out.push_back(
        {8, interleaved_sets(2, 2, 4, {"parallel.cp=4", "parallel.context=\"ring\"", "train.seq_len=32"})});
    // Chunks that compute nothing, an end alone in its chunk, uneven ones.
    out.push_back(
        {2, interleaved_sets(2, 2, 4, {"model.num_layers=2", "parallel.pipeline_layout=\"Et|t||L\""})});
    out.push_back(
        {2, interleaved_sets(2, 2, 4, {"model.num_layers=3", "parallel.pipeline_layout=\"E|t|tt|L\""})});
    out.push_back(
        {2, interleaved_sets(2, 2, 6, {"model.num_layers=5", "parallel.pipeline_layout=\"E||ttttt|L\""})});
    out.push_back(
        {4, interleaved_sets(4, 2, 8, {"model.num_layers=4", "parallel.pipeline_layout=\"E|t||t||t|t|L\""})});
    out.push_back({2, interleaved_sets(2, 2, 4,
                                       {"model.num_layers=4", "model.num_mtp_layers=1",
                                        "parallel.pipeline_layout=\"Et|t|t|tmL\""})});
    return out;
  }();
  return all;
}

// The same ranks, their messages where the builder put them.
RankPrograms as_on_lanes(const config::Config& c, int ranks) {
  return build_ranks(c, ranks, {.disabled = {"message_chain", "host_waits"}, .meeting = Meeting::OnDevice});
}

TEST(MessageChain, InterleavedRunsOnOneLane) {
  int refused_before = 0;
  for (const ChainCase& k : chain_cases()) {
    SCOPED_TRACE(joined(k.sets));
    const config::Config c = make_config(k.sets);
    refused_before += !check_network(interpret::network_of_roles(as_on_lanes(c, k.ranks).programs))
                           .enqueued_fault()
                           .empty();
    const RankPrograms r = build_ranks(c, k.ranks);
    for (const Program& p : r.programs) {
      EXPECT_EQ(joined(interpret::check(p).faults), "");
      EXPECT_EQ(joined(interpret::check_host_waits(p, Meeting::OnDevice).faults), "");
      EXPECT_EQ(joined(interpret::check_plan(p, interpret::plan(p)).faults), "");
    }
    for (const bool expanded : {false, true}) {
      const NetworkReport report =
          check_network(expanded ? on_ranks(r) : interpret::network_of_roles(r.programs));
      EXPECT_EQ(joined(report.faults), "");
      EXPECT_EQ(report.single_lane_hang, "");
      EXPECT_EQ(report.overtaking, "");
    }
  }
  EXPECT_GT(refused_before, static_cast<int>(chain_cases().size()) / 2);
}

// What is evaluated goes once through all chunks, as it was built.
TEST(MessageChain, EvaluationsNeedNone) {
  for (const ChainCase& k : chain_cases()) {
    SCOPED_TRACE(joined(k.sets));
    const config::Config c = make_config(k.sets);
    const auto table = model::make_parameters(c);
    RankPrograms r = ranks_as_built(c, k.ranks);
    for (size_t i = 0; i < r.programs.size(); ++i) {
      const Program built = build_evaluation(c, table, {model::RoutingUse::Choose, r.mesh, r.roles[i]});
      EXPECT_FALSE(is_interleaved(built));
      r.programs[i] = apply_passes(built, c, {.meeting = Meeting::OnDevice});
    }
    EXPECT_EQ(check_network(interpret::network_of_roles(r.programs)).enqueued_fault(), "");
  }
}

// What train, plan, explain and simulate say where the order of messages is not that of a chain.
TEST(MessageChain, WithoutItGpuRanksAreRefusedWithTheRingInWords) {
  const config::Config c = make_config(interleaved_sets(2, 2, 4));
  EXPECT_EQ(meeting_of(c, 2), Meeting::OnDevice);
  EXPECT_EQ(meeting_of(c, 1), Meeting::OnHost);
  EXPECT_EQ(meeting_of(make_config({}), 2), Meeting::OnHost);
  const RankPrograms r = as_on_lanes(c, 2);
  const interpret::Network network = interpret::network_of_roles(r.programs);
  const std::string said = testing::message_of([&] { require_runs_together(network, Meeting::OnDevice); });
  EXPECT_NE(said.find("this pipeline cannot run on several GPUs"), std::string::npos) << said;
  EXPECT_NE(said.find("these wait for each other: stage "), std::string::npos) << said;
  EXPECT_NO_THROW(require_runs_together(network, Meeting::OnHost));
  EXPECT_EQ(meeting_text(r, Meeting::OnHost), "");
}

bool is_message(const Stage& s) { return class_of(s.op) == OpClass::Transfer; }

std::vector<std::string> names(const Program& p, bool messages) {
  std::vector<std::string> out;
  for (const Stage& s : p.stages)
    if (is_message(s) == messages) out.push_back(stage_name(s));
  return out;
}

TEST(MessageChain, MovesMessagesOnly) {
  for (const ChainCase& k : chain_cases()) {
    SCOPED_TRACE(joined(k.sets));
    const config::Config c = make_config(k.sets);
    const RankPrograms on_lanes = as_on_lanes(c, k.ranks);
    int moved = 0;
    for (const Program& before : on_lanes.programs) {
      const Program after = chain_messages(before);
      EXPECT_EQ(names(before, false), names(after, false));
      std::vector<std::string> a = names(before, true), b = names(after, true);
      moved += a != b;
      std::sort(a.begin(), a.end()), std::sort(b.begin(), b.end());
      EXPECT_EQ(a, b);
      EXPECT_TRUE(before.values == after.values);
      // What is in flight and how it is drawn is the schedule's, wherever a receive stands.
      const InFlight was = in_flight(turns(before)), is = in_flight(turns(after));
      EXPECT_EQ(was.most_chunks, is.most_chunks);
      EXPECT_EQ(was.most_layers, is.most_layers);
      EXPECT_EQ(was.warm_up, is.warm_up);
    }
    EXPECT_GT(moved, 0);
  }
}

// Two buffers of a kind are still enough: the arena is that of lanes, up to a message of each kind.
TEST(MessageChain, BuffersStayBounded) {
  for (const int groups : {2, 8}) {
    const config::Config c = make_config(interleaved_sets(4, 2, 4 * groups));
    const RankPrograms on_lanes = as_on_lanes(c, 4), chained = build_ranks(c, 4);
    for (size_t i = 0; i < on_lanes.programs.size(); ++i) {
      int64_t message = 0;
      for (const Stage& s : on_lanes.programs[i].stages)
        if (is_message(s))
          message = num_bytes(on_lanes.programs[i].values[static_cast<size_t>(s.uses[0].value)]);
      const int64_t was = interpret::plan(on_lanes.programs[i]).arena_bytes,
                    is = interpret::plan(chained.programs[i]).arena_bytes;
      EXPECT_LE(is, was + 4 * padded(message)) << i << " " << groups;
    }
  }
}

TEST(MessageChain, BothHalvesOfARoundAreOneCallEach) {
  const RankPrograms r = build_ranks(make_config(interleaved_sets(4, 2, 8)), 4);
  for (const Program& p : r.programs) {
    const auto calls = message_calls(p, edge_list(p));
    int together = 0, sends = 0;
    for (size_t s = 0; s < p.stages.size(); ++s) {
      if (kernel_of(p.stages[s].op) != KernelKind::send) continue;
      ++sends;
      together += calls[s].second - calls[s].first > 1;
    }
    EXPECT_GT(together, sends / 2);
  }
}

// Two ranks, and one of them receives behind its next call what it should receive in this one, with work between: its
// peer is still in this call. Found, with the ring in words.
TEST(MessageChain, AMessageOnTheWrongSideIsFound) {
  const config::Config c = make_config(interleaved_sets(2, 2, 6));
  const RankPrograms right = build_ranks(c, 2, {.disabled = {"host_waits"}, .meeting = Meeting::OnDevice});
  ASSERT_EQ(check_network(interpret::network_of_roles(right.programs)).enqueued_fault(), "");
  int planted = 0;
  for (size_t rank = 0; rank < 2; ++rank) {
    const Program& p = right.programs[rank];
    const StageId n = static_cast<StageId>(p.stages.size());
    const auto calls = message_calls(p, edge_list(p));
    for (StageId s = 0; s < n; ++s) {
      const auto [first, end] = calls[size_t(s)];
      if (kernel_of(p.stages[size_t(s)].op) != KernelKind::receive || end - first != 2) continue;
      StageId next = end;
      while (next < n && !is_message(p.stages[size_t(next)])) ++next;
      if (next == n || calls[size_t(next)].second - next != 2) continue;
      const StageId behind = calls[size_t(next)].second;
      // Its own reader stays behind it.
      bool is_read = false;
      for (StageId i = end; i < behind; ++i)
        for (const Use& u : p.stages[size_t(i)].uses) is_read |= u.value == p.stages[size_t(s)].uses[0].value;
      if (is_read) continue;
      Edit edit(p);
      Stage between;
      between.op = Op::zero;
      between.part = 100000;
      edit.insert_before(behind, between);
      std::vector<StageId> order;
      for (StageId i = 0; i <= n; ++i) {
        if (i != s) order.push_back(i);
        if (i == behind) order.push_back(s);
      }
      RankPrograms wrong = right;
      wrong.programs[rank] = reordered(edit.apply(), order);
      const std::string fault = check_network(interpret::network_of_roles(wrong.programs)).enqueued_fault();
      EXPECT_NE(fault, "") << stage_name(p.stages[size_t(s)]);
      EXPECT_NE(fault.find("these wait for each other"), std::string::npos) << fault;
      EXPECT_NE(fault.find("receive_x"), std::string::npos) << fault;
      ++planted;
    }
  }
  EXPECT_GT(planted, 4);
}

TEST(MessageChain, RoundsHaveAForwardAndABackwardAtMost) {
  for (const int p : {2, 3, 4, 8})
    for (const int v : {2, 4})
      for (const int group : {0, p + 1}) {
        PipelineShape shape;
        shape.num_ranks = p, shape.num_chunks = v, shape.group = group;
        shape.num_microbatches = 3 * (group ? group : p);
        SCOPED_TRACE(fmt::format("p {} v {} group {}", p, v, group));
        const PipelineRounds rounds(shape);
        int last = 0;
        for (shape.rank = 0; shape.rank < p; ++shape.rank) {
          std::set<std::pair<int, bool>> taken;
          for (const Slot& slot : pipeline_order(shape)) {
            const int round = rounds.round(shape.rank, slot);
            last = std::max(last, round);
            EXPECT_TRUE(taken.emplace(round, slot.forward).second);
            const Producer from = producer_of(shape, slot);
            if (from.rank >= 0) {
              EXPECT_LT(rounds.round(from.rank, from.slot), round);
            }
          }
        }
        // As many as the order itself needs: warm-up of the first rank, one per virtual microbatch.
        if (group == 0) {
          EXPECT_EQ(last + 1, shape.num_microbatches * v + 2 * (p - 1) + (v - 1) * p);
        }
      }
}

// In rounds all ranks do the same at the same time: equal chunks lose nothing against lanes.
TEST(MessageChain, EqualChunksWithFreeMessagesTakeNoLonger) {
  const interpret::Duration layers = [](const Program&, const Stage& s) -> int64_t {
    if (s.op != Op::attention) return 0;
    return s.phase == Phase::Forward ? 100 : s.phase == Phase::BackwardInput ? 200 : 0;
  };
  for (const int p : {2, 4})
    for (const int v : {2, 4}) {
      const int m = 3 * p;
      const config::Config c = make_config(interleaved_sets(p, v, m));
      const auto s = interpret::simulate(interpret::network_of_roles(build_ranks(c, p).programs), layers);
      EXPECT_EQ(s.step_ns, (m * v + p - 1) * 300) << p << " " << v;
    }
}

}  // namespace
}  // namespace pleat::schedule
