// Offload is exact: every module alone, mixtures of them and mixtures with recompute give the bits of a run without it,
// step after step, whatever the lanes' timing, with dead memory overwritten.
#include <gtest/gtest.h>

#include "interpret/check/check.h"
#include "schedule/build.h"
#include "schedule/pass/offload.h"
#include "schedule/pass/recompute.h"
#include "train/train_support.h"

namespace pleat::train::testing {
namespace {

using Sets = std::vector<std::string>;

std::string state_after(const program::Program& p, const config::Config& c, const runtime::Programs& start,
                        int num_steps, const interpret::RunOptions& options = {}) {
  Runtime bound(p, 2);
  copy_state(start, bound);
  for (int step = 1; step <= num_steps; ++step) {
    write_random_batch(bound.executor(), c, step);
    bound.executor().run(options);
  }
  return digest(snapshot(bound));
}

config::Config offload_config(const Sets& more = {}) {
  Sets sets = {"model.dtype=\"float32\"",      "model.num_layers=3",
               "model.leading_dense_layers=1", "model.ffn_hidden_size=20",
               "model.qk_norm=true",           "moe.shared_ffn_hidden_size=8",
               "moe.score=\"sigmoid\"",        "moe.load_balancing=[\"aux\",\"bias\"]",
               "moe.aux_coef=[0.01]",          "moe.input_jitter=0.05"};
  sets.insert(sets.end(), more.begin(), more.end());
  return small_config("", sets);
}

struct Mixture {
  Sets offloaded, recomputed;
};

const std::vector<Mixture>& mixtures() {
  static const std::vector<Mixture> all = {
      {{"attn_norm", "mlp_norm"}, {}},
      {{"qkv", "core_attention", "attn_out"}, {}},
      {{"expert_up", "activation"}, {}},
      {{"attn_norm", "qkv", "core_attention", "attn_out", "mlp_norm", "expert_up", "activation"}, {}},
      {{"attn_norm"}, {"layer"}},
      {{"layer"}, {"experts"}},
      {{"layer"}, {"norm", "core_attention"}},
      {{"attn_norm", "mlp_norm"}, {"norm"}},
      {{"expert_up"}, {"activation", "shared_experts"}},
      {{"core_attention", "mlp_norm"}, {"norm", "experts", "shared_experts"}},
      {{"qkv", "expert_up", "activation"}, {"core_attention"}},
  };
  return all;
}

program::Program mixed(program::Program p, const Mixture& m, schedule::OffloadOptions options = {}) {
  if (!m.recomputed.empty()) p = schedule::recompute(std::move(p), {m.recomputed, {}});
  options.modules = m.offloaded;
  return schedule::offload(std::move(p), options);
}

struct OffloadRun {
  explicit OffloadRun(const config::Config& c) : config(c), start(c, train_only()) {
    start.initialize();
    plain = schedule::build_training_step(c, start.table());
  }
  config::Config config;
  runtime::Programs start;
  program::Program plain;
};

}  // namespace

TEST(Offload, ModulesAndMixturesAreBitwiseEqualOverFourSteps) {
  const OffloadRun run(offload_config());
  const std::string expected = state_after(run.plain, run.config, run.start, 4);
  std::vector<Mixture> all = mixtures();
  for (const std::string_view module : schedule::offload_modules())
    all.push_back({{std::string(module)}, {}});
  all.push_back({{"layer"}, {}});
  for (const Mixture& m : all) {
    SCOPED_TRACE(fmt::format("{} beside {}", fmt::join(m.offloaded, "+"), fmt::join(m.recomputed, "+")));
    for (const int64_t keep_last : {0, 1}) {
      schedule::OffloadOptions options;
      options.keep_last = keep_last, options.ahead = 1 + keep_last;
      ASSERT_EQ(state_after(mixed(run.plain, m, options), run.config, run.start, 4), expected);
    }
  }
}

// Lanes are threads with random pauses, and what is dead is overwritten at once, in both spaces.
TEST(Offload, NeitherTimingNorDeadMemoryMatters) {
  for (const Sets& sets : {Sets{"model.num_mtp_layers=1", "moe.shared_gate=true"},
                           Sets{"train.order=\"gpipe\"", "train.num_microbatches=3"}}) {
    const OffloadRun run(offload_config(sets));
    const std::string expected = state_after(run.plain, run.config, run.start, 2);
    for (const size_t m : {size_t{3}, size_t{4}, size_t{5}}) {
      const program::Program p = mixed(run.plain, mixtures()[m]);
      for (const uint64_t seed : {0, 1})
        ASSERT_EQ(state_after(p, run.config, run.start, 2, {.delay_seed = seed, .poison = true}), expected)
            << fmt::format("{} beside {}, seed {}", fmt::join(mixtures()[m].offloaded, "+"),
                           fmt::join(mixtures()[m].recomputed, "+"), seed);
      ASSERT_EQ(state_after(p, run.config, run.start, 2, {.in_order = true}), expected);
    }
  }
}

TEST(Offload, EveryKindOfModel) {
  const std::vector<Sets> models = {
      {"model.num_kv_heads=4"},
      {"model.num_kv_heads=1", "model.qk_norm=false", "model.attention_sinks=true", "model.sliding_window=4"},
      {"model.attention=\"mla\"", "model.q_lora_rank=12", "model.kv_lora_rank=8", "model.qk_nope_head_dim=8",
       "model.qk_rope_head_dim=4", "model.v_head_dim=6",
       "model.num_kv_heads=", "model.head_dim=", "model.qk_norm="},
      {"model.num_mtp_layers=2", "model.tie_embeddings=true"},
      {"moe.shared_gate=true", "moe.expert_bias=true", "model.qkv_bias=true", "model.attn_out_bias=true"},
      {"moe.load_balancing=[\"global_aux\"]", "moe.global_aux_form=\"exact\"", "train.order=\"gpipe\"",
       "train.num_microbatches=3"},
      {"moe.capacity_factor=1.0", "moe.drop_policy=\"position\""},
  };
  for (const Sets& sets : models) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(sets, " ")));
    const OffloadRun run(offload_config(sets));
    const std::string expected = state_after(run.plain, run.config, run.start, 3);
    for (const size_t m : {size_t{3}, size_t{4}, size_t{6}})
      ASSERT_EQ(state_after(mixed(run.plain, mixtures()[m]), run.config, run.start, 3), expected) << m;
    ASSERT_EQ(state_after(mixed(run.plain, {{"layer"}, {}}), run.config, run.start, 3), expected);
  }
}

