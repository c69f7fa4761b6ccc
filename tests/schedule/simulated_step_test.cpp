// A simulated step on described machines: closed forms, figures, and what must hold whatever the machine.
#include "schedule/simulated_step.h"

#include <gtest/gtest.h>

#include <cmath>
#include <optional>

#include "base/error.h"
#include "base/rng.h"
#include "cost/flops.h"
#include "cost/machine_file.h"
#include "cost/stage_work.h"
#include "schedule/node_reach.h"
#include "schedule/run_together.h"
#include "schedule/schedule_support.h"
#include "support/refusal.h"

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

config::Config on_gpus(Words sets, int64_t ranks, const cost::Machine& machine = cost::find_machine("h100")) {
  for (const char* more : {"model.dtype=\"bfloat16\"", "device.kind=\"cuda\""}) sets.emplace_back(more);
  if (std::none_of(sets.begin(), sets.end(),
                   [](const std::string& s) { return s.starts_with("train.num_micro"); }))
    sets.emplace_back("train.num_microbatches=16");
  return placed_on(make_config(sets), machine, ranks);
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
    const config::Config c = on_gpus(at.sets, at.ranks);
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
    const config::Config c = on_gpus(at.sets, at.ranks);
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
  const config::Config c = on_gpus({"parallel.ep=8"}, 8);
  const RankPrograms r = build_ranks(c, 8);
  const Ground ground = make_ground(cost::find_machine("h100"));
  const auto step = [&](double most) {
    return SimulatedStep(c, r, ground, cost::drawn_load(most, c.moe.num_experts, 8, 1)).run().step_ns;
  };
  EXPECT_EQ(step(1), SimulatedStep(c, r, ground).run().step_ns);
  EXPECT_LT(step(1), step(2));
  EXPECT_LT(step(2), step(8));
}

cost::CostFile measured_on_cpu(const RankPrograms& r, int64_t threads, double ns) {
  cost::CostFile file;
  file.machine = {.name = "test", .kind = "cpu", .cores = 2, .threads = threads, .gpu = ""};
  std::map<cost::StageKey, cost::CostEntry> entries;
  for (const Stage& s : r.programs[0].stages) {
    if (!cost::has_cost_key(s)) continue;
    cost::CostEntry e;
    e.key = cost::stage_key(r.programs[0], s);
    e.work = cost::stage_work(r.programs[0], s, cost::RoutedRows::Balanced);
    e.ns = e.low_ns = e.high_ns = ns, e.seen = 1;
    entries[e.key] = e;
  }
  for (const auto& [key, e] : entries) file.entries.push_back(e);
  return file;
}

