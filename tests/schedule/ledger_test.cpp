// The ledger: its changes add up to the final plan, byte by byte and nanosecond by nanosecond, and each pass
// moves what it is there to move.
#include "schedule/pass/ledger.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>

#include "cost/machine_file.h"
#include "schedule/pass/pass.h"
#include "schedule/schedule_support.h"

namespace pleat::schedule {
namespace {

struct LedgerCase {
  int64_t ranks;
  Words sets, passes;
};

const std::vector<LedgerCase>& ledger_cases() {
  static const std::vector<LedgerCase> all = {
      {1, {}, {}},
      {1, {"recompute.modules=[\"norm\",\"activation\"]"}, {"recompute"}},
      {1,
       {"optimizer.freeze=[\"experts\"]", "recompute.modules=[\"core_attention\"]",
        "model.dtype=\"bfloat16\"", "device.kind=\"cuda\""},
       {"freeze", "recompute", "fuse", "host_copies", "scratch"}},
      {4, {"parallel.tp=2", "parallel.ep=4"}, {}},
      {4,
       {"parallel.tp=2", "parallel.ep=4", "device.kind=\"cuda\""},
       {"host_copies", "windows", "host_waits", "scratch"}},
      {8,
       {"model.num_layers=4", "train.num_microbatches=8", "parallel.pp=2", "parallel.ep=2",
        "recompute.modules=[\"activation\"]"},
       {"recompute", "message_buffers"}},
      {4, {"parallel.cp=4", "parallel.context=\"ring\"", "train.seq_len=48"}, {"ring_buffers"}},
      {8,
       {"model.num_layers=4", "train.num_microbatches=4", "parallel.pp=2", "parallel.cp=4",
        "parallel.context=\"ring\"", "train.seq_len=32", "optimizer.freeze=[\"embedding\"]"},
       {"freeze", "message_buffers", "ring_buffers"}},
      {1, {"precision.recipe=\"fp8\"", "train.seq_len=512"}, {"low_precision"}},
  };
  return all;
}

std::string trace_of(const LedgerCase& c) { return std::to_string(c.ranks) + " ranks " + joined(c.sets); }

TEST(Ledger, ChangesAddUpToTheFinalPlan) {
  const Ground ground = make_ground(cost::find_machine("h200"));
  for (const LedgerCase& c : ledger_cases()) {
    SCOPED_TRACE(trace_of(c));
    const config::Config config = make_config(c.sets);
    const RankPrograms final = build_ranks(config, c.ranks);
    const interpret::Simulation step = SimulatedStep(config, final, ground).run();
    for (size_t rank = 0; rank < final.programs.size(); ++rank) {
      const std::vector<LedgerRow> rows = ledger(config, c.ranks, rank, ground);
      Words passes;
      LedgerRow sum = rows.front();
      for (size_t i = 1; i < rows.size(); ++i) {
        passes.push_back(rows[i].name);
        const LedgerRow moved = change(rows[i - 1], rows[i]);
        sum.stages += moved.stages, sum.step_ns += moved.step_ns;
        for (size_t k = 0; k < sum.at_peak.size(); ++k)
          sum.at_peak[k] += moved.at_peak[k], sum.arena[k] += moved.arena[k];
        for (size_t k = 0; k < sum.sent.size(); ++k) sum.sent[k] += moved.sent[k];
      }
      EXPECT_EQ(rows.front().name, "as built");
      EXPECT_EQ(passes, c.passes);
      // Against the final programs, found without the ledger.
      const program::Program& p = final.programs[rank];
      const interpret::Plan plan = interpret::plan(p);
      EXPECT_EQ(sum.stages, static_cast<int64_t>(p.stages.size()));
      for (const program::Space space : {program::Space::Device, program::Space::Pinned}) {
        EXPECT_EQ(sum.arena[size_t(space)], plan.of(space).arena_bytes);
        EXPECT_EQ(sum.at_peak[size_t(space)], plan.of(space).live_peak_bytes);
      }
      EXPECT_EQ(sum.step_ns, step.step_ns);
      std::map<program::Group, double> sent;
      for (const program::Stage& s : p.stages) sent[s.group] += cost::sent_bytes(final.mesh, p, s);
      for (size_t g = 0; g < sum.sent.size(); ++g)
        EXPECT_NEAR(static_cast<double>(sum.sent[g]), sent[static_cast<program::Group>(g)], 0.5) << g;
    }
  }
}

TEST(Ledger, EachPassMovesWhatItIsThereFor) {
  const Ground ground = make_ground(cost::find_machine("h200"));
  const auto moved = [&](const LedgerCase& c, const std::string& pass) {
    const std::vector<LedgerRow> rows = ledger(make_config(c.sets), c.ranks, 0, ground);
    for (size_t i = 1; i < rows.size(); ++i)
      if (rows[i].name == pass) return change(rows[i - 1], rows[i]);
    ADD_FAILURE() << pass << " was not applied";
    return LedgerRow{};
  };
  const LedgerRow recompute = moved(ledger_cases()[1], "recompute");
  EXPECT_LT(recompute.at_peak[0], 0);
  EXPECT_GT(recompute.stages, 0);
  EXPECT_GT(recompute.step_ns, 0) << "memory is paid for in time";
  const LedgerRow fuse = moved(ledger_cases()[2], "fuse");
  EXPECT_LT(fuse.stages, 0);
  EXPECT_LT(fuse.step_ns, 0);
  // Long sequences: codes take the place of more than codes of weights add. An H200 has a rate for them.
  const LedgerRow codes = moved(ledger_cases()[8], "low_precision");
  EXPECT_LT(codes.at_peak[0], 0);
  EXPECT_GT(codes.stages, 0);
  EXPECT_EQ(codes.sent, GroupBytes{});
  for (const auto& [index, pass] : {std::pair{5, "message_buffers"}, {6, "ring_buffers"}}) {
    const LedgerRow buffers = moved(ledger_cases()[size_t(index)], pass);
    EXPECT_EQ(buffers.stages, 0);
    EXPECT_LT(buffers.arena[0], 0) << pass;
    EXPECT_EQ(buffers.sent, GroupBytes{});
  }
}

}  // namespace
}  // namespace pleat::schedule
