// What the program lets overlap overlaps when it runs: the measured timeline of a run and the simulated one of the same
// program have the same pairs of stages side by side.
#include <gtest/gtest.h>

#include <chrono>
#include <map>

#include "comm/local/local_world.h"
#include "interpret/network/network.h"
#include "interpret/simulate/simulate.h"
#include "program/order.h"
#include "runtime/crew.h"
#include "train/bench_step.h"
#include "train/train_support.h"

namespace pleat::train::testing {
namespace {

using interpret::Span;
using interpret::Timeline;
using program::Program;
using program::Stage;
using program::StageId;

config::Config two_ranks(const std::vector<std::string>& more) {
  std::vector<std::string> sets = {"model.num_layers=1", "train.num_microbatches=2"};
  sets.insert(sets.end(), more.begin(), more.end());
  return small_config("", sets);
}

// A step of two thread ranks behind one that warms up; the program of rank 0, and what each rank measured.
struct TwoRanks {
  Program program;
  std::vector<Timeline> measured;
};
TwoRanks run_two_ranks(const config::Config& config, const std::function<int64_t(const Stage&)>& least,
                       bool in_order = false) {
  TwoRanks out;
  out.measured.resize(2);
  comm::LocalWorld world(2);
  comm::run_ranks(world, [&](int rank) {
    const auto endpoint = world.endpoint(rank);
    runtime::Crew crew(config, *endpoint, 1);
    runtime::Programs programs(config, train_only(), &crew);
    programs.initialize();
    config::Config mine = config;
    mine.train.num_microbatches /= 2;
    std::vector<int64_t> least_ns;
    interpret::RunOptions options;
    for (int step = 1; step <= 2; ++step) {
      write_random_batch(programs.train(), mine, step);
      programs.train().run(options);
      options.timing = true;
      options.in_order = in_order;
      if (least)
        for (const Stage& s : programs.train().program().stages) least_ns.push_back(least(s));
      options.least_ns = least_ns;
    }
    out.measured[static_cast<size_t>(rank)] = programs.train().timeline();
    if (rank == 0) out.program = programs.train().program();
  });
  return out;
}

int64_t side_by_side_ns(const Span& a, const Span& b) {
  return std::min(a.end_ns, b.end_ns) - std::max(a.start_ns, b.start_ns);
}

// Pairs of stages on different lanes that overlap in one timeline by more than `margin` and in the other not at all.
std::vector<std::string> disagreements(const Program& p, const Timeline& a, const Timeline& b, int64_t margin,
                                       int& agreed) {
  std::vector<std::string> out;
  agreed = 0;
  for (size_t i = 0; i < p.stages.size(); ++i)
    for (size_t j = i + 1; j < p.stages.size(); ++j) {
      if (p.stages[i].lane == p.stages[j].lane) continue;
      const int64_t in_a = side_by_side_ns(a.spans[i], a.spans[j]),
                    in_b = side_by_side_ns(b.spans[i], b.spans[j]);
      agreed += in_a > margin && in_b > 0;
      if ((in_a > margin && in_b <= 0) || (in_b > margin && in_a <= 0))
        out.push_back(fmt::format("{} and {}: {} us and {} us", stage_name(p.stages[i]),
                                  stage_name(p.stages[j]), in_a / 1000, in_b / 1000));
    }
  return out;
}

// The simulation of a rank's program where every stage lasts from when the program lets it begin to when it was seen
// to end. So what held up a stage does not add up over the step.
Timeline simulated(const Program& p, const Timeline& measured) {
  const program::EdgeList edges = program::edge_list(p);
  std::vector<int64_t> lasted(p.stages.size());
  std::map<int, int64_t> lane_end;
  int64_t begin = measured.spans[0].start_ns;
  for (const Span& span : measured.spans) begin = std::min(begin, span.start_ns);
  for (size_t s = 0; s < p.stages.size(); ++s) {
    int64_t ready = lane_end.try_emplace(p.stages[s].lane, begin).first->second;
    for (const StageId before : edges[s])
      ready = std::max(ready, measured.spans[static_cast<size_t>(before)].end_ns);
    lane_end[p.stages[s].lane] = measured.spans[s].end_ns;
    lasted[s] = measured.spans[s].end_ns - ready;
  }
  const auto duration = [&](const Program&, const Stage& stage) {
    return lasted[static_cast<size_t>(&stage - p.stages.data())];
  };
  return interpret::simulate(interpret::network_of_roles(std::span(&p, 1)), duration).nodes[0].timeline;
}

constexpr int64_t kMillisecond = 1'000'000;

// Stages of some milliseconds, longer by kind: what a busy machine adds is short beside them.
int64_t some_time(const Stage& s) { return kMillisecond * (16 + static_cast<int>(s.op) % 9); }

constexpr int64_t kMargin = 10 * kMillisecond;

TEST(Timelines, MeasuredAndSimulatedHaveTheSamePairsSideBySide) {
  const config::Config c = two_ranks({"parallel.ep=2", "moe.num_experts=4", "parallel.bucket_mib=0"});
  std::vector<std::string> differ;
  int agreed = 0;
  for (int attempt = 0; attempt < 4; ++attempt) {  // a machine under load may hold up a thread for long
    const TwoRanks run = run_two_ranks(c, some_time);
    differ =
        disagreements(run.program, run.measured[0], simulated(run.program, run.measured[0]), kMargin, agreed);
    if (differ.empty()) break;
  }
  EXPECT_EQ(differ, std::vector<std::string>());
  EXPECT_GT(agreed, 10) << "lanes that never overlap prove nothing";
}

// The same comparison finds a run whose lanes do not run.
TEST(Timelines, ARunInOrderHasOtherPairs) {
  const TwoRanks run = run_two_ranks(
      two_ranks({"parallel.ep=2", "moe.num_experts=4", "parallel.bucket_mib=0"}), some_time, true);
  int agreed = 0;
  EXPECT_GT(
      disagreements(run.program, run.measured[0], simulated(run.program, run.measured[0]), kMargin, agreed)
          .size(),
      10u);
  EXPECT_EQ(agreed, 0);
}

// Without a pace: gradients travel while the backward of other layers still computes.
TEST(Timelines, ReductionsRunUnderTheBackward) {
  const config::Config c = two_ranks(
      {"model.num_layers=4", "model.hidden_size=256", "train.seq_len=128", "parallel.bucket_mib=0"});
  int64_t hidden = 0;
  for (int attempt = 0; attempt < 4 && hidden == 0; ++attempt) {
    const TwoRanks run = run_two_ranks(c, {});
    for (size_t i = 0; i < run.program.stages.size(); ++i)
      for (size_t j = 0;
           run.program.stages[i].op == program::Op::grad_reduce && j < run.program.stages.size(); ++j) {
        const Stage& s = run.program.stages[j];
        const bool backward =
            s.phase == program::Phase::BackwardInput || s.phase == program::Phase::BackwardWeight;
        if (backward && class_of(s.op) == program::OpClass::Compute && s.lane != run.program.stages[i].lane)
          hidden += std::max<int64_t>(0, side_by_side_ns(run.measured[0].spans[i], run.measured[0].spans[j]));
      }
  }
  EXPECT_GT(hidden, 0);
}

}  // namespace
}  // namespace pleat::train::testing
