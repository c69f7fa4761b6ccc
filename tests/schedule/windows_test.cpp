// Windows of other ranks: meetings stand between stores and what reads them, and a program that lacks one is refused.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <set>

#include "cost/exchange_time.h"
#include "interpret/check/check_windows.h"
#include "program/builder.h"
#include "program/edit.h"
#include "schedule/pass/pass.h"
#include "schedule/pass/windows.h"
#include "schedule/schedule_support.h"
#include "support/refusal.h"

namespace pleat::schedule {
namespace {

using program::Op;
using program::Program;
using program::StageId;

Program step_of(Words sets, int64_t ranks, program::Meeting meeting = program::Meeting::OnDevice) {
  sets.insert(sets.end(),
              {"device.kind=\"cuda\"", "parallel.exchange=\"windows\"", "train.num_microbatches=4"});
  const config::Config c = make_config(sets);
  return apply_passes(ranks_as_built(c, ranks).programs.front(), c, {.meeting = meeting});
}

std::vector<StageId> stages_of(const Program& p, Op op) {
  std::vector<StageId> out;
  for (size_t s = 0; s < p.stages.size(); ++s)
    if (p.stages[s].op == op) out.push_back(static_cast<StageId>(s));
  return out;
}

TEST(Windows, AStepHasNoHostWaitAndGoodPlaces) {
  for (const Words& sets :
       {Words{"parallel.ep=2"}, Words{"parallel.ep=4"}, Words{"parallel.ep=2", "parallel.etp=2"},
        Words{"parallel.ep=4", "recompute.modules=[\"experts\"]"},
        Words{"parallel.ep=4", "moe.token_budget=1.25", "moe.overflow=\"drop\""}}) {
    SCOPED_TRACE(joined(sets));
    const Program p = step_of(sets, 4);
    EXPECT_EQ(interpret::check(p).host_waits, 0);
    EXPECT_EQ(interpret::check_windows(p).faults, std::vector<std::string>());
    EXPECT_FALSE(stages_of(p, Op::dispatch_push).empty());
    const interpret::Plan plan = interpret::plan(p);
    EXPECT_EQ(interpret::check_plan(p, plan).faults, std::vector<std::string>());
    // All layers and microbatches share the places of a kind.
    int64_t places = 0;
    for (const program::Value& v : p.values)
      places += v.space == program::Space::Window && v.view_of == program::kNoValue;
    EXPECT_LE(places, 7);  // rows of a recomputed exchange and gradients are there together
    EXPECT_GT(plan.window.arena_bytes, 0);
    EXPECT_GE(plan.window.arena_bytes, plan.window.live_peak_bytes);
  }
}

// Every set of k experts is as likely as any other: counted one by one.
double ranks_of_a_token(int64_t experts, int64_t top_k, int64_t ranks) {
  double sum = 0, sets = 0;
  for (uint32_t set = 0; set < uint32_t{1} << experts; ++set) {
    if (std::popcount(set) != top_k) continue;
    std::set<int64_t> there;
    for (int64_t e = 0; e < experts; ++e)
      if (set >> e & 1) there.insert(e * ranks / experts);
    sum += double(there.size()), sets += 1;
  }
  return sum / sets;
}

// A row and its list once for every rank a token goes to, probability and place once for every choice of an expert.
TEST(Windows, BytesSentAreThoseOfBalancedRouting) {
  for (const int64_t k : {2, 4}) {
    const config::Config c =
        make_config({"device.kind=\"cuda\"", "parallel.exchange=\"windows\"", "parallel.ep=4",
                     "train.num_microbatches=4", fmt::format("moe.top_k={}", k)});
    const RankPrograms ranks = ranks_as_built(c, 4);
    const Program& p = ranks.programs.front();
    const double T = double(c.train.micro_batch * c.train.seq_len), h = double(c.model.hidden_size),
                 d = ranks_of_a_token(c.moe.num_experts, k, 4),
                 listed = double(std::min(k, c.moe.num_experts / 4));
    const auto bytes_of = [&](Op op, program::Phase phase) {
      for (const program::Stage& s : p.stages)
        if (s.op == op && s.phase == phase) return cost::sent_bytes(ranks.mesh, p, s);
      return 0.0;
    };
    // Three of four parts go to others; counts are whole rows.
    const double size = double(tensor::size_of(p.values[size_t(value_named(p, "mb0.L1.sent_rows"))].dtype)),
                 row = size * h + 4 * listed, elsewhere = 0.75;
    using program::Phase;
    const double tokens = bytes_of(Op::combine_push, Phase::Forward) / (elsewhere * size * h);  // whole ones
    EXPECT_NEAR(tokens, T * d, 1);
    EXPECT_NEAR(bytes_of(Op::dispatch_push, Phase::Forward),
                elsewhere * (tokens * row + T * double(k) * (4 + 4)), 1e-6);
    EXPECT_NEAR(bytes_of(Op::dispatch_push, Phase::BackwardInput), elsewhere * tokens * size * h, 1e-6);
    EXPECT_NEAR(bytes_of(Op::combine_push, Phase::BackwardInput), elsewhere * tokens * row, 1e-6);
  }
}

// Two exchanges of one kind, with nothing between them but what they need themselves.
Program two_exchanges() {
  using program::Phase;
  using program::r;
  using program::w;
  using tensor::Dtype;
  program::Builder b("two exchanges");
  b.lane("compute", "compute");
  const auto value = [&](const char* name, Dtype dtype, std::vector<int64_t> shape, program::Life life) {
    return b.value(name, dtype, std::move(shape), program::Owner::Activations, life);
  };
  const program::ValueId coords =
                             value("coords", Dtype::I64, {program::kNumGroups}, program::Life::Persistent),
                         x = value("x", Dtype::F32, {4, 8}, program::Life::Input),
                         slot = value("slot", Dtype::I32, {4, 2}, program::Life::Input),
                         source = value("source", Dtype::I32, {8}, program::Life::Input),
                         offsets = value("offsets", Dtype::I32, {3}, program::Life::Input),
                         counts = value("counts", Dtype::I32, {3}, program::Life::Input),
                         all = value("all", Dtype::I32, {2, 3}, program::Life::Step);
  b.exchange(Op::dispatch_gather, Phase::Forward, program::Group::Dispatch, {r(counts), w(all)});
  for (int layer = 0; layer < 2; ++layer) {
    b.at({0, layer});
    const auto at = [&](const char* what) { return program::tagged(what, 0, layer); };
    const program::ValueId sent = b.routed(at("sent_rows"), Dtype::F32, {8, 8}, program::Owner::Activations,
                                           8, 8, program::Space::Window),
                           met = b.value(at("met"), Dtype::U8, {1}, program::Owner::Routing),
                           rows = b.value(at("rows"), Dtype::F32, {8, 8}, program::Owner::Results,
                                          program::Life::Result);
    b.exchange(Op::dispatch_push, Phase::BackwardInput, program::Group::Dispatch,
               {r(x), r(slot), r(all), r(coords), w(sent)},
               {{"copies", 1}, {"experts_per_rank", 1}, {"sms", 0}});
    b.exchange(Op::dispatch_meet, Phase::BackwardInput, program::Group::Dispatch, {r(sent), w(met)});
    b.dgrad(Op::dispatch_place, {r(sent), r(source), r(met), r(offsets), w(rows)});
  }
  return b.take();
}

TEST(Windows, AMeetingIsPutBeforeAnEarlyStore) {
  const Program p = place_windows(two_exchanges());
  EXPECT_EQ(interpret::check(p).faults, std::vector<std::string>());
  EXPECT_EQ(interpret::check_windows(p).faults, std::vector<std::string>());
  ASSERT_EQ(stages_of(p, Op::window_meet).size(), 1u);
  EXPECT_EQ(p.stages[static_cast<size_t>(stages_of(p, Op::window_meet)[0]) + 1].op, Op::dispatch_push);
  // The steps of a model meet often enough by themselves.
  EXPECT_TRUE(stages_of(step_of({"parallel.ep=4"}, 4), Op::window_meet).empty());
}

// The meeting put before a store is for all windows it stores into: it waits for what uses any of them, on any lane.
TEST(Windows, AMeetingThatIsPutInWaitsForReadersOfAllWindows) {
  using program::Phase;
  using program::r;
  using program::w;
  using tensor::Dtype;
  program::Builder b("two windows");
  b.lane("compute", "compute");
  b.lane("side", "compute");
  const program::ValueId counts = b.value("counts", Dtype::I32, {3}, program::Owner::Routing,
                                          program::Life::Input),
                         all = b.value("all", Dtype::I32, {2, 3}, program::Owner::Routing);
  b.exchange(Op::dispatch_gather, Phase::Forward, program::Group::Dispatch, {r(counts), w(all)});
  for (int layer = 0; layer < 2; ++layer) {
    const program::Place place{0, layer};
    const auto at = [&](const char* what) { return program::tagged(what, 0, layer); };
    const auto window = [&](const char* what) {
      return b.routed(at(what), Dtype::F32, {8, 8}, program::Owner::Activations, 8, 8,
                      program::Space::Window);
    };
    const auto result = [&](const char* what) {
      return b.value(at(what), Dtype::F32, {8, 8}, program::Owner::Results, program::Life::Result);
    };
    const program::ValueId sums = window("sums"), probs = window("probs"),
                           met = b.value(at("met"), Dtype::U8, {1}, program::Owner::Routing);
    b.at(place, 0);
    b.exchange(Op::combine_push, Phase::BackwardInput, program::Group::Dispatch,
               {r(counts), r(counts), r(counts), r(all), r(counts), w(sums), w(probs)});
    b.exchange(Op::combine_meet, Phase::BackwardInput, program::Group::Dispatch, {r(sums), w(met)});
    b.dgrad(Op::dispatch_place, {r(sums), r(counts), r(met), r(counts), w(result("of_sums"))});
    b.at(place, 1);
    b.dgrad(Op::dispatch_place, {r(probs), r(counts), r(met), r(counts), w(result("of_probs"))});
  }
  const Program p = place_windows(b.take());
  ASSERT_EQ(stages_of(p, Op::window_meet).size(), 1u);
  EXPECT_EQ(interpret::check_windows(p).faults, std::vector<std::string>());
}

// Of collectives only a meeting names a window without looking at it.
TEST(Windows, ACollectiveThatReadsOneWaitsForItsMeetingToo) {
  program::Builder b("sum of a window");
  b.lane("compute", "compute");
  b.at({0, 0});
  using program::Phase;
  const auto value = [&](const char* name, program::Space space) {
    return b.routed(program::tagged(name, 0, 0), tensor::Dtype::F32, {8, 8}, program::Owner::Results, 8, 8,
                    space);
  };
  const program::ValueId all = value("all", program::Space::Device),
                         sent = value("sent", program::Space::Window),
                         sum = value("sum", program::Space::Device);
  b.exchange(Op::dispatch_gather, Phase::Forward, program::Group::Dispatch,
             {program::r(all), program::w(sum)});
  b.exchange(Op::dispatch_push, Phase::BackwardInput, program::Group::Dispatch,
             {program::r(all), program::r(all), program::r(all), program::r(all), program::w(sent)});
  b.exchange(Op::dispatch_gather, Phase::Forward, program::Group::Dispatch,
             {program::r(sent), program::w(sum)});
  const auto faults = interpret::check_windows(b.take()).faults;
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_NE(faults[0].find("may not have written: no meeting of group etp-ep"), std::string::npos)
      << faults[0];
}

// A planted early reuse, and a meeting less that tells of arrival.
TEST(Windows, EveryMeetingThatIsTakenOutIsMissed) {
  const Program two = place_windows(two_exchanges());
  const auto faults_without = [](const Program& p, StageId s) {
    program::Edit edit(p);
    edit.erase(s);
    return interpret::check_windows(edit.apply()).faults;
  };
  const auto early = faults_without(two, stages_of(two, Op::window_meet).front());
  ASSERT_FALSE(early.empty());
  EXPECT_NE(early[0].find("may not be over: no meeting of group etp-ep between them"), std::string::npos)
      << early[0];
  const auto first = faults_without(two, stages_of(two, Op::dispatch_gather).front());
  ASSERT_FALSE(first.empty());
  EXPECT_NE(first[0].find("before any meeting of group etp-ep"), std::string::npos) << first[0];
  const Program p = step_of({"parallel.ep=4"}, 4);
  for (const Op op : {Op::dispatch_meet, Op::combine_meet}) {
    ASSERT_FALSE(stages_of(p, op).empty());
    for (const StageId s : stages_of(p, op)) {
      const auto faults = faults_without(p, s);
      ASSERT_FALSE(faults.empty()) << stage_name(p.stages[static_cast<size_t>(s)]);
      EXPECT_NE(faults[0].find("may not have written: no meeting of group etp-ep"), std::string::npos)
          << faults[0];
    }
  }
}

TEST(Windows, ABoundOfStoresIsRefusedWhereTheLayoutHasNone) {
  const auto said = [](const char* here) {
    const config::Config c = make_config(
        {"device.kind=\"cuda\"", "parallel.ep=4", "train.num_microbatches=4", "comm.exchange_sms=8", here});
    return testing::message_of([&] { ranks_as_built(c, 4); });
  };
  EXPECT_EQ(said("parallel.ranks_per_node=4"), "");
  EXPECT_EQ(said("parallel.ranks_per_node=2"),
            "comm.exchange_sms = 8 has no effect here: ranks that share experts lie on several machines of 2 "
            "ranks, so that parallel.exchange = \"auto\" is counted; remove comm.exchange_sms");
}

TEST(Windows, OnlyStoresWriteThem) {
  Program p = step_of({"parallel.ep=2"}, 2);
  const StageId place = stages_of(p, Op::dispatch_place).front(),
                push = stages_of(p, Op::dispatch_push).front();
  std::swap(p.stages[static_cast<size_t>(place)].uses.back().value,
            p.stages[static_cast<size_t>(push)].uses.back().value);
  const auto faults = interpret::check(p).faults;
  ASSERT_GE(faults.size(), 2u);
  EXPECT_NE(faults[0].find("must be a window"), std::string::npos) << faults[0];
}

TEST(Windows, PaddedPartsNeedNoHostEither) {
  const config::Config c = make_config(
      {"device.kind=\"cuda\"", "parallel.ep=4", "parallel.exchange=\"padded\"", "train.num_microbatches=4"});
  const Program p =
      apply_passes(ranks_as_built(c, 4).programs.front(), c, {.meeting = program::Meeting::OnDevice});
  EXPECT_EQ(interpret::check(p).host_waits, 0);
  EXPECT_FALSE(stages_of(p, Op::dispatch_parts).empty());
  EXPECT_TRUE(stages_of(p, Op::dispatch_exchange).empty());
}

}  // namespace
}  // namespace pleat::schedule
