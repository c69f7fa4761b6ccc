// Shuffle: a step run in random legal orders gives the same bits, so the declared uses are all the order
// there is. Poison: dead memory overwritten and lanes as threads with random pauses change nothing. Threads:
// bits do not depend on their number.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/rng.h"
#include "interpret/check/check.h"
#include "program/order.h"
#include "schedule/build.h"
#include "schedule/pass/pass.h"
#include "schedule/pass/scratch.h"
#include "train/train_support.h"

namespace pleat::train::testing {
namespace {

using program::StageId;

// A random topological order of the data edges; lanes do not count.
std::vector<StageId> random_order(const std::vector<std::vector<StageId>>& waits, uint64_t seed) {
  const base::RandomStream random(seed, base::RandomUse::Test, 0, 0);
  std::vector<int> missing(waits.size());
  std::vector<std::vector<StageId>> next(waits.size());
  std::vector<StageId> ready, out;
  for (size_t s = 0; s < waits.size(); ++s) {
    missing[s] = static_cast<int>(waits[s].size());
    for (StageId p : waits[s]) next[static_cast<size_t>(p)].push_back(static_cast<StageId>(s));
    if (!missing[s]) ready.push_back(static_cast<StageId>(s));
  }
  while (!ready.empty()) {
    const size_t pick = static_cast<size_t>(random.uniform(out.size()) * static_cast<double>(ready.size()));
    const StageId s = ready[pick];
    ready.erase(ready.begin() + static_cast<std::ptrdiff_t>(pick));
    out.push_back(s);
    for (StageId n : next[static_cast<size_t>(s)])
      if (--missing[static_cast<size_t>(n)] == 0) ready.push_back(n);
  }
  return out;
}

program::Program in_order(const program::Program& p, const std::vector<StageId>& order) {
  program::Program out = p;
  for (size_t i = 0; i < order.size(); ++i) out.stages[i] = p.stages[static_cast<size_t>(order[i])];
  return out;
}

// Every bit of a step's outcome: gradients and updated state.
std::string outcome(const program::Program& p, const config::Config& c, const runtime::Programs& start,
                    const interpret::RunOptions& options = {}, int num_steps = 1, int threads = 2) {
  Runtime bound(with_gradients_kept(p), threads);
  copy_state(start, bound);
  std::string all;
  for (int step = 1; step <= num_steps; ++step) {
    write_random_batch(bound.executor(), c, step);
    bound.executor().run(options);
    all += digest(gradients(bound.program(), bound.executor()));
  }
  return all + digest(snapshot(bound));
}

config::Config rich_config() {
  return small_config("", {"model.dtype=\"float32\"", "model.num_layers=3", "model.leading_dense_layers=1",
                           "model.ffn_hidden_size=20", "model.tie_embeddings=true", "model.qk_norm=true",
                           "moe.shared_ffn_hidden_size=8", "moe.shared_gate=true", "moe.score=\"sigmoid\"",
                           "moe.load_balancing=[\"aux\",\"global_aux\",\"bias\"]", "moe.aux_coef=[0.01,0.02]",
                           "moe.z_coef=0.001", "moe.input_jitter=0.05", "model.num_mtp_layers=2"});
}

struct Start {
  config::Config config = rich_config();
  runtime::Programs programs;
  program::Program program;
  Start() : programs(config, choice()), program(programs.train_plan().program) { programs.initialize(); }
  static runtime::ProgramChoice choice() {
    runtime::ProgramChoice c;
    c.evaluate = false;
    return c;
  }
};

}  // namespace

TEST(Shuffle, AHundredLegalOrdersGiveTheSameBits) {
  Start start;
  const auto edges = program::data_edges(start.program);
  const std::string expected = outcome(start.program, start.config, start.programs);
  std::set<std::vector<StageId>> seen;
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    const auto order = random_order(edges, seed);
    ASSERT_EQ(order.size(), start.program.stages.size());
    seen.insert(order);
    const program::Program shuffled = in_order(start.program, order);
    ASSERT_TRUE(interpret::check(shuffled).ok()) << "seed " << seed;
    ASSERT_EQ(outcome(shuffled, start.config, start.programs), expected) << "seed " << seed;
  }
  EXPECT_GE(seen.size(), 95u);
}

// A stage that reads a value it does not declare: some legal order must show it.
TEST(Shuffle, APlantedMissingEdgeIsCaught) {
  Start start;
  auto edges = program::data_edges(start.program);
  const std::string expected = outcome(start.program, start.config, start.programs);
  // Forget that the last accumulation into the router's gradient waits for the one before it.
  bool planted = false;
  for (size_t s = start.program.stages.size(); s-- > 0 && !planted;) {
    const program::Stage& stage = start.program.stages[s];
    if (stage.op != program::Op::router_gate || stage.phase != program::Phase::BackwardInput ||
        stage.microbatch != 1)
      continue;
    // Its input gradient: without this edge it may run before the router's choice has written it.
    edges[s].clear();
    planted = true;
  }
  ASSERT_TRUE(planted);
  int caught = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const program::Program shuffled = in_order(start.program, random_order(edges, seed));
    if (!interpret::check(shuffled).ok()) {
      ++caught;
      continue;
    }
    caught += outcome(shuffled, start.config, start.programs) != expected;
  }
  EXPECT_GT(caught, 0);
}