// Measured stages take the place of formulas; a kind that was measured in another size is carried over.
TEST(SimulatedStep, MeasuredStagesTakeThePlaceOfFormulas) {
  const config::Config c = make_config({"device.threads=1"});
  const RankPrograms r = build_ranks(c, 1);
  const cost::CostFile file = measured_on_cpu(r, 1, 5000);
  const Ground ground = make_ground(cost::find_machine("cpu"), file);
  const SimulatedStep step(c, r, ground);
  EXPECT_EQ(step.run_alone().step_ns, 5000 * int64_t(r.programs[0].stages.size()));
  EXPECT_EQ(step.pricer().sources().by_curve, 0);
  const config::Config twice = make_config({"device.threads=1", "train.micro_batch=4"});
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

// Ranks of one node store into each other's memory; those of several cannot, and nothing prices it.
TEST(SimulatedStep, WindowsEndAtTheNode) {
  const Words sets = {"parallel.ep=16", "moe.num_experts=16"};
  for (const char* name : {"h100", "gb200-nvl72"}) {
    SCOPED_TRACE(name);
    const cost::Machine machine = cost::find_machine(name);
    const bool one_node = machine.node.ranks >= 16;
    const config::Config c = on_gpus(sets, 16, machine);
    const RankPrograms r = build_ranks(c, 16);
    EXPECT_EQ(r.mesh.exchange == model::RowExchange::Windows, one_node);
    EXPECT_EQ(host_waits_of(r) > 0, !one_node) << "counts are read";
    const Ground ground = make_ground(machine);
    EXPECT_GT(SimulatedStep(c, r, ground).run().step_ns, 0);
  }
  const config::Config told =
      on_gpus({"parallel.ep=16", "moe.num_experts=16", "parallel.exchange=\"windows\""}, 16);
  const RankPrograms r = build_ranks(told, 16);
  const Ground ground = make_ground(cost::find_machine("h100"));
  const std::string said = pleat::testing::refusal([&] { SimulatedStep(told, r, ground).run(); });
  EXPECT_NE(said.find("its group of 16 lies on 2 nodes"), std::string::npos) << said;
}

// However uneven: a rank never works on more rows than were planned, and what it sends to others stays what it has.
TEST(SimulatedStep, RowsThatAreNotPlannedAreNotWorkedOn) {
  for (const Words& more : {Words{"moe.token_budget=1.25", "moe.overflow=\"drop\""},
                            Words{"moe.capacity_factor=1.0", "moe.pad_to_capacity=true"}, Words{}}) {
    SCOPED_TRACE(joined(more));
    Words sets = {"parallel.ep=8", "parallel.exchange=\"counted\""};
    sets.insert(sets.end(), more.begin(), more.end());
    const config::Config c = on_gpus(sets, 8);
    const RankPrograms r = build_ranks(c, 8);
    for (const Stage& s : r.programs[0].stages) {
      const kernels::Work worst = cost::stage_work(r.programs[0], s, cost::RoutedRows::Balanced, 8),
                          all = cost::stage_work(r.programs[0], s, cost::RoutedRows::Planned);
      EXPECT_LE(worst.flops, all.flops * (1 + 1e-12)) << stage_name(s);
      EXPECT_LE(worst.bytes, all.bytes * (1 + 1e-12)) << stage_name(s);
    }
    // A rank's own tokens, each in top_k rows, whoever gets them.
    for (const Value& v : r.programs[0].values) {
      if (!v.name.ends_with("send_rows")) continue;
      EXPECT_EQ(v.expected_rows, v.shape[0]) << v.name;
    }
  }
}

// Ranks of a CPU's node share device.threads as they do in a run; work is divided by them, launches are not.
TEST(SimulatedStep, ThreadsOfARankShareItsWork) {
  const cost::Machine cpu = cost::find_machine("cpu");
  const auto work_ns = [&](int threads, int ranks) {
    const config::Config c = make_config({fmt::format("device.threads={}", threads)});
    const RankPrograms r = build_ranks(c, ranks);
    const Ground ground = make_ground(cpu);
    const SimulatedStep step(c, r, ground);
    EXPECT_EQ(step.pricer().prices().threads, std::max(1, threads / ranks));
    int64_t flows = 0;
    for (const Stage& s : r.programs[0].stages)
      if (!is_exchange(s.op)) flows += step.pricer()(r.programs[0], s).flow_ns;
    return double(flows);
  };
  EXPECT_NEAR(work_ns(4, 1), work_ns(1, 1) / 4, 0.01 * work_ns(1, 1));
  EXPECT_NEAR(work_ns(4, 2), work_ns(2, 2) / 2, 0.01 * work_ns(2, 2));
  EXPECT_EQ(work_ns(1, 2), work_ns(2, 2));
}

TEST(SimulatedStep, CostsOfOtherThreadsAreRefused) {
  const config::Config c = make_config({"device.threads=2"});
  const RankPrograms r = build_ranks(c, 1), two = build_ranks(c, 2);
  const Ground ground = make_ground(cost::find_machine("cpu"), measured_on_cpu(r, 2, 5000));
  EXPECT_GT(SimulatedStep(c, r, ground).run().step_ns, 0);
  const std::string said = pleat::testing::refusal([&] { SimulatedStep(c, two, ground); });
  EXPECT_NE(
      said.find("costs are of a rank with 2 threads, but 2 ranks of a node share device.threads = 2: 1 each"),
      std::string::npos)
      << said;
  EXPECT_NE(said.find("--set device.threads=4"), std::string::npos) << said;
}

// Only exchanges of ranks that had a core each say what links reach; what was measured so is not crowded again.
TEST(SimulatedStep, LinksAreThoseOfRanksWithACoreEach) {
  const config::Config c = make_config({"device.threads=1"});
  const RankPrograms r = build_ranks(c, 1);
  cost::CostFile file = measured_on_cpu(r, 1, 5000);
  const auto add = [&](int64_t ranks, double times) {
    for (const int64_t bytes : {int64_t{1} << 10, int64_t{1} << 24})
      file.links.push_back({"send", ranks, bytes, times * (10'000 + double(bytes) / 4)});
  };
  add(4, 7);
  const cost::Machine cpu = cost::find_machine("cpu");
  EXPECT_FALSE(make_ground(cpu, file).links_measured) << "four ranks on two cores";
  EXPECT_EQ(make_ground(cpu, file).machine.node.link.gb_s, cpu.node.link.gb_s);
  add(2, 1);
  const Ground ground = make_ground(cpu, file);
  EXPECT_TRUE(ground.links_measured);
  EXPECT_NEAR(ground.machine.node.link.gb_s, 4, 0.01);
}

// Ranks of a CPU have equal parts of its adapters, however many there may be.
TEST(SimulatedStep, RanksOfACpuShareTheAdaptersOfTheirNode) {
  const config::Config c = make_config({"parallel.ranks_per_node=2", "train.num_microbatches=4"});
  const RankPrograms r = build_ranks(c, 4);
  const Ground ground = make_ground(cost::find_machine("cpu"));
  EXPECT_EQ(SimulatedStep(c, r, ground).pricer().prices().machine.network_gb_s(), 1.25 / 2);
}

// Any layout on any machine: a link that is better in one thing never makes a step slower while stages do not slow each
// other, and by less than 2 % where they do.
TEST(SimulatedStep, AFasterLinkNeverMakesAStepSlowerOnAnyLayout) {
  const base::RandomStream random(23, base::RandomUse::Test, 0, 0);
  uint64_t at = 0;
  const auto one_of = [&](std::vector<int> choices) {
    return choices[std::min(choices.size() - 1,
                            static_cast<size_t>(random.uniform(at++) * static_cast<double>(choices.size())))];
  };
  const auto factor = [&] { return std::exp2(4 * random.uniform(at++) - 2); };
  int compared = 0;
  for (int turn = 0; compared < 40 && turn < 400; ++turn) {
    const int tp = one_of({1, 2}), pp = one_of({1, 2, 4}), cp = one_of({1, 2}),
              vpp = pp > 1 ? one_of({1, 2}) : 1;
    const Words sets = {fmt::format("parallel.tp={}", tp),
                        fmt::format("parallel.pp={}", pp),
                        fmt::format("parallel.vpp={}", vpp),
                        fmt::format("parallel.cp={}", cp),
                        fmt::format("parallel.ep={}", one_of({1, 2, 4, 8})),
                        fmt::format("model.num_layers={}", std::max(2, pp * vpp)),
                        fmt::format("train.seq_len={}", one_of({32, 64})),
                        "train.num_microbatches=16"};
    cost::Machine machine = cost::find_machine(one_of({0, 1}) ? "h100" : "a100");
    machine.node.ranks = one_of({2, 4, 8});
    machine.node.link.gb_s *= factor(), machine.node.link.latency_us *= factor();
    machine.network.nic.gb_s *= factor(), machine.network.nic.latency_us *= factor();
    const int ranks = one_of({8, 16});
    config::Config c;
    std::optional<RankPrograms> r;
    // A layout that the model cannot have is no case.
    if (!pleat::testing::message_of([&] {
           c = on_gpus(sets, ranks, machine);
           r = build_ranks(c, ranks);
         }).empty())
      continue;
    const Ground ground = make_ground(machine);
    const SimulatedStep slow(c, *r, ground);
    const int64_t alone = slow.run_alone().step_ns, shared = slow.run().step_ns;
    for (const cost::Machine& better : better_than(machine)) {
      const Ground faster = make_ground(better);
      const SimulatedStep again(c, *r, faster);
      EXPECT_LE(again.run_alone().step_ns, alone) << machine.name << " " << joined(sets);
      EXPECT_LE(double(again.run().step_ns), 1.02 * double(shared)) << machine.name << " " << joined(sets);
    }
    ++compared;
  }
  EXPECT_EQ(compared, 40);
}

// Seen on an H200: products take 85 ms beside copies both ways and 64 ms alone; the copies keep their pace. With shares
// as the machine's file and the prices of stages have them.
TEST(SimulatedStep, AProductBesideTwoCopiesTakesAThirdLongerOnAnH200) {
  const config::Config c = make_config({"model.dtype=\"bfloat16\"", "device.kind=\"cuda\""});
  const RankPrograms r = build_ranks(c, 1);
  const Ground ground = make_ground(cost::find_machine("h200"));
  const SimulatedStep step(c, r, ground);
  std::optional<StageTime> product, in, out;
  for (const Stage& s : r.programs[0].stages) {
    const StageTime t = step.pricer()(r.programs[0], s);
    const Lane& lane = r.programs[0].lanes[size_t(s.lane)];
    if (kernel_of(s.op) == KernelKind::linear && s.phase == Phase::Forward) product = t;
    if (lane.name == "h2d") in = t;
    if (lane.name == "d2h") out = t;
  }
  ASSERT_TRUE(product && in && out);
  // Large ones: shares stay, and all begin at once.
  product->flow_ns = 640'000, in->flow_ns = out->flow_ns = 2'000'000;
  product->of(Resource::Memory) = 0.2F;  // of 8192 x 8192 matrices
  for (StageTime* t : {&*product, &*in, &*out}) t->fixed_ns = 0;
  Program p;
  for (const char* lane : {"compute", "h2d", "d2h"}) {
    Stage s;
    s.op = Op::attn_norm;
    s.part = s.lane = static_cast<int16_t>(p.lanes.size());
    p.lanes.push_back({lane, lane == std::string("compute") ? "compute" : "host_link"});
    p.stages.push_back(s);
  }
  const interpret::Simulation s =
      interpret::simulate_shared(interpret::network_of_roles({&p, 1}), [&](const Program&, const Stage& st) {
        return st.part == 0 ? *product : st.part == 1 ? *in : *out;
      });
  const auto& spans = s.nodes[0].timeline.spans;
  EXPECT_NEAR(double(spans[0].end_ns), 640'000 * 85.0 / 64, 0.02 * 640'000);
  EXPECT_NEAR(double(spans[1].end_ns), 2'000'000 * 55.3 / 50.8, 0.02 * 2'000'000);
  EXPECT_NEAR(double(spans[2].end_ns), double(spans[1].end_ns), 2);
}

// Whatever a file may hold, a step takes a time that is a number.
TEST(SimulatedStep, TheLargestNumbersOfFilesAreATime) {
  const config::Config c = make_config({"device.threads=1", "parallel.tp=2"});
  const RankPrograms r = build_ranks(c, 2);
  cost::CostFile file = measured_on_cpu(r, 1, cost::kMaxStageNs);
  file.crowd = {1, 1000};
  cost::Machine slow = cost::find_machine("cpu");
  slow.node.link = {1e-3, 1e6, 1e6};
  slow.network.nic = {1e-3, 1e6, 1e6};
  const Ground ground = make_ground(slow, file);
  const int64_t step_ns = SimulatedStep(c, r, ground).run().step_ns;
  EXPECT_GT(step_ns, int64_t{1'000'000'000'000});
  EXPECT_LT(double(step_ns), 9e18);
  EXPECT_GT(step_figures(c, 2, slow, step_ns).tokens_per_s_per_rank, 0);
}

// Times of another GPU are carried over by what formulas say of both, and counted as that.
TEST(SimulatedStep, CostsOfAnotherGpuAreCarriedOver) {
  const config::Config c = make_config({"model.dtype=\"bfloat16\"", "device.kind=\"cuda\""});
  const RankPrograms r = build_ranks(c, 1);
  const Ground told = make_ground(cost::find_machine("h200"));
  const SimulatedStep formula(c, r, told);
  cost::CostFile file = measured_on_cpu(r, 1, 1);
  file.machine = {.name = "host", .kind = "cuda", .cores = 8, .threads = 1, .gpu = "NVIDIA H200"};
  for (cost::CostEntry& e : file.entries) e.ns = e.low_ns = e.high_ns = 2 * 1500 + e.work.bytes / 1e3;
  const Ground same = make_ground(cost::find_machine("h200"), file);
  EXPECT_FALSE(same.costs_are_carried);
  const SimulatedStep measured(c, r, same);
  measured.run();
  EXPECT_GT(measured.pricer().sources().measured, 0);
  EXPECT_EQ(measured.pricer().sources().carried, 0);
  const Ground other = make_ground(cost::find_machine("b200"), file);
  EXPECT_TRUE(other.costs_are_carried);
  const SimulatedStep carried(c, r, other);
  carried.run();
  EXPECT_EQ(carried.pricer().sources().measured, 0);
  EXPECT_GT(carried.pricer().sources().carried, 0);
  EXPECT_LT(carried.pricer().sources().carried_ns, measured.pricer().sources().measured_ns);
  file.machine.gpu = "NVIDIA GH200 480GB";  // no word of it is H200
  const std::string said = pleat::testing::refusal([&] { make_ground(cost::find_machine("b200"), file); });
  EXPECT_NE(said.find("GH200 480GB"), std::string::npos) << said;
}

// Copies that were measured take that time.
TEST(SimulatedStep, MeasuredCopiesTakeTheirTime) {
  const config::Config c = make_config({"model.dtype=\"bfloat16\"", "device.kind=\"cuda\""});
  const RankPrograms r = build_ranks(c, 1);
  cost::CostFile file = measured_on_cpu(r, 1, 77'000);
  file.machine = {.name = "host", .kind = "cuda", .cores = 8, .threads = 1, .gpu = "NVIDIA H200"};
  const Ground ground = make_ground(cost::find_machine("h200"), file);
  const SimulatedStep step(c, r, ground);
  int copies = 0;
  for (const Stage& s : r.programs[0].stages) {
    if (r.programs[0].lanes[size_t(s.lane)].resource != "host_link" || !cost::has_cost_key(s)) continue;
    EXPECT_EQ(step.pricer()(r.programs[0], s).alone_ns(), 77'000) << stage_name(s);
    ++copies;
  }
  EXPECT_GT(copies, 0);
}

// Stores take the multiprocessors that the configuration grants them.
TEST(SimulatedStep, StoresTakeTheMultiprocessorsTheyAreGranted) {
  const cost::Machine h100 = cost::find_machine("h100");
  const Ground ground = make_ground(h100);
  for (const int sms : {0, 33}) {
    const config::Config c = on_gpus({"parallel.ep=8", fmt::format("comm.exchange_sms={}", sms)}, 8);
    const RankPrograms r = build_ranks(c, 8);
    const SimulatedStep step(c, r, ground);
    for (const Stage& s : r.programs[0].stages) {
      if (class_of(s.op) != OpClass::Store) continue;
      EXPECT_FLOAT_EQ(step.pricer()(r.programs[0], s).of(Resource::Processor),
                      sms == 0 ? float(h100.sharing.exchange) : 33.0F / float(h100.processor.units));
    }
  }
}

// The sender's way out and the receiver's way in, and nothing of the other way.
TEST(SimulatedStep, MessagesTakeOneWayOfALink) {
  const config::Config c = on_gpus({"parallel.pp=2", "model.num_layers=4"}, 2);
  const RankPrograms r = build_ranks(c, 2);
  const Ground ground = make_ground(cost::find_machine("h100"));
  const SimulatedStep step(c, r, ground);
  int messages = 0;
  for (const Program& p : r.programs)
    for (const Stage& s : p.stages) {
      if (class_of(s.op) != OpClass::Transfer) continue;
      const StageTime t = step.pricer()(p, s);
      const bool sends = kernel_of(s.op) == KernelKind::send;
      EXPECT_EQ(t.of(Resource::LinkOut) > 0, sends) << stage_name(s);
      EXPECT_EQ(t.of(Resource::LinkIn) > 0, !sends) << stage_name(s);
      ++messages;
    }
  EXPECT_GT(messages, 0);
}

}  // namespace
}  // namespace pleat::schedule
