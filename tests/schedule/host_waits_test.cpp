// Where ranks meet on the host, the host has waited for everything the exchange waits for.
#include "schedule/pass/host_waits.h"

#include <gtest/gtest.h>

#include "interpret/check/check.h"
#include "program/edit.h"
#include "schedule/pass/pass.h"
#include "schedule/ranks.h"
#include "schedule/schedule_support.h"

namespace pleat::schedule {
namespace {

struct WaitCase {
  int64_t ranks;
  Words sets;
};

const std::vector<WaitCase>& wait_cases() {
  static const std::vector<WaitCase> all = {
      {2, {}},
      {4, {"parallel.tp=2", "parallel.ep=4"}},
      {4,
       {"model.num_layers=4", "train.num_microbatches=8", "parallel.pp=2", "parallel.vpp=2",
        "parallel.ep=2"}},
      {4, {"parallel.cp=4", "parallel.context=\"ring\"", "train.seq_len=48"}},
      {8,
       {"model.num_layers=4", "train.num_microbatches=4", "parallel.pp=2", "parallel.cp=4",
        "parallel.context=\"ring\"", "train.seq_len=32"}},
  };
  return all;
}

// Threads that share a GPU.
RankPrograms on_one_gpu(const Words& sets, int64_t ranks) {
  return build_ranks(make_config(sets), ranks, {.meeting = program::Meeting::OnHost});
}

TEST(HostWaits, CoverWhatEveryPassAskedFor) {
  for (const WaitCase& c : wait_cases()) {
    Words sets = c.sets;
    sets.push_back("device.kind=\"cuda\"");
    SCOPED_TRACE(joined(sets));
    const RankPrograms ranks = on_one_gpu(sets, c.ranks);
    for (const program::Program& p : ranks.programs) {
      EXPECT_EQ(interpret::check_host_waits(p).faults, std::vector<std::string>());
      int exchanges = 0;
      for (const program::Stage& s : p.stages) exchanges += program::is_exchange(s.op);
      EXPECT_EQ(interpret::check(p).host_waits, exchanges);
      EXPECT_GT(exchanges, 0);
    }
  }
}

TEST(HostWaits, OneTooFewIsNamed) {
  const program::Program p =
      on_one_gpu({"parallel.tp=2", "parallel.ep=4", "device.kind=\"cuda\""}, 4).programs.front();
  program::Edit edit(p);
  program::StageId wait = 0;
  while (p.stages[static_cast<size_t>(wait)].op != program::Op::host_wait) ++wait;
  edit.erase(wait);
  const auto faults = interpret::check_host_waits(edit.apply()).faults;
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_NE(faults[0].find("no stage right before it on its lane at which the host waits"),
            std::string::npos);
}

// A wait that a pass adds to the exchange behind the host's back.
TEST(HostWaits, AnExchangeMayNotWaitForMoreThanTheHostDid) {
  program::Program p =
      on_one_gpu({"parallel.tp=2", "parallel.ep=4", "device.kind=\"cuda\""}, 4).programs.front();
  for (size_t s = p.stages.size(); s-- > 0;) {
    if (!program::is_exchange(p.stages[s].op)) continue;
    // Something just before it on another lane that nobody waited for.
    size_t other = s;
    while (other > 0 && p.stages[other].lane == p.stages[s].lane) --other;
    p.stages[s].after.push_back(static_cast<program::StageId>(other));
    if (!interpret::check_host_waits(p).faults.empty()) return;
    p.stages[s].after.pop_back();
  }
  ADD_FAILURE() << "no exchange can be given such a wait";
}

// As a run whose groups are enqueued makes it.
program::Program enqueued_step(Words sets, int64_t ranks) {
  sets.push_back("device.kind=\"cuda\"");
  const config::Config c = make_config(sets);
  return apply_passes(ranks_as_built(c, ranks).programs.front(), c, {.meeting = program::Meeting::OnDevice});
}

TEST(HostWaits, EnqueuedExchangesWaitForCountsOnly) {
  const std::pair<Words, bool> cases[] = {{{}, false},
                                          {{"parallel.tp=2"}, false},
                                          {{"parallel.ep=2", "parallel.exchange=\"counted\""}, true},
                                          {{"parallel.ep=2", "parallel.dispatcher=\"allgather\""}, false}};
  for (const auto& [sets, counts] : cases) {
    SCOPED_TRACE(joined(sets));
    const program::Program p = enqueued_step(sets, 2);
    EXPECT_EQ(interpret::check_host_waits(p, program::Meeting::OnDevice).faults, std::vector<std::string>());
    int exchanges = 0, reading = 0;
    for (const program::Stage& s : p.stages) {
      exchanges += program::is_exchange(s.op);
      reading += program::host_use(s) >= 0;
    }
    EXPECT_GT(exchanges, 0);
    EXPECT_EQ(reading > 0, counts);
    EXPECT_EQ(interpret::check(p).host_waits, reading);
    // For calls that block it is not enough.
    EXPECT_NE(interpret::check_host_waits(p).faults, std::vector<std::string>());
  }
}

TEST(HostWaits, EnqueuedExchangesAreOneChain) {
  program::Program p = enqueued_step({"parallel.ep=2", "train.num_microbatches=4"}, 4);
  int lanes = 0, cut = 0;
  for (size_t s = 0, previous = p.stages.size(); s < p.stages.size(); ++s) {
    if (!program::is_exchange(p.stages[s].op)) continue;
    if (previous < s && p.stages[s].lane != p.stages[previous].lane) {
      ++lanes;
      program::Program broken = p;
      std::erase(broken.stages[s].after, static_cast<program::StageId>(previous));
      const auto faults = interpret::check_host_waits(broken, program::Meeting::OnDevice).faults;
      if (!faults.empty()) {
        ++cut;
        EXPECT_NE(faults[0].find("ranks could wait in a circle"), std::string::npos) << faults[0];
      }
    }
    previous = s;
  }
  EXPECT_GT(lanes, 0);
  EXPECT_GT(cut, 0) << "data alone orders every exchange: the chain is not needed here";
}

TEST(HostWaits, UnreadCountsOfAnEnqueuedExchangeAreNamed) {
  const program::Program p = enqueued_step({"parallel.ep=2", "parallel.exchange=\"counted\""}, 2);
  program::Edit edit(p);
  program::StageId wait = 0;
  while (p.stages[static_cast<size_t>(wait)].op != program::Op::host_wait) ++wait;
  edit.erase(wait);
  const auto faults = interpret::check_host_waits(edit.apply(), program::Meeting::OnDevice).faults;
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_NE(faults[0].find("at which the host waits"), std::string::npos) << faults[0];
}

}  // namespace
}  // namespace pleat::schedule
