// Programs of many configs: valid, printed and read back exactly, planned tightly and safely; the order of
// microbatches; the door of passes.
#include "schedule/build.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "interpret/brute_plan.h"
#include "interpret/check/check.h"
#include "interpret/print/print.h"
#include "schedule/pass/pass.h"
#include "schedule/pass/recompute.h"
#include "schedule/schedule_support.h"
#include "support/files.h"
#include "support/refusal.h"

namespace pleat::schedule {
namespace {

using namespace program;

struct Built {
  std::string what;
  Program program;
};

std::vector<Built> programs_of(const config::Config& config) {
  const auto table = model::make_parameters(config);
  std::vector<Built> out = {{"train", build_training_step(config, table)},
                            {"evaluate", build_evaluation(config, table)},
                            {"logits", build_logits(config, table)}};
  if (config.moe.num_experts > 0)
    for (const auto use : {model::RoutingUse::Record, model::RoutingUse::Replay})
      out.push_back({use == model::RoutingUse::Record ? "record" : "replay",
                     build_training_step(config, table, {use})});
  for (const Words& modules : {Words{"activation", "norm"}, Words{"layer"}})
    out.push_back({modules[0], recompute(out[0].program, {modules, {}})});
  return out;
}

class BuildTest : public ::testing::TestWithParam<Case> {};

TEST_P(BuildTest, IsValidAndComesBackFromItsText) {
  for (const auto& [what, program] : programs_of(make_config(GetParam().sets))) {
    SCOPED_TRACE(what);
    EXPECT_EQ(joined(interpret::check(program).faults), "");
    EXPECT_EQ(interpret::check(program).host_waits, 0);
    EXPECT_TRUE(interpret::parse(interpret::print(program)) == program);
  }
}

TEST_P(BuildTest, PlanIsSafeAndTight) {
  for (const auto& [what, program] : programs_of(make_config(GetParam().sets))) {
    SCOPED_TRACE(what);
    const interpret::Plan plan = interpret::plan(program);
    EXPECT_EQ(joined(interpret::check_plan(program, plan).faults), "");
    EXPECT_EQ(interpret::BruteJudge(program).fault(plan), "");
    EXPECT_GE(plan.arena_bytes, plan.live_peak_bytes);
    EXPECT_LE(double(plan.arena_bytes), 1.15 * double(plan.live_peak_bytes));
  }
}

TEST_P(BuildTest, StateLiesAtOnePlaceInAllPrograms) {
  const auto programs = programs_of(make_config(GetParam().sets));
  const interpret::Plan train = interpret::plan(programs[0].program);
  for (const auto& [what, program] : programs) {
    SCOPED_TRACE(what);
    const interpret::Plan plan = interpret::plan(program);
    EXPECT_EQ(plan.persistent_bytes, train.persistent_bytes);
    size_t count = 0;
    for (size_t i = 0; i < program.values.size(); ++i) {
      if (program.values[i].life != Life::Persistent) continue;
      ++count;
      const size_t there = static_cast<size_t>(value_named(programs[0].program, program.values[i].name));
      EXPECT_EQ(plan.offset[i], train.offset[there]) << program.values[i].name;
      EXPECT_TRUE(program.values[i] == programs[0].program.values[there]);
    }
    EXPECT_GT(count, 10u);
  }
}

INSTANTIATE_TEST_SUITE_P(Configs, BuildTest, ::testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

void expect_golden(const std::string& file, const Words& sets, const model::Mesh& mesh = {}) {
  const std::string root = PLEAT_SOURCE_DIR, path = root + "/tests/interpret/golden/" + file;
  const config::Config config = config::resolve(config::load(root + "/configs/tiny.toml", sets));
  const std::string text = interpret::print(
      build_training_step(config, model::make_parameters(config), {model::RoutingUse::Choose, mesh, {}}));
  if (std::getenv("PLEAT_REGENERATE")) std::ofstream(path, std::ios::binary) << text;
  const std::string golden = testing::read_file(path);
  if (golden == text) return;
  std::istringstream a(golden), b(text);
  std::string x, y;
  int line = 0;
  do ++line, x = y = "(end)", std::getline(a, x), std::getline(b, y);
  while (x == y && (a || b));
  ADD_FAILURE() << "the step of configs/tiny.toml is no longer what " << path << " holds; first at line "
                << line << ":\n  file: " << x << "\n  now:  " << y
                << "\nIf the change is meant, run\n  PLEAT_REGENERATE=1 build/cpu/test_schedule "
                   "--gtest_filter=Golden.*\nand read the difference before committing it.";
}

TEST(Golden, TinyTrainingStep) { expect_golden("tiny_train.txt", {}); }

TEST(Golden, TinyTrainingStepWithMultiTokenPrediction) {
  expect_golden("tiny_mtp_train.txt", {"model.num_mtp_layers=1", "train.num_microbatches=1"});
}

// Gathers and sums: in buckets, over sub-groups of owners.
TEST(Golden, TinyTrainingStepOfFourReplicas) {
  model::Mesh mesh;
  mesh.dp = 4, mesh.ep = 2, mesh.edp = 2;
  mesh.bucket_bytes = 300000, mesh.optimizer_group = 2;
  expect_golden("tiny_sharded_train.txt", {"train.num_microbatches=4"}, mesh);
}

// The place of the first stage of a phase in a microbatch.
int first(const Program& p, int microbatch, Phase phase, Op op) {
  for (size_t i = 0; i < p.stages.size(); ++i)
    if (p.stages[i].microbatch == microbatch && p.stages[i].phase == phase && p.stages[i].op == op)
      return static_cast<int>(i);
  ADD_FAILURE() << "no " << name_of(phase) << " " << name_of(op) << " of microbatch " << microbatch;
  return -1;
}

// Every depth is counted over all microbatches before a loss is weighted by it.
TEST(BuildOrder, MultiTokenPredictionIsCountedBeforeTheFirstLoss) {
  const Program p = train_program(make_config({"train.num_microbatches=3", "model.num_mtp_layers=2"}));
  size_t last_shift = 0, first_loss = p.stages.size();
  int num_shifts = 0;
  for (size_t i = 0; i < p.stages.size(); ++i) {
    if (p.stages[i].op == Op::mtp_shift) last_shift = i, ++num_shifts;
    if (p.stages[i].op == Op::loss) first_loss = std::min(first_loss, i);
  }
  EXPECT_EQ(num_shifts, 3 * 2);
  EXPECT_LT(last_shift, first_loss);
}

// Evaluation and logits are the model's own, without layers that only train.
TEST(BuildOrder, MultiTokenPredictionRunsInTrainingOnly) {
  const config::Config plain = make_config(), c = make_config({"model.num_mtp_layers=2"});
  const auto stages = [](const Program& p) { return p.stages.size(); };
  EXPECT_EQ(stages(build_evaluation(c, model::make_parameters(c))),
            stages(build_evaluation(plain, model::make_parameters(plain))));
  EXPECT_EQ(stages(build_logits(c, model::make_parameters(c))),
            stages(build_logits(plain, model::make_parameters(plain))));
}

TEST(BuildOrder, OneForwardOneBackward) {
  const Program p = train_program(make_config({"train.num_microbatches=3"}));
  for (int mb = 0; mb < 3; ++mb) {
    EXPECT_LT(first(p, mb, Phase::Forward, Op::embedding),
              first(p, mb, Phase::BackwardWeight, Op::embedding));
    if (mb > 0) {
      EXPECT_LT(first(p, mb - 1, Phase::BackwardWeight, Op::embedding),
                first(p, mb, Phase::Forward, Op::rope_table));
    }
  }
}

TEST(BuildOrder, Gpipe) {
  const Program p = train_program(make_config({"train.num_microbatches=3", "train.order=\"gpipe\""}));
  for (int mb = 0; mb < 3; ++mb) {
    // The head's backward belongs to its forward; everything below it waits for all forwards.
    EXPECT_LT(first(p, mb, Phase::BackwardWeight, Op::head),
              first(p, 0, Phase::BackwardInput, Op::final_norm));
    if (mb > 0) {
      EXPECT_LT(first(p, mb - 1, Phase::BackwardInput, Op::final_norm),
                first(p, mb, Phase::BackwardInput, Op::final_norm));
    }
  }
}

TEST(BuildOrder, GpipeKeepsEveryMicrobatchAlive) {
  const auto peak = [](const char* order, int n) {
    return interpret::plan(train_program(make_config({fmt::format("train.num_microbatches={}", n),
                                                      fmt::format("train.order=\"{}\"", order)})))
        .live_peak_bytes;
  };
  const int64_t one = peak("1f1b", 2), more = peak("1f1b", 4), all = peak("gpipe", 4);
  EXPECT_LT(more - one, (all - one) / 4) << "1f1b pays for inputs only";
}

TEST(BuildOrder, GradientsAreWrittenOnceThenSummed) {
  const Program p = train_program(make_config({"train.num_microbatches=3"}));
  const ValueId grad = value_named(p, "layers.1.experts.up.weight.grad");
  std::vector<Access> seen;
  for (const Stage& s : p.stages)
    for (const Use& use : s.uses)
      if (use.value == grad && use.access != Access::Read) seen.push_back(use.access);
  EXPECT_EQ(seen, (std::vector<Access>{Access::Write, Access::Update, Access::Update}));
}

TEST(BuildOrder, EveryGradientReachesTheOptimizerOnce) {
  for (const Case& c : cases()) {
    const config::Config config = make_config(c.sets);
    const auto table = model::make_parameters(config);
    const Program p = build_training_step(config, table);
    size_t updates = 0, owned = 0;
    for (const Stage& s : p.stages) updates += s.op == Op::adamw;
    for (const model::Parameter& parameter : table) owned += parameter.tied_to.empty();
    EXPECT_EQ(updates, owned) << c.name;
  }
}

TEST(BuildOrder, ExactGlobalAuxReadsTheCountsOfAllMicrobatches) {
  const Words exact = {"moe.load_balancing=[\"global_aux\"]", "moe.global_aux_form=\"exact\""};
  try {
    make_config(exact);
    FAIL() << "1f1b cannot know the counts of later microbatches";
  } catch (const base::Error& error) {
    EXPECT_NE(std::string(error.what()).find("train.order = \"gpipe\" (now \"1f1b\")"), std::string::npos)
        << error.what();
  }
  Words sets = exact;
  sets.push_back("train.order=\"gpipe\"");
  const Program p = train_program(make_config(sets));
  int last_count = -1, first_aux = -1;
  for (size_t i = 0; i < p.stages.size(); ++i) {
    if (p.stages[i].op == Op::router_count) last_count = static_cast<int>(i);
    if (p.stages[i].op == Op::router_aux && first_aux < 0) first_aux = static_cast<int>(i);
  }
  EXPECT_GE(last_count, 0);
  EXPECT_LT(last_count, first_aux);
}

TEST(BuildOrder, SharedExpertsRunBesideTheRouter) {
  const Program p = train_program(make_config());
  ASSERT_EQ(p.lanes.size(), 2u);
  for (const Stage& s : p.stages)
    EXPECT_EQ(s.lane == 1, region_of(s.op) == Region::SharedExperts) << stage_name(s);
  EXPECT_EQ(train_program(make_config({"moe.shared_ffn_hidden_size=0"})).lanes.size(), 1u);
}

TEST(Build, EvaluationNeitherCountsForTheBiasNorJitters) {
  const config::Config config =
      make_config({"moe.score=\"sigmoid\"", "moe.load_balancing=[\"bias\"]", "moe.input_jitter=0.1"});
  const auto table = model::make_parameters(config);
  for (const Program& p : {build_evaluation(config, table), build_logits(config, table)})
    for (const Stage& s : p.stages) {
      EXPECT_EQ(s.phase, Phase::Forward) << stage_name(s);
      EXPECT_NE(s.op, Op::jitter);
    }
}

TEST(Passes, AppliesDisablesObservesReports) {
  const config::Config config = make_config({"recompute.modules=[\"norm\"]", "recompute.layers=\"0,2\""});
  const Program plain = train_program(config);
  std::vector<PassReport> reports;
  std::vector<std::string> observed;
  Program seen;
  const Program with = apply_passes(
      plain, config, {.reports = &reports, .observe = [&](const Pass& pass, const Program& program) {
                        observed.emplace_back(pass.name);
                        EXPECT_EQ(pass.promise, Promise::Exact);
                        seen = program;
                      }});
  EXPECT_EQ(observed, Words{"recompute"});
  EXPECT_TRUE(seen == with);
  EXPECT_FALSE(with == plain);
  for (const Stage& s : with.stages) EXPECT_FALSE(s.replay && s.layer == 1) << stage_name(s);
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0].name, "recompute");
  EXPECT_EQ(reports[0].stages_before, plain.stages.size());
  EXPECT_EQ(reports[0].stages_after, with.stages.size());
  EXPECT_GT(reports[0].stages_after, reports[0].stages_before);
  EXPECT_GE(reports[0].seconds, 0);

