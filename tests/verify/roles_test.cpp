// Reasoning on roles is reasoning on ranks: for every layout of the grid the verdict of check, the memory
// plan and the simulated timeline of a pipeline stage's one program are those of every rank that has it, each
// built by itself and all of them put together; planted faults show on both. Nothing is run. A spread sample
// here, every layout with PLEAT_GRID=all.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "interpret/check/check.h"
#include "interpret/check/check_network.h"
#include "interpret/plan/plan.h"
#include "interpret/simulate/simulate.h"
#include "program/edit.h"
#include "runtime/rank_setup.h"
#include "schedule/pass/pass.h"
#include "schedule/ranks.h"
#include "verify/grid.h"

namespace pleat::verify {
namespace {

using namespace program;
using interpret::check_network;
using interpret::Network;
using interpret::NetworkReport;

struct Both {
  schedule::RankPrograms roles;
  std::vector<Program> ranks;  // each built from its own place
  std::vector<int> stage;      // of each rank
};

Both build(const config::Config& config, int64_t world) {
  Both out{schedule::build_ranks(config, world), {}, {}};
  const auto table = model::make_parameters(config);
  for (int r = 0; r < world; ++r) {
    const runtime::RankSetup setup = runtime::rank_setup(config, static_cast<int>(world), r);
    out.ranks.push_back(schedule::apply_passes(
        schedule::build_training_step(config, table, {model::RoutingUse::Choose, setup.mesh, setup.role}),
        config));
    out.stage.push_back(setup.role.pipeline_rank);
  }
  return out;
}

Network network_of(const Both& b, std::span<const Program> programs) {
  const bool by_rank = programs.size() == b.ranks.size();
  return interpret::network_of_ranks(
      programs, static_cast<int>(b.ranks.size()),
      [&](int rank, Group g) { return schedule::group_members(b.roles.layout, rank, g); },
      [&, by_rank](int rank) { return by_rank ? rank : b.stage[static_cast<size_t>(rank)]; });
}

std::string joined(const std::vector<std::string>& lines) {
  return fmt::format("{}", fmt::join(lines, "\n"));
}

// Times that differ between stages, phases and sizes.
int64_t uneven(const Program& p, const Stage& s) {
  int64_t bytes = 0;
  for (const Use& u : s.uses)
    if (u.value != kNoValue) bytes += num_bytes(p.values[static_cast<size_t>(u.value)]);
  return 7 + bytes % 1013 + static_cast<int64_t>(s.phase) * 11;
}

// Whether one lane for all communication would do.
bool expect_same_verdict(const Both& b, const Network& roles, const Network& ranks) {
  const NetworkReport on_roles = check_network(roles), on_ranks = check_network(ranks);
  EXPECT_EQ(joined(on_roles.faults), "");
  EXPECT_EQ(joined(on_ranks.faults), "");
  EXPECT_EQ(on_roles.single_lane_hang.empty(), on_ranks.single_lane_hang.empty());
  if (b.roles.mesh.vpp == 1) {
    EXPECT_EQ(on_ranks.single_lane_hang, "");
  }
  EXPECT_EQ(on_roles.num_messages > 0, b.roles.mesh.pp > 1);
  EXPECT_EQ(on_ranks.num_messages, on_roles.num_messages * b.ranks.size() / b.roles.programs.size());
  return on_ranks.single_lane_hang.empty();
}

// The programs of ranks whose calls are enqueued: one lane is enough for every layout, and messages keep their order.
void expect_one_chain(const Both& b, const config::Config& config, int64_t world) {
  const schedule::RankPrograms chained = schedule::build_ranks(config, world, {.meeting = Meeting::OnDevice});
  for (const bool on_ranks : {false, true}) {
    const NetworkReport report = check_network(on_ranks ? network_of(b, chained.programs)
                                                        : interpret::network_of_roles(chained.programs));
    EXPECT_EQ(joined(report.faults), "");
    EXPECT_EQ(report.enqueued_fault(), "");
  }
  for (const Program& p : chained.programs)
    EXPECT_EQ(joined(interpret::check_plan(p, interpret::plan(p)).faults), "");
}

void expect_same_plans(const Both& b) {
  std::vector<interpret::Plan> plans;
  for (const Program& p : b.roles.programs) {
    EXPECT_EQ(joined(interpret::check(p).faults), "");
    plans.push_back(interpret::plan(p));
    EXPECT_EQ(joined(interpret::check_plan(p, plans.back()).faults), "");
  }
  for (size_t r = 0; r < b.ranks.size(); ++r) {
    const size_t role = static_cast<size_t>(b.stage[r]);
    EXPECT_TRUE(b.ranks[r] == b.roles.programs[role]) << r;
    EXPECT_EQ(joined(interpret::check(b.ranks[r]).faults), "") << r;
    const interpret::Plan plan = interpret::plan(b.ranks[r]);
    EXPECT_EQ(plan.live_peak_bytes, plans[role].live_peak_bytes) << r;
    EXPECT_EQ(plan.arena_bytes, plans[role].arena_bytes) << r;
    EXPECT_EQ(plan.peak_stage, plans[role].peak_stage) << r;
    EXPECT_EQ(plan.at_peak, plans[role].at_peak) << r;
    EXPECT_EQ(plan.offset, plans[role].offset) << r;
  }
}

void expect_same_timeline(const Both& b, const Network& on_roles, const Network& on_ranks) {
  const interpret::Simulation roles = interpret::simulate(on_roles, uneven),
                              ranks = interpret::simulate(on_ranks, uneven);
  EXPECT_EQ(roles.step_ns, ranks.step_ns);
  for (size_t r = 0; r < b.ranks.size(); ++r) {
    const auto& a = roles.nodes[static_cast<size_t>(b.stage[r])].timeline.spans;
    const auto& c = ranks.nodes[r].timeline.spans;
    ASSERT_EQ(a.size(), c.size());
    for (size_t i = 0; i < a.size(); ++i)
      ASSERT_TRUE(a[i].start_ns == c[i].start_ns && a[i].end_ns == c[i].end_ns) << r << " " << i;
  }
}

// ---- planted faults

template <class Is>
size_t find_stage(const Program& p, Is is) {
  const auto at = std::find_if(p.stages.begin(), p.stages.end(), is);
  if (at == p.stages.end()) ADD_FAILURE() << "no such stage";
  return static_cast<size_t>(at - p.stages.begin()) % p.stages.size();
}

void remove_stage(Program& p, size_t at) {
  program::Edit edit(std::move(p));
  edit.erase(static_cast<StageId>(at));
  p = edit.apply();
}

void leave_out_receive(Program& p) {
  remove_stage(p, find_stage(p, [](const Stage& s) { return kernel_of(s.op) == KernelKind::receive; }));
}

// The last sum over the pipeline and the sum of the norm, which all ranks must come to in one order.
void swap_collectives(Program& p) {
  std::swap(p.stages[find_stage(p, [](const Stage& s) { return s.op == Op::norm_reduce; })],
            p.stages[find_stage(
                p, [](const Stage& s) { return s.op == Op::loss_reduce && s.group == Group::Pipeline; })]);
}

// In one stage's program, and so on all its ranks.
int expect_seen_on_both(Both& b) {
  int caught = 0;
  const size_t last = b.roles.programs.size() - 1;
  for (const auto plant : {leave_out_receive, swap_collectives}) {
    const Program saved = b.roles.programs[last];
    plant(b.roles.programs[last]);
    const NetworkReport roles = check_network(interpret::network_of_roles(b.roles.programs)),
                        ranks = check_network(network_of(b, b.roles.programs));
    EXPECT_FALSE(roles.ok());
    EXPECT_FALSE(ranks.ok());
    caught += !roles.ok() && !ranks.ok();
    b.roles.programs[last] = saved;
  }
  return caught;
}

// On one rank only: it is no longer what its role says, and the ranks together show it too.
int expect_seen_on_one_rank(Both& b) {
  Program& p = b.ranks.back();
  const Program saved = p;
  const Network before = network_of(b, b.ranks);
  std::vector<size_t> calls;
  for (size_t i = 0; i < p.stages.size(); ++i)
    if (class_of(p.stages[i].op) == OpClass::Collective &&
        before.nodes.back().members[static_cast<size_t>(p.stages[i].group)].size() > 1)
      calls.push_back(i);
  int caught = 0;
  const auto look = [&] {
    const bool seen = !check_network(network_of(b, b.ranks)).ok() &&
                      !(p == b.roles.programs[static_cast<size_t>(b.stage.back())]);
    EXPECT_TRUE(seen);
    caught += seen;
    p = saved;
  };
  // Two calls that are different, one behind the other.
  for (size_t i = calls.size() - 1; i > 0; --i)
    if (p.stages[calls[i]].op != p.stages[calls[i - 1]].op) {
      std::swap(p.stages[calls[i]], p.stages[calls[i - 1]]);
      look();
      break;
    }
  remove_stage(p, calls.front());
  look();
  return caught;
}

TEST(Roles, SayWhatRanksSay) {
  const std::vector<GridCase> all = grid();
  int layouts = 0, one_lane = 0, on_both = 0, on_one = 0;
  size_t num_ranks = 0, stages = 0, of_roles = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    const GridCase& c = all[i];
    if (!refusal(c).empty() || (!whole_grid() && i % 29 != 3)) continue;
    SCOPED_TRACE(c.name());
    Both b = build(parallel_config(c, "float64"), c.mesh.world());
    const Network roles = interpret::network_of_roles(b.roles.programs), ranks = network_of(b, b.ranks);
    one_lane += expect_same_verdict(b, roles, ranks);
    expect_one_chain(b, parallel_config(c, "float64"), c.mesh.world());
    expect_same_plans(b);
    expect_same_timeline(b, roles, ranks);
    if (c.mesh.pp > 1) on_both += expect_seen_on_both(b);
    if (c.mesh.world() > 1) on_one += expect_seen_on_one_rank(b);
    ++layouts;
    num_ranks += b.ranks.size();
    stages += ranks.num_stages();
    of_roles += roles.num_stages();
    if (::testing::Test::HasFailure()) break;
  }
  EXPECT_GT(layouts, 30);
  EXPECT_GT(on_both, 20);
  EXPECT_GT(on_one, 40);
  if (whole_grid())
    fmt::print(
        "{} layouts, {} ranks, {} stages on ranks and {} on roles: same verdict, plan and timeline; planted "
        "faults seen: {} on roles and ranks, {} on one rank; {} could run with one lane for all "
        "communication as they are, {} as enqueued calls have them\n",
        layouts, num_ranks, stages, of_roles, on_both, on_one, one_lane, layouts);
}

}  // namespace
}  // namespace pleat::verify
