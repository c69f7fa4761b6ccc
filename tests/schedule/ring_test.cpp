// Rings of context ranks as programs: what meets, what overlaps, what is alive at a time.
#include <gtest/gtest.h>

#include "base/error.h"
#include "cost/exchange_time.h"
#include "cost/flops.h"
#include "interpret/brute_plan.h"
#include "interpret/check/check.h"
#include "interpret/check/check_network.h"
#include "interpret/print/print.h"
#include "interpret/simulate/exchanges.h"
#include "interpret/simulate/simulate.h"
#include "program/order.h"
#include "schedule/ranks.h"
#include "schedule/schedule_support.h"
#include "support/refusal.h"

namespace pleat::schedule {
namespace {

using namespace program;
using interpret::Network;

Words ring(int cp, Words more = {}) {
  Words out = {"model.vocab_size=64", "model.num_layers=2", "train.seq_len=48",
               fmt::format("parallel.cp={}", cp), "parallel.context=\"ring\""};
  out.insert(out.end(), more.begin(), more.end());
  return out;
}

StageId find(const Program& p, const std::string& name) {
  for (size_t s = 0; s < p.stages.size(); ++s)
    if (stage_name(p.stages[s]) == name) return static_cast<StageId>(s);
  ADD_FAILURE() << "no stage " << name;
  return 0;
}

struct RingLayout {
  int ranks;
  Words sets;
};
const std::vector<RingLayout>& ring_layouts() {
  static const std::vector<RingLayout> all = {
      {2, ring(2)},
      {4, ring(4, {"model.attention_sinks=true"})},
      {8, ring(8, {"train.num_microbatches=1"})},
      {8, ring(2, {"parallel.tp=2", "parallel.pp=2", "parallel.ep=4"})},
      {8, ring(4, {"parallel.pp=2", "parallel.vpp=2", "model.num_layers=4", "train.num_microbatches=4"})},
      {4, ring(4, {"recompute.modules=[\"core_attention\"]"})},
      {4, ring(2, {"parallel.pp=2", "recompute.modules=[\"layer\"]"})},
      {4, ring(4, {"model.attention=\"mla\"", "model.kv_lora_rank=8", "model.qk_nope_head_dim=8",
                   "model.qk_rope_head_dim=4", "model.v_head_dim=6", "model.num_kv_heads="})},
  };
  return all;
}

TEST(Ring, ProgramsFitCannotHangAndArePlannedSafely) {
  for (const RingLayout& l : ring_layouts()) {
    SCOPED_TRACE(joined(l.sets));
    const RankPrograms r = build_ranks(make_config(l.sets), l.ranks);
    for (const Program& p : r.programs) {
      EXPECT_EQ(joined(interpret::check(p).faults), "");
      EXPECT_TRUE(interpret::parse(interpret::print(p)) == p);
      for (const interpret::Packing packing : {interpret::Packing::OneByOne, interpret::Packing::Frames}) {
        const interpret::Plan plan = interpret::plan(p, packing);
        EXPECT_EQ(joined(interpret::check_plan(p, plan).faults), "");
        EXPECT_EQ(interpret::BruteJudge(p).fault(plan), "");
      }
    }
    const Network roles = interpret::network_of_roles(r.programs), ranks = on_ranks(r);
    for (const Network* network : {&roles, &ranks}) {
      const interpret::NetworkReport report = check_network(*network);
      EXPECT_EQ(joined(report.faults), "");
    }
    if (r.mesh.pp == 1) {
      EXPECT_EQ(check_network(ranks).single_lane_hang, "");
    }
  }
}

// Attention and shifts cost time, nothing else does.
interpret::Duration times(int64_t forward, int64_t backward, int64_t shift) {
  return [=](const Program&, const Stage& s) -> int64_t {
    if (kernel_of(s.op) == KernelKind::ring_shift) return shift;
    if (s.op != Op::ring_attention || s.phase == Phase::BackwardWeight) return 0;
    return s.phase == Phase::Forward ? forward : backward;
  };
}

TEST(Ring, TransfersHideBehindAttention) {
  const int layers = 2, microbatches = 2;
  for (const int n : {2, 4, 8}) {
    const RankPrograms r = build_ranks(make_config(ring(n)), n);
    const auto step = [&](int64_t forward, int64_t backward, int64_t shift, bool ranks = false) {
      const Network network = ranks ? on_ranks(r) : interpret::network_of_roles(r.programs);
      return interpret::simulate(network, times(forward, backward, shift)).step_ns / (layers * microbatches);
    };
    EXPECT_EQ(step(100, 200, 0), n * 300);
    // Shorter than the work: only the last gradient's way home is seen.
    for (const int64_t shift : {60, 100}) EXPECT_EQ(step(100, 200, shift), n * 300 + shift) << n;
    EXPECT_EQ(step(100, 200, 60, true), step(100, 200, 60));
    // Longer: the lane is the clock.
    EXPECT_EQ(step(100, 1000, 250), (n - 1) * 250 + 100 + n * 1000 + 250);

    // As intervals: step 1's keys move while step 0 is worked on.
    const auto s = interpret::simulate(interpret::network_of_roles(r.programs), times(100, 200, 60));
    const Program& p = r.programs[0];
    const auto span = [&](const std::string& name) {
      return s.nodes[0].timeline.spans[static_cast<size_t>(find(p, name))];
    };
    const auto expect_together = [&](const std::string& work_name, const std::string& move_name) {
      const auto work = span(work_name), move = span(move_name);
      EXPECT_LT(move.start_ns, work.end_ns) << move_name;
      EXPECT_LT(work.start_ns, move.end_ns) << move_name;
    };
    expect_together("fwd mb1 L1 ring_attention", "fwd mb1 L1 cp_shift.1");
    if (n < 4) continue;
    expect_together("fwd mb1 L1 ring_attention.1", "fwd mb1 L1 cp_shift.2");
    expect_together("dgrad mb1 L1 ring_attention.1", "dgrad mb1 L1 cp_shift.2");
    expect_together("dgrad mb1 L1 ring_attention.1", "dgrad mb1 L1 cp_return.1");
  }
}

TEST(Exchanges, OneOperationOverSeveralGroupsHasARowForEach) {
  const RankPrograms r =
      build_ranks(make_config({"parallel.tp=2", "parallel.ep=2", "train.num_microbatches=4"}), 4);
  const auto s = interpret::simulate(interpret::network_of_roles(r.programs), times(100, 200, 60));
  const auto sent = [&](const Program& p, const Stage& stage) { return cost::sent_bytes(r.mesh, p, stage); };
  std::map<std::pair<std::string, std::string>, double> bytes, expected;  // of operation and group
  for (const interpret::Exchanged& e : interpret::exchanges(r.programs[0], s.nodes[0].timeline, sent))
    bytes[{e.name, e.group}] += e.bytes;
  int64_t gathers = 0;
  for (const Stage& stage : r.programs[0].stages)
    if (is_exchange(stage.op))
      expected[{std::string(name_of(stage.op)), std::string(name_of(stage.group))}] +=
          sent(r.programs[0], stage);
  for (const auto& [key, sum] : expected) gathers += key.first == "bucket_gather";
  EXPECT_EQ(bytes, expected);
  EXPECT_GT(gathers, 1) << "one group: nothing was tested";
}

TEST(Ring, ExchangesAreReadOffTheTimeline) {
  const int n = 4;
  const RankPrograms r =
      build_ranks(make_config(ring(n, {"model.num_layers=1", "train.num_microbatches=1"})), n);
  const auto s = interpret::simulate(interpret::network_of_roles(r.programs), times(100, 200, 60));
  const auto rows = interpret::exchanges(
      r.programs[0], s.nodes[0].timeline,
      [&](const Program& p, const Stage& stage) { return cost::sent_bytes(r.mesh, p, stage); });
  const auto row = [&](const std::string& name, const std::string& phase) {
    for (const interpret::Exchanged& e : rows)
      if (e.name == name && e.phase == phase) return e;
    ADD_FAILURE() << "no row " << name;
    return interpret::Exchanged{};
  };
  const double block =
      2 * 48 / n * 2 * 2 * 8 * 4;  // rows of a rank, keys and values of two heads of 8, float
  EXPECT_EQ(row("cp_shift", "fwd").calls, n - 1);
  EXPECT_EQ(row("cp_shift", "fwd").bytes, (n - 1) * block);
  EXPECT_EQ(row("cp_shift", "dgrad").bytes, (n - 1) * block);
  EXPECT_EQ(row("cp_return", "dgrad").bytes, n * block);
  EXPECT_EQ(row("cp_shift", "fwd").lane, "ring");
  EXPECT_EQ(row("cp_shift", "fwd").group, "cp");
  EXPECT_EQ(row("cp_shift", "fwd").ns, (n - 1) * 60);
  EXPECT_EQ(row("cp_shift", "fwd").hidden_ns, (n - 1) * 60);
  EXPECT_EQ(row("cp_shift", "dgrad").hidden_ns, (n - 1) * 60);
  EXPECT_EQ(row("cp_return", "dgrad").hidden_ns, (n - 1) * 60);  // all but the way home
}

TEST(Ring, WorkIsThatOfOneRankSharedEvenly) {
  const auto flops = [](const RankPrograms& r) {
    double sum = 0;
    for (const Stage& s : r.programs[0].stages)
      if (region_of(s.op) == Region::Attention && class_of(s.op) == OpClass::Compute && s.op != Op::qkv &&
          s.op != Op::attn_out)
        sum += cost::stage_flops(r.programs[0], s);
    return sum;
  };
  const double one =
      flops(build_ranks(make_config({"model.vocab_size=64", "model.num_layers=2", "train.seq_len=48"}), 1));
  EXPECT_GT(one, 0);
  for (const char* context : {"ring", "allgather"})
    for (const int n : {2, 4})
      EXPECT_DOUBLE_EQ(
          n * flops(build_ranks(make_config(ring(n, {fmt::format("parallel.context=\"{}\"", context)})), n)),
          one);
}

// What arrives waits for those who read what was two steps before.
TEST(Ring, TwoBuffersHoldWhatTravels) {
  for (const char* modules : {"recompute.modules=[]", "recompute.modules=[\"core_attention\"]"}) {
    const RankPrograms r = build_ranks(make_config(ring(4, {modules})), 4);
    const Program& p = r.programs[0];
    const Order order(p);
    const bool again = std::string(modules).find("core") != std::string::npos;
    for (const std::string name : {"fwd mb0 L1 {}.{}", "dgrad mb0 L1 {}.{}", "fwd mb0 L1 {}.{} (replay)"}) {
      if (!again && name.find("replay") != std::string::npos) continue;
      for (const int step : {2, 3}) {
        const StageId shift = find(p, fmt::format(fmt::runtime(name), "cp_shift", step));
        std::string reader = fmt::format(fmt::runtime(name), "ring_attention", step - 2);
        if (const size_t zero = reader.find(".0"); zero != std::string::npos) reader.erase(zero, 2);
        EXPECT_TRUE(order.before(find(p, reader), shift)) << name << step;
        // And no more than that: the step between them runs at the same time.
        const StageId present = find(p, fmt::format(fmt::runtime(name), "ring_attention", step - 1));
        EXPECT_FALSE(order.before(present, shift) || order.before(shift, present)) << name << step;
      }
    }
  }
}

TEST(Ring, NeedsLessThanGathering) {
  const auto arena = [](const char* context) {
    const Words sets = ring(8, {"train.seq_len=512", "model.num_kv_heads=4", "train.num_microbatches=1",
                                fmt::format("parallel.context=\"{}\"", context)});
    return interpret::plan(build_ranks(make_config(sets), 8).programs[0]).arena_bytes;
  };
  const int64_t rows = 2 * 512, kv = 2 * 32, bytes = 4, layers = 2;
  // Each layer keeps its own eighth of the keys and values instead of all.
  EXPECT_LT(arena("ring"), arena("allgather") - layers * rows * kv * bytes * 7 / 8);
}

TEST(Ring, ASkippedOrSwappedShiftIsCaught) {
  const RankPrograms r = build_ranks(make_config(ring(4)), 4);
  const auto faults = [&](const std::function<void(Program&)>& plant) {
    std::vector<Program> programs = {r.programs[0], r.programs[0]};
    for (Program& p : programs)
      for (Stage& s : p.stages) s.after.clear();  // positions move
    plant(programs[1]);
    return joined(
        check_network(interpret::network_of_ranks(
                          programs, 4, [&](int rank, Group g) { return group_members(r.layout, rank, g); },
                          [](int rank) { return rank == 2 ? 1 : 0; }))
            .faults);
  };
  EXPECT_EQ(faults([](Program&) {}), "");
  EXPECT_NE(faults([](Program& p) {
              p.stages.erase(p.stages.begin() + find(p, "dgrad mb0 L0 cp_return.4"));
            }).find("cp_return"),
            std::string::npos);
  EXPECT_NE(faults([](Program& p) {
              std::swap(p.stages[size_t(find(p, "dgrad mb0 L0 cp_shift.3"))],
                        p.stages[size_t(find(p, "dgrad mb0 L0 cp_return.2"))]);
            }).find("of group cp is"),
            std::string::npos);
}

TEST(Ring, RulesAreSaid) {
  const auto refusal = [](int ranks, const Words& sets) {
    return testing::message_of([&] { build_ranks(make_config(sets), ranks); });
  };
  EXPECT_NE(refusal(4, ring(4, {"train.seq_len=20"}))
                .find("train.seq_len = 20 does not divide by 2 x parallel.cp = 8"),
            std::string::npos);
  EXPECT_NE(refusal(1, {"parallel.context=\"ring\""}).find("parallel.cp > 1"), std::string::npos);
  EXPECT_NE(refusal(2, {"parallel.cp=2", "parallel.context=\"rings\""}).find("ring"), std::string::npos);
  // More ranks than heads: what the other form refuses.
  EXPECT_EQ(refusal(8, ring(8)), "");
  EXPECT_NE(refusal(8, ring(8, {"parallel.context=\"alltoall\""}))
                .find("parallel.tp x parallel.cp (parallel.context = \"alltoall\") = 8"),
            std::string::npos);
  EXPECT_NE(
      refusal(2, ring(2, {"parallel.context=\"alltoall\"", "model.attention_sinks=true"})).find("\"ring\""),
      std::string::npos);
}

}  // namespace
}  // namespace pleat::schedule
