// Sums of gradients and gathers of weights as stages: what is in a bucket, where it stands, what it hides
// behind, what the state costs.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/error.h"
#include "interpret/check/check.h"
#include "interpret/plan/pack.h"
#include "interpret/plan/plan.h"
#include "interpret/simulate/simulate.h"
#include "model/shard.h"
#include "model/state.h"
#include "program/shares.h"
#include "schedule/ranks.h"
#include "schedule/schedule_support.h"
#include "support/refusal.h"

namespace pleat::schedule {
namespace {

using namespace program;

const Words kDense = {"moe.num_experts=", "moe.top_k=", "moe.ffn_hidden_size=", "moe.shared_ffn_hidden_size=",
                      "model.ffn_hidden_size=48"};

model::Mesh mesh_of(int64_t tp, int64_t dp, int64_t ep, int64_t bucket_bytes, int64_t owners = 0) {
  model::Mesh m;
  m.tp = tp, m.dp = dp, m.ep = ep, m.edp = tp * dp / ep;
  m.bucket_bytes = bucket_bytes, m.optimizer_group = owners;
  return m;
}

Program build(const config::Config& c, const model::Mesh& mesh) {
  return build_training_step(c, model::make_parameters(c), {model::RoutingUse::Choose, mesh, {}});
}

bool sums(const Stage& s) {
  return s.op == Op::grad_pack || s.op == Op::grad_reduce || s.op == Op::share_reduce;
}
bool gathers(const Stage& s) {
  return s.op == Op::weight_pack || s.op == Op::weight_gather || s.op == Op::bucket_gather ||
         s.op == Op::weight_unpack;
}

// The norms' gradients wide among narrow ones, those of experts narrow among wide ones: what is summed together is of
// one format, and nothing is lost.
TEST(Buckets, HoldGradientsOfOneFormat) {
  const Words narrow = {"model.dtype=bfloat16", "device.kind=cuda", "train.num_microbatches=4"};
  for (const Words& own : {Words{"optimizer.grad_dtype=bfloat16", "optimizer.groups.norm.grad_dtype=float32"},
                           Words{"optimizer.groups.experts.grad_dtype=bfloat16"}}) {
    Words sets = narrow;
    sets.insert(sets.end(), own.begin(), own.end());
    const config::Config c = make_config(sets);
    const auto table = model::make_parameters(c);
    const Program p = build(c, mesh_of(1, 4, 2, int64_t{1} << 30));
    std::set<tensor::Dtype> seen;
    size_t summed = 0;
    for (const Stage& stage : p.stages) {
      if (!sums(stage)) continue;
      std::set<tensor::Dtype> here;
      for (const Use& use : stage.uses) {
        const Value& v = p.values[static_cast<size_t>(use.value)];
        here.insert(v.dtype);
        summed += v.name.ends_with(".grad");
      }
      EXPECT_EQ(here.size(), 1u) << stage_name(stage);
      seen.insert(here.begin(), here.end());
    }
    EXPECT_EQ(seen, (std::set<tensor::Dtype>{tensor::Dtype::F32, tensor::Dtype::BF16}));
    EXPECT_EQ(summed, table.size());
    for (const model::Parameter& parameter : table) {
      const bool experts = parameter.parameter_class == model::ParameterClass::Experts,
                 norm = parameter.parameter_class == model::ParameterClass::Norm;
      EXPECT_EQ(model::gradient_format(c, parameter) == tensor::Dtype::BF16,
                own.size() == 2 ? !norm : experts)
          << parameter.name;
    }
  }
}

TEST(Buckets, HoldEveryGradientOnceAndNoMoreThanTheyMay) {
  const config::Config c = make_config({"train.num_microbatches=4"});
  const auto table = model::make_parameters(c);
  size_t most = 0, fewest = 1000;
  for (const int64_t limit : {int64_t{0}, int64_t{9000}, int64_t{30000}, int64_t{1} << 30}) {
    const model::Mesh mesh = mesh_of(2, 4, 2, limit);
    const Program p = build(c, mesh);
    std::multiset<std::string> summed;
    std::map<std::string, size_t> complete;  // gradient -> where it is taken
    size_t reduces = 0;
    for (size_t s = 0; s < p.stages.size(); ++s) {
      const Stage& stage = p.stages[s];
      reduces += stage.op == Op::grad_reduce;
      if (!sums(stage)) continue;
      EXPECT_EQ(p.lanes[static_cast<size_t>(stage.lane)].name, "reduce");
      int64_t bytes = 0;
      size_t taken = 0;
      for (const Use& use : stage.uses) {
        const Value& v = p.values[static_cast<size_t>(use.value)];
        if (!v.name.ends_with(".grad")) continue;
        summed.insert(v.name);
        complete[v.name] = s;
        ++taken;
      }
      if (stage.op == Op::grad_pack) {
        bytes = num_bytes(p.values[static_cast<size_t>(stage.uses.back().value)]);
        EXPECT_LE(bytes, limit);
        EXPECT_GT(taken, 1u);
      }
    }
    EXPECT_EQ(summed.size(), table.size());
    for (const model::Parameter& t : table) EXPECT_EQ(summed.count(t.name + ".grad"), 1u) << t.name;
    for (size_t s = 0; s < p.stages.size(); ++s)
      for (const Use& use : p.stages[s].uses) {
        if (use.value == kNoValue || use.access == Access::Read) continue;
        const auto taken = complete.find(p.values[static_cast<size_t>(use.value)].name);
        if (taken == complete.end()) continue;
        EXPECT_LT(s, taken->second) << "written behind its sum: " << taken->first;
      }
    // Experts, tensor-cut and replicated weights have different owners.
    if (limit == 0 || limit > 1 << 20) {
      EXPECT_EQ(reduces, limit == 0 ? table.size() : 3u);
    }
    most = std::max(most, reduces), fewest = std::min(fewest, reduces);
    EXPECT_EQ(joined(interpret::check(p).faults), "");
  }
  EXPECT_GT(most, fewest);
}

TEST(Buckets, StandBehindTheirLastGradientAndBeforeTheNextLayer) {
  const config::Config c = make_config({"train.num_microbatches=4", "model.num_layers=3"});
  const Program p = build(c, mesh_of(1, 4, 1, 0));
  int last_layer = 3;
  for (const Stage& s : p.stages) {
    if (s.phase != Phase::Forward && s.phase != Phase::Update && s.microbatch == 0 && s.layer >= 0)
      last_layer = s.layer;
    if (s.op != Op::grad_reduce || s.microbatch < 0) continue;
    const std::string& name = p.values[static_cast<size_t>(s.uses[0].value)].name;
    if (!name.starts_with("layers.")) continue;
    EXPECT_EQ(name[7] - '0', last_layer) << name;
  }
  EXPECT_EQ(last_layer, 0);
}

TEST(Gathers, BeginTheStepAndOrderWhatReadsThemByDataAlone) {
  const config::Config c = make_config({"train.num_microbatches=4"});
  for (const int64_t limit : {int64_t{0}, int64_t{1} << 30}) {
    const Program p = build(c, mesh_of(2, 4, 2, limit));
    const Order order(p);
    std::map<ValueId, StageId> gathered;
    for (size_t s = 0; s < p.stages.size(); ++s) {
      const Stage& stage = p.stages[s];
      if (gathers(stage)) {
        EXPECT_EQ(p.lanes[static_cast<size_t>(stage.lane)].name, "gather");
        EXPECT_EQ(stage.microbatch, -1);
        for (const Use& use : stage.uses)
          if (use.access == Access::Update) gathered[use.value] = static_cast<StageId>(s);
        continue;
      }
      for (const Use& use : stage.uses) {
        const auto found = gathered.find(use.value);
        if (found == gathered.end()) continue;
        EXPECT_TRUE(order.before(found->second, static_cast<StageId>(s))) << stage_name(stage);
      }
    }
    EXPECT_EQ(gathered.size(), model::make_parameters(c).size());
    EXPECT_TRUE(gathers(p.stages[0]) || gathers(p.stages[1]));
  }
}

// A layer takes `forward` and `backward`; one message of each layer takes `gather` and `reduce`. Nothing else
// takes time. Messages wait for each other, layers wait for each other, and a message overlaps every layer
// but its own: first + (layers - 1) x the slower + last.
TEST(Overlap, GathersHideUnderForwardAndSumsUnderBackward) {
  constexpr int kLayers = 5;
  Words sets = kDense;
  sets.insert(sets.end(), {fmt::format("model.num_layers={}", kLayers), "train.num_microbatches=4"});
  const config::Config c = make_config(sets);
  const std::vector<Program> programs = {build(c, mesh_of(1, 4, 1, 0))};
  const interpret::Network network = interpret::network_of_roles(programs);
  struct Times {
    int64_t forward, gather, backward, reduce;
  };
  for (const Times& t : {Times{1000, 0, 3000, 0}, Times{1000, 700, 3000, 2000}, Times{1000, 1000, 3000, 3000},
                         Times{1000, 4000, 3000, 5000}}) {
    const auto duration = [&](const Program& p, const Stage& s) -> int64_t {
      const auto touches = [&](const char* suffix) {
        for (const Use& use : s.uses)
          if (use.value != kNoValue && p.values[static_cast<size_t>(use.value)].name.ends_with(suffix))
            return true;
        return false;
      };
      if (s.op == Op::weight_gather) return touches(".attn_norm.weight") ? t.gather : 0;
      if (s.op == Op::grad_reduce) return touches(".mlp.down.weight.grad") ? t.reduce : 0;
      if (s.op == Op::attn_norm && s.phase == Phase::Forward) return t.forward;
      if (s.op == Op::mlp_down && s.phase == Phase::BackwardInput) return t.backward;
      return 0;
    };
    const int64_t step = interpret::simulate(network, duration).step_ns;
    EXPECT_EQ(step, t.gather + (kLayers - 1) * std::max(t.forward, t.gather) + t.forward + t.backward +
                        (kLayers - 1) * std::max(t.backward, t.reduce) + t.reduce);
    const int64_t one_after_the_other = kLayers * (t.forward + t.gather + t.backward + t.reduce);
    EXPECT_EQ(step<one_after_the_other, t.gather> 0);
  }
}

// A lane's messages follow each other: one buffer is enough for all of a kind, also where values are planned
// by turns and not one by one.
TEST(Buckets, BuffersOfMessagesShareBytes) {
  const config::Config c = make_config({"train.num_microbatches=8", "model.num_layers=4"});
  const Program p = build(c, mesh_of(2, 4, 2, 9000));
  std::set<ValueId> during_backward;
  for (const Stage& s : p.stages)
    if (s.op == Op::grad_pack && s.microbatch >= 0) during_backward.insert(s.uses.back().value);
  ASSERT_GT(during_backward.size(), 3u);
  const interpret::Plan plan = interpret::plan(p, interpret::Packing::Frames);
  EXPECT_EQ(joined(interpret::check_plan(p, plan).faults), "");
  int64_t lowest = plan.arena_bytes, highest = 0, largest = 0;
  for (const ValueId v : during_backward) {
    const int64_t bytes = padded(num_bytes(p.values[static_cast<size_t>(v)]));
    lowest = std::min(lowest, plan.offset[static_cast<size_t>(v)]);
    highest = std::max(highest, plan.offset[static_cast<size_t>(v)] + bytes);
    largest = std::max(largest, bytes);
  }
  EXPECT_EQ(highest - lowest, largest);
}

TEST(Owners, StateCostsAShareOfASubGroup) {
  std::map<int64_t, int64_t> optimizer;
  for (const int64_t owners : {0, 1, 2, 4, 8, 16}) {
    const RankPrograms r =
        build_ranks(make_config({"model.vocab_size=64", "train.num_microbatches=8", "parallel.ep=2",
                                 fmt::format("parallel.optimizer_group={}", owners)}),
                    8);
    const config::Config c = make_config({"model.vocab_size=64", "parallel.ep=2"});
    const interpret::Plan plan = interpret::plan(r.programs[0]);
    int64_t expected = 0;
    for (const model::Parameter& p : model::make_parameters(c)) {
      const bool expert = p.name.find(".experts.") != std::string::npos;
      const int64_t replicas = expert ? 4 : 8, n = owners == 0 ? replicas : std::min(replicas, owners);
      const int64_t elements = model::num_elements(p) / (expert ? 2 : 1);
      expected += 2 * padded((elements + n - 1) / n * 4);
    }
    EXPECT_EQ(plan.at_peak[static_cast<size_t>(Owner::Optimizer)], expected) << owners;
    optimizer[owners] = expected;
    EXPECT_EQ(joined(interpret::check_plan(r.programs[0], plan).faults), "");
  }
  EXPECT_EQ(optimizer[0], optimizer[8]);
  EXPECT_EQ(optimizer[8], optimizer[16]);
  EXPECT_GT(optimizer[1], optimizer[2]);
  EXPECT_GT(optimizer[2], optimizer[4]);
}

// The states of an optimizer lie as its table says: format, and shares that begin with a unit.
TEST(Owners, StatesFollowTheirFormatsAndUnits) {
  const config::Config c = make_config({"train.num_microbatches=4", "optimizer.moment1_dtype=\"bfloat16\""});
  std::vector<model::Parameter> table = model::make_parameters(c);
  const model::Mesh mesh = mesh_of(1, 4, 2, int64_t{1} << 30);
  for (model::Parameter& p : table) p.unit = 40;
  const Program p = build_training_step(c, table, {model::RoutingUse::Choose, mesh, {}});
  EXPECT_EQ(joined(interpret::check(p).faults), "");
  for (const model::Parameter& parameter : table) {
    const model::Ownership own = model::ownership(parameter, mesh);
    EXPECT_TRUE(own.share % 40 == 0 || own.share == own.elements) << parameter.name;
    const std::pair<const char*, tensor::Dtype> states[] = {{".moment1", tensor::Dtype::BF16},
                                                            {".moment2", tensor::Dtype::F32}};
    for (const auto& [name, format] : states) {
      const Value& v = p.values[static_cast<size_t>(value_named(p, parameter.name + name))];
      EXPECT_EQ(v.dtype, format) << v.name;
      EXPECT_EQ(v.shape, std::vector<int64_t>{own.share}) << v.name;
      EXPECT_EQ(v.space, Space::Device) << v.name;
    }
  }
  for (const Stage& s : p.stages)
    EXPECT_TRUE(s.op != Op::grad_pack && s.op != Op::weight_pack) << stage_name(s);
}

TEST(Owners, AGroupThatDoesNotDivideIsRefusedWithTheEquation) {
  const auto refused = [](int ranks, Words sets) {
    return testing::message_of([&] { build_ranks(make_config(sets), ranks); });
  };
  EXPECT_EQ(
      refused(8, {"model.vocab_size=64", "train.num_microbatches=8", "parallel.optimizer_group=3"}),
      "parallel.optimizer_group = 3 does not divide the replicas of dense weights, dp x cp = 8 x 1 = 8: "
      "8 / 3 = 2.667. Nearest that do: 2 and 4");
  EXPECT_EQ(
      refused(12, {"model.vocab_size=64", "train.num_microbatches=6", "parallel.ep=2", "parallel.tp=2",
                   "parallel.optimizer_group=4"}),
      "parallel.optimizer_group = 4 does not divide the replicas of dense weights, dp x cp = 6 x 1 = 6: "
      "6 / 4 = 1.5. Nearest that do: 3 and 6");
  EXPECT_EQ(refused(8, {"model.vocab_size=64", "train.num_microbatches=8", "parallel.ep=2",
                        "parallel.optimizer_group=8"}),
            "");
}

}  // namespace
}  // namespace pleat::schedule