// The order of a sum is part of the program: an accumulation moved behind the next one is legal data flow and
// other bits.
TEST(Shuffle, ReorderedAccumulationChangesBits) {
  config::Config c = rich_config();
  c.train.num_microbatches = 3;
  runtime::Programs programs(c, Start::choice());
  programs.initialize();
  program::Program moved = programs.train_plan().program;
  const std::string expected = outcome(moved, c, programs);
  const auto find = [&](int mb) {
    return std::find_if(moved.stages.begin(), moved.stages.end(), [&](const program::Stage& s) {
      return s.op == program::Op::qkv && s.phase == program::Phase::BackwardWeight && s.layer == 1 &&
             s.microbatch == mb;
    });
  };
  const auto first = find(1), second = find(2);
  ASSERT_TRUE(first != moved.stages.end() && second != moved.stages.end() && first < second);
  std::rotate(first, first + 1, second + 1);
  ASSERT_TRUE(interpret::check(moved).ok());
  EXPECT_NE(outcome(moved, c, programs), expected);
}

TEST(Poison, DeadMemoryAndLaneThreadsChangeNothing) {
  Start start;
  ASSERT_GE(start.program.lanes.size(), 2u);
  interpret::RunOptions options;
  options.in_order = true;
  const std::string expected = outcome(start.program, start.config, start.programs, options, 3);
  EXPECT_EQ(outcome(start.program, start.config, start.programs, {}, 3), expected);
  options.poison = true;
  EXPECT_EQ(outcome(start.program, start.config, start.programs, options, 3), expected);
  options.in_order = false;
  EXPECT_EQ(outcome(start.program, start.config, start.programs, options, 3), expected);
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    options.delay_seed = seed;
    EXPECT_EQ(outcome(start.program, start.config, start.programs, options, 3), expected) << "seed " << seed;
  }
}

// A use the program does not declare keeps nothing alive: poison must reach it. A backward stage is made to
// read a value through a use that is hidden from the plan and from the poison.
TEST(Poison, AnUndeclaredLateReadSeesTheNaNs) {
  Start start;
  const program::Program& p = start.program;
  interpret::Plan plan = interpret::plan(p);
  size_t victim = 0, other = 0;
  for (size_t i = 0; i < p.values.size(); ++i) {
    if (p.values[i].name == "mb0.L2.attn_rstd") victim = i;    // read by the last layer's backward
    if (p.values[i].name == "mb0.L2.shared_gated") other = i;  // dead long before that
  }
  ASSERT_TRUE(victim && other);
  ASSERT_GE(program::num_bytes(p.values[other]), program::num_bytes(p.values[victim]));
  plan.offset[victim] = plan.offset[other];
  EXPECT_FALSE(interpret::check_plan(p, plan).ok());
  device::Pool pool(2);
  device::Arena arena(plan.arena_bytes);
  interpret::Executor executor(p, plan, {arena.data()}, pool);
  for (const checkpoint::TensorRef& t : start.programs.tensors())
    std::memcpy(executor.data(t.name), t.bytes.host().data(), t.bytes.host().size());
  write_random_batch(executor, start.config, 1);
  interpret::RunOptions options;
  options.poison = true;
  executor.run(options);
  EXPECT_EQ(*static_cast<const int32_t*>(executor.data("commit")), 0) << "the poison went unnoticed";
}

TEST(Threads, StateIsTheSameForOneTwoAndFour) {
  Start start;
  const std::string expected = outcome(start.program, start.config, start.programs, {}, 4, 1);
  EXPECT_EQ(outcome(start.program, start.config, start.programs, {}, 4, 2), expected);
  EXPECT_EQ(outcome(start.program, start.config, start.programs, {}, 4, 4), expected);
}

// Memory of a stage alone is overwritten before and behind it, and lies where other lanes may be at work on what
// is not theirs.
TEST(Poison, ScratchIsNobodyElses) {
  Start start;
  const program::Program p = schedule::add_scratch(start.program);
  EXPECT_GT(p.values.size(), start.program.values.size());
  interpret::RunOptions options;
  options.poison = true;
  EXPECT_EQ(outcome(p, start.config, start.programs, options, 2),
            outcome(start.program, start.config, start.programs, {}, 2));
}

}  // namespace pleat::train::testing