// A copy that nobody waits for: where the plan gives its bytes away, some timing shows it.
TEST(Offload, APlantedMissingWaitIsCaught) {
  const OffloadRun run(offload_config({"model.num_layers=6", "train.num_microbatches=1"}));
  // Numbers alone: with wrong tables of rows a step would not come to its end.
  const program::Program p = mixed(run.plain, {{"attn_norm", "qkv", "core_attention", "mlp_norm"}, {}});
  const interpret::Plan plan = interpret::plan(p);
  program::Program planted = p;
  for (program::Stage& s : planted.stages)
    if (s.op != program::Op::fetch) s.after.clear();
  EXPECT_FALSE(interpret::check_plan(planted, plan).ok());
  const auto outcome = [&](const program::Program& program, uint64_t seed) {
    device::Pool pool(1);
    device::Arena arena(plan.arena_bytes), pinned(plan.pinned.arena_bytes);
    arena.fill_pattern(), pinned.fill_pattern();
    interpret::Executor executor(program, plan, {arena.data(), pinned.data()}, pool);
    for (const checkpoint::TensorRef& t : run.start.tensors())
      std::memcpy(executor.data(t.name), t.bytes.host().data(), t.bytes.host().size());
    const auto inv_freq = executor.find("rope.inv_freq");
    std::memcpy(executor.data(inv_freq),
                run.start.arena().data() + run.start.train_plan().plan.offset[size_t(inv_freq)],
                size_t(program::num_bytes(program.values[size_t(inv_freq)])));
    write_random_batch(executor, run.config, 1);
    // Copies last: the lane of the copies out is held up at each of them.
    std::vector<int64_t> least(program.stages.size(), 0);
    for (size_t s = 0; s < least.size(); ++s)
      if (program.stages[s].op == program::Op::offload) least[s] = 300'000;
    executor.run({.delay_seed = seed, .least_ns = least});
    Snapshot out;
    for (const checkpoint::TensorRef& t : run.start.tensors()) {
      const auto* data = static_cast<const std::byte*>(executor.data(t.name));
      out[t.name].assign(data, data + t.bytes.size());
    }
    return digest(out);
  };
  const std::string expected = outcome(p, 0);
  EXPECT_EQ(outcome(p, 1), expected);
  int caught = 0;
  for (const uint64_t seed : {0, 1, 2}) caught += outcome(planted, seed) != expected;
  EXPECT_GT(caught, 0);
}