  reports.clear();
  EXPECT_TRUE(apply_passes(plain, config, {.disabled = {"recompute"}, .reports = &reports}) == plain);
  EXPECT_TRUE(reports.empty());
  EXPECT_TRUE(apply_passes(plain, make_config()) == plain) << "nothing is asked for";
}

TEST(Passes, WaitsForBuffersAreInTheTable) {
  const config::Config config =
      make_config({"model.num_layers=4", "train.num_microbatches=4", "parallel.pp=2", "parallel.cp=4",
                   "parallel.context=\"ring\"", "train.seq_len=32"});
  const RankPrograms built = ranks_as_built(config, 8);
  for (const Program& plain : built.programs) {
    std::vector<PassReport> reports;
    const Program both = apply_passes(plain, config, {.reports = &reports});
    ASSERT_EQ(reports.size(), 2u);
    EXPECT_EQ(reports[0].name, "message_buffers");
    EXPECT_EQ(reports[1].name, "ring_buffers");
    EXPECT_EQ(both.stages.size(), plain.stages.size());
    const auto waits = [](const Program& p, bool of_ring) {
      return std::count_if(p.stages.begin(), p.stages.end(), [&](const Stage& s) {
        return !s.after.empty() && (kernel_of(s.op) == KernelKind::ring_shift) == of_ring;
      });
    };
    EXPECT_GT(waits(both, true), 0);
    EXPECT_GT(waits(both, false), 0);
    EXPECT_EQ(waits(apply_passes(plain, config, {.disabled = {"ring_buffers"}}), true), 0);
    EXPECT_EQ(waits(apply_passes(plain, config, {.disabled = {"message_buffers"}}), false), 0);
    EXPECT_TRUE(apply_passes(plain, config, {.disabled = {"message_buffers", "ring_buffers"}}) == plain);
  }
}

TEST(Passes, AFaultNamesThePassThatMadeIt) {
  const auto refusal = [](const auto& apply) { return testing::message_of(base::ExitCode::Internal, apply); };
  const config::Config config = make_config();
  const Program plain = train_program(config);
  const Pass breaks{"breaks", Promise::Exact,
                    [](const config::Config&, const Program&, program::Meeting) { return true; },
                    [](Program p, const config::Config&, program::Meeting) {
                      p.stages.back().uses.pop_back();
                      return p;
                    }};
  const std::string pass = refusal([&] { apply_pass(breaks, plain, config); });
  EXPECT_NE(pass.find("program train after pass breaks has 1 faults"), std::string::npos) << pass;
  Program broken = plain;
  broken.stages.back().uses.pop_back();
  const std::string built = refusal([&] { apply_passes(broken, config); });
  EXPECT_NE(built.find("program train as built has 1 faults"), std::string::npos) << built;
}

TEST(Passes, UnknownNameIsRefused) {
  const config::Config config = make_config();
  try {
    apply_passes(train_program(config), config, {.disabled = {"recompete"}});
    FAIL();
  } catch (const base::Error& error) {
    EXPECT_NE(std::string(error.what()).find("'recompete'"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace pleat::schedule
