// What tells two stages apart, and what does not.
#include "cost/stage_key.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "cost/stage_work.h"
#include "schedule/ranks.h"
#include "support/small_models.h"

namespace pleat::cost {
namespace {

config::Config keyed_config(const std::vector<std::string>& sets) {
  return config::resolve(config::load(std::string(PLEAT_SOURCE_DIR) + "/configs/tiny.toml", sets));
}

program::Program keyed_program(const std::vector<std::string>& sets, int64_t ranks = 1) {
  return schedule::build_ranks(keyed_config(sets), ranks).programs.at(0);
}

std::set<StageKey> keys_of(const program::Program& p) {
  std::set<StageKey> out;
  for (const program::Stage& stage : p.stages)
    if (has_cost_key(stage)) out.insert(stage_key(p, stage));
  return out;
}

// The key of the first stage of that operation and phase.
StageKey key_named(const program::Program& p, program::Op op, program::Phase phase) {
  for (const program::Stage& stage : p.stages)
    if (stage.op == op && stage.phase == phase) return stage_key(p, stage);
  ADD_FAILURE() << "no stage " << name_of(op);
  return {};
}

TEST(StageKey, SaysKernelPhaseTypesAccessAndSizes) {
  const config::Config c = keyed_config({});
  const program::Program p = schedule::build_ranks(c, 1).programs.at(0);
  const StageKey up = key_named(p, program::Op::qkv, program::Phase::Forward);
  const int64_t T = c.train.micro_batch * c.train.seq_len, h = c.model.hidden_size,
                out = (c.model.num_heads + 2 * c.model.num_kv_heads) * c.model.head_dim;
  EXPECT_EQ(up.kind, "linear fwd f32 f32 - - f32");
  EXPECT_EQ(up.dims, (std::vector<int64_t>{T, h, out, h, T, out}));
  bool adds = false, overwrites = false;  // gradients of several microbatches
  for (const StageKey& key : keys_of(keyed_program({"train.num_microbatches=2"}))) {
    adds |= key.kind == "linear wgrad f32 f32 f32+ -";
    overwrites |= key.kind == "linear wgrad f32 f32 f32 -";
  }
  EXPECT_TRUE(adds);
  EXPECT_TRUE(overwrites);
}

TEST(StageKey, LayersAndMicrobatchesShareKeys) {
  const std::set<StageKey> few = keys_of(keyed_program({"model.num_layers=4", "train.num_microbatches=2"})),
                           many = keys_of(keyed_program({"model.num_layers=6", "train.num_microbatches=4"}));
  for (const StageKey& key : many) {
    // What lists a step's parameters or layers grows with them.
    if (key.kind.starts_with("clip ") || key.kind.starts_with("bias_update ")) continue;
    EXPECT_TRUE(few.contains(key)) << key.kind;
  }
}

TEST(StageKey, NumbersThatAreOnlyComputedWithDoNotMatter) {
  EXPECT_EQ(keys_of(keyed_program({"model.norm_eps=1e-3", "optimizer.weight_decay=0.3", "train.seed=9"})),
            keys_of(keyed_program({})));
}

TEST(StageKey, RoutedRowsAreThoseOfEvenRouting) {
  const auto rows = [](const char* budget) {
    return key_named(keyed_program({"parallel.ep=2", std::string("moe.token_budget=") + budget}, 2),
                     program::Op::expert_up, program::Phase::Forward);
  };
  EXPECT_EQ(rows("1.0"), rows("1.5"));
}

TEST(StageKey, SizesOfAttributesAreDims) {
  const StageKey at = key_named(keyed_program({}), program::Op::attention, program::Phase::Forward),
                 longer = key_named(keyed_program({"train.seq_len=32", "train.micro_batch=8"}),
                                    program::Op::attention, program::Phase::Forward);
  EXPECT_EQ(at.kind, longer.kind);
  EXPECT_EQ(at.dims.size(), longer.dims.size());
  EXPECT_NE(at.dims, longer.dims);
  const StageKey windowed =
      key_named(keyed_program({"model.sliding_window=12"}), program::Op::attention, program::Phase::Forward);
  EXPECT_NE(at.kind, windowed.kind) << "no window is another path than any window";
}

// Equal keys, equal work: whatever a contract counts is in the key. And no attribute was forgotten.
TEST(StageKey, EqualKeysDoEqualWork) {
  struct Layout {
    int64_t ranks;
    std::vector<std::string> sets;
  };
  const Layout layouts[] = {
      {1, {}},
      {1, {"model.sliding_window=12", "model.attention_sinks=true", "model.num_mtp_layers=1"}},
      {8, {"parallel.tp=2", "parallel.ep=4", "moe.capacity_factor=1.5", "train.num_microbatches=4"}},
      {2, {"parallel.ep=2", "parallel.exchange=\"windows\""}},
      {2, {"parallel.pp=2"}},
      {2, {"parallel.cp=2", "parallel.context=\"ring\""}},
      {2, {"parallel.cp=2", "parallel.context=\"allgather\""}},
      {2, {"parallel.cp=2", "parallel.context=\"alltoall\""}},
  };
  std::map<StageKey, kernels::Work> seen;
  int stores = 0, exchanges = 0;
  for (const Layout& layout : layouts)
    for (const program::Program& p : schedule::build_ranks(keyed_config(layout.sets), layout.ranks).programs)
      for (const program::Stage& stage : p.stages) {
        stores += program::class_of(stage.op) == program::OpClass::Store;
        exchanges += program::is_exchange(stage.op);
        for (const program::Attr& a : p.attrs[static_cast<size_t>(stage.attrs)])
          EXPECT_TRUE(attr_is_listed(a.key)) << a.key << " of " << stage_name(stage);
        if (!has_cost_key(stage)) {
          EXPECT_TRUE(program::is_exchange(stage.op) ||
                      program::class_of(stage.op) == program::OpClass::Store ||
                      program::class_of(stage.op) == program::OpClass::Host);
          continue;
        }
        const kernels::Work work = stage_work(p, stage, RoutedRows::Balanced);
        const auto [at, is_new] = seen.emplace(stage_key(p, stage), work);
        if (is_new) continue;
        EXPECT_EQ(at->second.flops, work.flops) << stage_name(stage);
        EXPECT_EQ(at->second.bytes, work.bytes) << stage_name(stage);
        EXPECT_EQ(at->second.launches, work.launches) << stage_name(stage);
      }
  EXPECT_GT(seen.size(), 100u);
  EXPECT_GT(stores, 0);
  EXPECT_GT(exchanges, 0);
}

}  // namespace
}  // namespace pleat::cost