// What simulate overlaps, a run overlaps: copies are under way on lanes of their own while the model computes.
TEST(Offload, TheMeasuredTimelineShowsCopiesBesideTheWork) {
  const OffloadRun run(offload_config({"train.num_microbatches=1"}));
  Runtime bound(mixed(run.plain, {{"attn_norm", "core_attention", "mlp_norm"}, {}}), 2);
  copy_state(run.start, bound);
  write_random_batch(bound.executor(), run.config, 1);
  const program::Program& p = bound.program();
  std::vector<int64_t> least(p.stages.size(), 0);
  const auto is_copy = [](const program::Stage& s) {
    return s.op == program::Op::offload || s.op == program::Op::fetch;
  };
  for (size_t s = 0; s < least.size(); ++s) {
    if (is_copy(p.stages[s])) least[s] = 2'000'000;
    if (p.stages[s].op == program::Op::attention) least[s] = 1'000'000;
  }
  bound.executor().run({.timing = true, .least_ns = least});
  const interpret::Timeline& timeline = bound.executor().timeline();
  std::map<std::string, int> beside;  // by lane of the copy: pairs that were under way at once
  for (const interpret::Span& copy : timeline.spans) {
    const program::Stage& stage = p.stages[size_t(copy.stage)];
    if (!is_copy(stage)) continue;
    for (const interpret::Span& work : timeline.spans)
      if (p.stages[size_t(work.stage)].op == program::Op::attention && work.start_ns < copy.end_ns &&
          copy.start_ns < work.end_ns)
        ++beside[p.lanes[size_t(stage.lane)].name];
  }
  EXPECT_GT(beside["d2h"], 0);
  EXPECT_GT(beside["h2d"], 0);
  EXPECT_EQ(beside.size(), 2u);
}

// Through the door every run takes, with the keys of a user.
TEST(Offload, ARunWithTheKeysPlansBothSpaces) {
  const Sets keys = {"offload.modules=[\"attn_norm\",\"expert_up\"]", "offload.min_bytes=0"};
  runtime::Programs plain(offload_config(), train_only()), moved(offload_config(keys), train_only());
  plain.initialize(), moved.initialize();
  EXPECT_EQ(plain.train_plan().plan.pinned.arena_bytes, 0);
  EXPECT_GT(moved.train_plan().plan.pinned.arena_bytes, 0);
  for (int step = 1; step <= 3; ++step)
    for (runtime::Programs* p : {&plain, &moved}) {
      write_random_batch(p->train(), offload_config(), step);
      p->train().run();
    }
  EXPECT_EQ(digest(snapshot(plain)), digest(snapshot(moved)));
}

}  // namespace pleat::train::testing
