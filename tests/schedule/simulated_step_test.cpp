// A simulated step on described machines: closed forms, figures, and what must hold whatever the machine.
#include "schedule/simulated_step.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "cost/flops.h"
#include "cost/machine_file.h"
#include "cost/stage_work.h"
#include "schedule/schedule_support.h"

namespace pleat::schedule {
namespace {

using namespace program;

Words pipeline_sets(int pp, int vpp, int layers, int microbatches) {
  return {fmt::format("parallel.pp={}", pp), fmt::format("parallel.vpp={}", vpp),
          fmt::format("model.num_layers={}", layers), fmt::format("train.num_microbatches={}", microbatches)};
}

// The bubble of 1F1B and of interleaved pipelines, where stages share a processor as they do on a machine.
TEST(SimulatedStep, BubbleIsTheFormulaAlsoWhereStagesShare) {
  for (const int p : {2, 4})
    for (const int m : {8, 16})
      for (const int v : {1, 2})
        for (const int64_t backward : {100, 200}) {
          SCOPED_TRACE(fmt::format("p {} m {} v {} backward {}", p, m, v, backward));
          const RankPrograms r = build_ranks(make_config(pipeline_sets(p, v, p * v, m)), p);
          const interpret::Simulation s = interpret::simulate_shared(
              interpret::network_of_roles(r.programs), [&](const Program&, const Stage& st) {
                StageTime t;
                t.of(Resource::Processor) = 1;
                if (st.op == Op::attention)
                  t.flow_ns = st.phase == Phase::Forward         ? 100
                              : st.phase == Phase::BackwardInput ? backward
                                                                 : 0;
                return t;
              });
          const int64_t ideal = int64_t{m} * v * (100 + backward);
          for (const auto& node : s.nodes) {
            EXPECT_EQ(node.busy_ns, ideal);
            EXPECT_EQ((s.step_ns - ideal) * v * m, ideal * (p - 1));
          }
        }
}

// One rank, nothing to share: the sum of its stages, each as formula and curve say.
TEST(SimulatedStep, OneRankIsTheSumOfItsStages) {
  const config::Config c = make_config({"model.dtype=\"bfloat16\"", "device.kind=\"cuda\""});
  const RankPrograms r = build_ranks(c, 1);
  const Ground ground = make_ground(cost::find_machine("h200"));
  const SimulatedStep step(c, r, ground);
  int64_t sum = 0, flows = 0;
  for (const Stage& s : r.programs[0].stages) {
    if (r.programs[0].lanes[size_t(s.lane)].resource != "compute") continue;
    const StageTime t = step.pricer()(r.programs[0], s);
    EXPECT_EQ(t.of(Resource::Processor), 1);
    sum += t.alone_ns(), flows += t.flow_ns;
  }
  const interpret::Simulation s = step.run();
  EXPECT_GE(s.step_ns, flows) << "lanes beside each other hide launches, and no work";
  EXPECT_LE(s.step_ns, sum + 100'000) << "the launch of its graph and copies of a few numbers";
}

TEST(SimulatedStep, FiguresAreAsPapersCountThem) {
  const config::Config c = make_config({"model.dtype=\"bfloat16\"", "device.kind=\"cuda\""});
  const StepFigures f = step_figures(c, 4, cost::find_machine("h100"), 2'000'000);
  const double tokens = double(c.train.micro_batch * c.train.num_microbatches * c.train.seq_len);
  EXPECT_DOUBLE_EQ(f.tokens, tokens);
  EXPECT_DOUBLE_EQ(f.step_ms, 2);
  EXPECT_DOUBLE_EQ(f.tokens_per_s_per_rank, tokens / 0.002 / 4);
  const double flops = cost::model_flops(c, tokens, double(c.train.seq_len)).total();
  EXPECT_DOUBLE_EQ(f.model_tflops_per_rank, flops / 0.002 / 4 / 1e12);
  EXPECT_DOUBLE_EQ(f.mfu, f.model_tflops_per_rank / 989);
}

struct LayoutCase {
  int ranks;
  Words sets;
};
const std::vector<LayoutCase>& layout_cases() {
  static const std::vector<LayoutCase> all = {
      {16, {"parallel.tp=2", "parallel.ep=8"}},
      {16, {"parallel.ep=16", "moe.num_experts=16"}},
      {16, {"parallel.pp=4", "model.num_layers=4", "train.num_microbatches=16", "parallel.ep=4"}},
      {16,
       {"parallel.pp=2", "parallel.vpp=2", "model.num_layers=4", "train.num_microbatches=16",
        "parallel.tp=2"}},
      {16, {"parallel.cp=4", "parallel.context=\"ring\"", "parallel.ep=4", "train.seq_len=64"}},
  };
  return all;
}

config::Config on_gpus(Words sets) {
  for (const char* more : {"model.dtype=\"bfloat16\"", "device.kind=\"cuda\""}) sets.emplace_back(more);
  if (std::none_of(sets.begin(), sets.end(),
                   [](const std::string& s) { return s.starts_with("train.num_micro"); }))
    sets.emplace_back("train.num_microbatches=16");
  return make_config(sets);
}

// Machines that are better than `m` in one thing.
std::vector<cost::Machine> better_than(const cost::Machine& m) {
  std::vector<cost::Machine> out(5, m);
  out[0].node.link.gb_s *= 2;
  out[1].network.nic.gb_s *= 2;
  out[2].node.link.latency_us /= 2;
  out[3].network.nic.latency_us /= 2;
  out[4].node.host_link_gb_s *= 2, out[4].node.host_link_both_gb_s *= 2;
  return out;
}

// Alone: never. Shared: a stage that ends earlier can start another one where it is in the way, by little.
TEST(SimulatedStep, AFasterLinkNeverMakesAStepSlower) {
  int compared = 0;
  for (const LayoutCase& at : layout_cases()) {
    const config::Config c = on_gpus(at.sets);
    const RankPrograms r = build_ranks(c, at.ranks);
    for (const char* name : {"h100", "a100"}) {
      const cost::Machine slow = cost::find_machine(name);
      const Ground ground = make_ground(slow);
      const SimulatedStep step(c, r, ground);
      const int64_t alone = step.run_alone().step_ns, shared = step.run().step_ns;
      EXPECT_GT(shared, 0);
      for (const cost::Machine& better : better_than(slow)) {
        const Ground faster = make_ground(better);
        const SimulatedStep again(c, r, faster);
        EXPECT_LE(again.run_alone().step_ns, alone) << name << joined(at.sets);
        EXPECT_LE(double(again.run().step_ns), 1.02 * double(shared)) << name << joined(at.sets);
        ++compared;
      }
    }
  }
  EXPECT_EQ(compared, 5 * 2 * 5);
}

TEST(SimulatedStep, SharingCostsTimeAndNeverGivesAny) {
  for (const LayoutCase& at : layout_cases()) {
    const config::Config c = on_gpus(at.sets);
    const RankPrograms r = build_ranks(c, at.ranks);
    cost::Machine taking = cost::find_machine("h100"), giving = taking;
    giving.sharing = {0, 0};
    const Ground more = make_ground(taking), less = make_ground(giving);
    const int64_t with = SimulatedStep(c, r, more).run().step_ns,
                  without = SimulatedStep(c, r, less).run().step_ns;
    EXPECT_GE(double(with), 0.98 * double(without)) << joined(at.sets);
  }
}

TEST(SimulatedStep, UnevenExpertsTakeLonger) {
  const config::Config c = on_gpus({"parallel.ep=8"});
  const RankPrograms r = build_ranks(c, 8);
  const Ground ground = make_ground(cost::find_machine("h100"));
  const auto step = [&](double most) {
    return SimulatedStep(c, r, ground, cost::drawn_load(most, c.moe.num_experts, 8, 1)).run().step_ns;
  };
  EXPECT_EQ(step(1), SimulatedStep(c, r, ground).run().step_ns);
  EXPECT_LT(step(1), step(2));
  EXPECT_LT(step(2), step(8));
}

// Measured stages take the place of formulas; a kind that was measured in another size is carried over.
TEST(SimulatedStep, MeasuredStagesTakeThePlaceOfFormulas) {
  const config::Config c = make_config({});
  const RankPrograms r = build_ranks(c, 1);
  cost::CostFile file;
  file.machine = {.name = "test", .kind = "cpu", .cores = 2, .threads = 1, .gpu = ""};
  std::map<cost::StageKey, cost::CostEntry> entries;
  for (const Stage& s : r.programs[0].stages) {
    if (!cost::has_cost_key(s)) continue;
    cost::CostEntry e;
    e.key = cost::stage_key(r.programs[0], s);
    e.work = cost::stage_work(r.programs[0], s, cost::RoutedRows::Balanced);
    e.ns = e.low_ns = e.high_ns = 5000, e.seen = 1;
    entries[e.key] = e;
  }
  for (const auto& [key, e] : entries) file.entries.push_back(e);
  const Ground ground = make_ground(cost::find_machine("cpu"), file);
  const SimulatedStep step(c, r, ground);
  EXPECT_EQ(step.run_alone().step_ns, 5000 * int64_t(r.programs[0].stages.size()));
  EXPECT_EQ(step.pricer().sources().by_curve, 0);
  const config::Config twice = make_config({"train.micro_batch=4"});
  const RankPrograms wide = build_ranks(twice, 1);
  const SimulatedStep carried(twice, wide, ground);
  EXPECT_GT(carried.run_alone().step_ns, step.run_alone().step_ns);
  EXPECT_GT(carried.pricer().sources().carried, 0);
  EXPECT_THROW(make_ground(cost::find_machine("h100"), file), base::Error)
      << "costs of a CPU are none of a GPU";
  EXPECT_THROW(make_ground(cost::find_machine("h100"), {}, cost::shipped_curves(cost::MachineKind::Cpu)),
               base::Error)
      << "nor are its curves";
}

}  // namespace
}  // namespace pleat::schedule
