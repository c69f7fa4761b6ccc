// What kernels say they cost, against formulas written down a second time, and for every row of the op table.
#include "cost/stage_work.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "cost/flops.h"
#include "cost/machine_file.h"
#include "cost/price.h"
#include "schedule/ranks.h"

namespace pleat::cost {
namespace {

using program::KernelKind;
using program::Phase;
using program::Program;
using program::Stage;

// The shape of the argument of that name, of routed values with the rows that even routing fills.
std::vector<int64_t> shape_named(const Program& p, const Stage& stage, std::string_view name) {
  const auto& arguments = program::arguments_of(stage.op, stage.phase);
  for (size_t i = 0; i < arguments.size(); ++i)
    if (arguments[i].name == name) {
      const program::Value& value = p.values[static_cast<size_t>(stage.uses[i].value)];
      std::vector<int64_t> shape = value.shape;
      if (value.expected_rows > 0) shape[0] = value.expected_rows;
      return shape;
    }
  ADD_FAILURE() << stage_name(stage) << " has no argument " << name;
  return {0, 0, 0};
}

double attr_named(const Program& p, const Stage& stage, std::string_view key) {
  for (const program::Attr& a : p.attrs[static_cast<size_t>(stage.attrs)])
    if (a.key == key) return a.number;
  ADD_FAILURE() << stage_name(stage) << " has no attribute " << key;
  return 0;
}

double expected_flops(const Program& p, const Stage& stage, double seq_len) {
  const bool weight = stage.phase == Phase::BackwardWeight, forward = stage.phase == Phase::Forward;
  const KernelKind kind = program::kernel_of(stage.op);
  switch (kind) {
    case KernelKind::linear:
    case KernelKind::router_gate:
    case KernelKind::grouped_linear: {
      const std::string_view from = kind == KernelKind::router_gate ? "dlogits" : "dy";
      const auto rows = shape_named(p, stage, forward ? "x" : from),
                 w = shape_named(p, stage, weight ? "dw" : "w");
      return 2.0 * double(rows[0]) * double(w[w.size() - 1]) * double(w[w.size() - 2]);
    }
    case KernelKind::attention:
    case KernelKind::context_attention:
    case KernelKind::ring_attention: {
      if (weight) return 0;
      const double steps = kind == KernelKind::ring_attention ? attr_named(p, stage, "ranks") : 1;
      const double rows = double(shape_named(p, stage, "qkv")[0]), window = attr_named(p, stage, "window"),
                   d = attr_named(p, stage, "head_dim"), dv = attr_named(p, stage, "v_head_dim");
      const double keys = std::min(seq_len / 2, window > 0 ? window : seq_len);
      return 2.0 * rows * keys / steps * attr_named(p, stage, "heads") * (forward ? d + dv : 3 * d + 2 * dv);
    }
    default:
      return 0;
  }
}

struct Layout {
  std::string name;
  int64_t ranks;
  std::vector<std::string> sets;
};

const std::vector<Layout>& layouts() {
  static const std::vector<Layout> list = {
      {"tiny", 1, {}},
      {"window and sinks", 1, {"model.sliding_window=12", "model.attention_sinks=true"}},
      {"mtp", 1, {"model.num_mtp_layers=1"}},
      {"tp2 ep4 dp2",
       8,
       {"parallel.tp=2", "parallel.ep=4", "moe.capacity_factor=1.5", "train.num_microbatches=4"}},
      {"pp2 gather", 2, {"parallel.pp=2"}},
      {"ring", 2, {"parallel.cp=2", "parallel.context=\"ring\""}},
      {"all-gather", 2, {"parallel.cp=2", "parallel.context=\"allgather\""}},
      {"all-to-all", 2, {"parallel.cp=2", "parallel.context=\"alltoall\""}},
  };
  return list;
}

std::vector<Program> programs_of(const Layout& layout) {
  const auto config =
      config::resolve(config::load(std::string(PLEAT_SOURCE_DIR) + "/configs/tiny.toml", layout.sets));
  return schedule::build_ranks(config, layout.ranks).programs;
}

TEST(StageWork, FlopsAreThoseOfTheFormulas) {
  for (const Layout& layout : layouts()) {
    SCOPED_TRACE(layout.name);
    for (const Program& p : programs_of(layout)) {
      double sum = 0;
      for (const Stage& stage : p.stages) {
        const double expected = expected_flops(p, stage, 64);
        EXPECT_EQ(stage_flops(p, stage), expected) << stage_name(stage);
        sum += expected;
      }
      EXPECT_GT(sum, 0);
      EXPECT_EQ(hardware_flops(p), sum);
    }
  }
}

TEST(HardwareFlops, ReservedRowsDoNotCount) {
  const auto of_all = [](const std::string& budget) {
    double sum = 0;
    for (const Program& p : programs_of({"", 2, {"parallel.ep=2", "moe.token_budget=" + budget}}))
      sum += hardware_flops(p);
    return sum;
  };
  const double even = of_all("1.0");
  EXPECT_EQ(of_all("1.5"), even);
  EXPECT_EQ(of_all("0"), even) << "room for all that routing could ask for";
}

TEST(StageWork, EveryStageMovesBytesAndTakesTime) {
  for (const Layout& layout : layouts()) {
    SCOPED_TRACE(layout.name);
    const std::vector<Program> programs = programs_of(layout);
    const Pricer prices({.machine = find_machine("h200")});
    for (const Program& p : programs)
      for (const Stage& stage : p.stages) {
        const kernels::Work planned = stage_work(p, stage, RoutedRows::Planned),
                            balanced = stage_work(p, stage, RoutedRows::Balanced);
        EXPECT_GT(balanced.bytes, 0) << stage_name(stage);
        EXPECT_LE(balanced.bytes, planned.bytes) << stage_name(stage);
        EXPECT_LE(balanced.flops, planned.flops) << stage_name(stage);
        EXPECT_GE(planned.launches, 1) << stage_name(stage);
        EXPECT_GT(prices(p, stage).alone_ns(), 0) << stage_name(stage);
      }
  }
}

// Sizes and attributes that fit nothing in particular: work only multiplies them.
TEST(StageWork, EveryRowOfTheTableHasACost) {
  program::AttrSet attrs;
  for (const char* key : {"heads",
                          "kv_heads",
                          "head_dim",
                          "v_head_dim",
                          "v_column",
                          "column",
                          "window",
                          "seq_len",
                          "ranks",
                          "nope_dim",
                          "rope_dim",
                          "v_dim",
                          "interleaved",
                          "experts",
                          "top_k",
                          "score",
                          "groups",
                          "group_topk",
                          "group_score_topk",
                          "scale",
                          "pre_softmax",
                          "renormalize",
                          "renormalize_single",
                          "sinkhorn",
                          "training",
                          "eps",
                          "hf",
                          "capacity",
                          "seq_coef",
                          "global_coef",
                          "micro_coef",
                          "z_coef",
                          "num_layers",
                          "pieces",
                          "pad",
                          "experts_per_rank",
                          "documents",
                          "deterministic",
                          "rotary_dim",
                          "full_norm",
                          "recipe",
                          "turned"})
    attrs.push_back({key, 1});
  const std::vector<int64_t> shape = {6, 5, 4};
  int rows = 0;
  for (int k = 0; k <= static_cast<int>(KernelKind::bias_update); ++k)
    for (const Phase phase : {Phase::Forward, Phase::BackwardInput, Phase::BackwardWeight, Phase::Update}) {
      const auto kind = static_cast<KernelKind>(k);
      const auto& arguments = program::arguments_of(kind, phase);
      if (arguments.empty()) continue;
      ++rows;
      std::vector<kernels::Arg> args;
      for (const program::Argument& a : arguments)
        args.push_back({nullptr, tensor::Dtype::F32, shape,
                        a.in_place ? program::Access::Update
                        : a.output ? program::Access::Write
                                   : program::Access::Read,
                        true});
      kernels::name_arguments(args, kind, phase);
      const kernels::Work work = kernels::work_of(kind, phase, {args, &attrs});
      if (kind == KernelKind::host_wait || kind == KernelKind::meet)  // they look at nothing, they only wait
        EXPECT_EQ(work.bytes, 0);
      else
        EXPECT_GT(work.bytes, 0) << name_of(kind) << " " << name_of(phase);
      EXPECT_GE(work.flops, 0) << name_of(kind) << " " << name_of(phase);
      EXPECT_TRUE(std::isfinite(work.flops + work.bytes)) << name_of(kind);
      EXPECT_GE(work.launches, 0) << name_of(kind);
      EXPECT_GE(kernels::scratch_of(kind, phase, {args, &attrs}, {}), 0) << name_of(kind);
    }
  EXPECT_GT(rows, 90);
}

TEST(StageWork, AnUpdateIsReadAndWritten) {
  const Program p = programs_of(layouts()[0])[0];
  std::set<program::Access> seen;
  for (const Stage& stage : p.stages) {
    if (stage.op != program::Op::attn_norm || stage.phase != Phase::BackwardWeight) continue;
    Stage other = stage;
    seen.insert(other.uses.back().access);
    const auto bytes = [&](program::Access access) {
      other.uses.back().access = access;
      return stage_work(p, other, RoutedRows::Planned).bytes;
    };
    EXPECT_EQ(bytes(program::Access::Update) - bytes(program::Access::Write), 64 * 4);
  }
  EXPECT_EQ(seen, (std::set{program::Access::Write, program::Access::Update})) << "two microbatches";
}

}  // namespace
}  // namespace pleat::cost
