// What can be planned runs: random configurations, a few keys of the schema at a time, are judged as `pleat
// plan` judges and started as `pleat train` starts. Accepted ones train two steps; the others are refused by
// both, in the same words.
#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "base/rng.h"
#include "config/schema.h"
#include "interpret/check/check.h"
#include "interpret/plan/plan.h"
#include "runtime/programs.h"
#include "schedule/ranks.h"
#include "support/refusal.h"
#include "train/feed.h"
#include "train/launch.h"

namespace pleat::train {
namespace {

const char* const kMoeModel = R"(
[model]
vocab_size = 40
hidden_size = 32
num_layers = 2
num_heads = 4
num_kv_heads = 2
ffn_hidden_size = 16
leading_dense_layers = 1
[moe]
num_experts = 4
ffn_hidden_size = 8
[train]
micro_batch = 2
num_microbatches = 4
seq_len = 8
[device]
threads = 1
)";
const char* const kDenseModel = R"(
[model]
vocab_size = 40
hidden_size = 16
num_heads = 2
num_layers = 4
ffn_hidden_size = 16
[train]
num_microbatches = 4
seq_len = 8
[device]
threads = 1
)";

class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed, base::RandomUse::Test, 7, 0) {}
  int64_t below(int64_t n) { return static_cast<int64_t>(random_.uniform(next_++) * static_cast<double>(n)); }
  template <class T>
  const T& of(const std::vector<T>& list) {
    return list[static_cast<size_t>(below(static_cast<int64_t>(list.size())))];
  }

 private:
  base::RandomStream random_;
  uint64_t next_ = 0;
};

// Texts with a grammar of their own, and numbers that must not be large here.
const std::map<std::string, std::vector<std::string>>& special_values() {
  static const std::map<std::string, std::vector<std::string>> values = {
      {"recompute.layers", {"\"all\"", "\"0\"", "\"0-1\"", "\"1\"", "\"0,7\""}},
      {"offload.layers", {"\"all\"", "\"0\"", "\"0-1\"", "\"1\"", "\"0,7\""}},
      {"parallel.order", {"\"tp-cp-ep-dp-pp\"", "\"tp-cp-ep-pp-dp\"", "\"tp-cp\""}},
      {"parallel.pipeline_layout", {"\"Et|tL\"", "\"EttL\"", "\"Et|tt\"", "\"Ettt|tL\""}},
      {"model.moe_layer_freq", {"1", "2", "[0, 1]", "[1, 1]", "[0, 0]"}},
      {"model.window_layers", {"[1]", "[0, 1]"}},
      {"model.hidden_size", {"16", "24", "33", "1056"}},
      {"model.head_dim", {"0", "6", "8", "512"}},
      {"model.num_layers", {"1", "2", "3", "4"}},
      {"model.vocab_size", {"0", "37", "300"}},
      {"moe.num_experts", {"0", "2", "4", "6", "8192"}},
      {"moe.num_groups", {"0", "1", "2", "33"}},
      {"moe.aux_coef", {"0.01", "[0.01, 0.02]", "[0.0]"}},
      {"train.seq_len", {"4", "8", "12", "24"}},
      {"comm.timeout", {"0.0", "120.0"}},
      {"train.micro_batch", {"1", "2", "3"}},
      {"train.num_microbatches", {"1", "2", "4", "6"}},
      {"train.loss_chunk", {"0", "3", "7", "4096"}},
      {"precision.recipe", {"\"none\"", "\"fp8\""}},  // the others can only be planned
      {"data.weights", {"[1.0]"}},
      {"data.sources", {"[\"a\"]"}},
  };
  return values;
}

std::string value_of(const config::Key& key, Draw& draw) {
  if (const auto found = special_values().find(key.path); found != special_values().end())
    return draw.of(found->second);
  const config::Value value = key.default_value();
  const bool list = value.index() >= 4;
  if (std::holds_alternative<bool>(value)) return draw.below(2) == 0 ? "true" : "false";
  if (!key.choices.empty()) {
    const std::string one = "\"" + draw.of(key.choices) + "\"";
    if (!list || draw.below(2) == 0) return one;
    return "[" + one + ", \"" + draw.of(key.choices) + "\"]";
  }
  if (!key.has_range) return "";  // paths and other free text: nothing a plan depends on
  if (value.index() == 1 || value.index() == 4) {
    const int64_t low = static_cast<int64_t>(key.low);
    return fmt::format("{}", low + draw.of<int64_t>({0, 1, 2, 2, 3, 4, 8}));
  }
  return fmt::format("{}",
                     key.low + (std::min(key.high, 2.0) - key.low) * draw.of<double>({0, 0.25, 0.5, 1}));
}

struct Asked {
  std::string text;
  std::vector<std::string> sets;
  int ranks = 1;

  std::string said() const {
    std::string out = fmt::format("--ranks {}", ranks);
    for (const std::string& s : sets) out += " --set " + s;
    return out;
  }
};

Asked draw_config(uint64_t seed) {
  Draw draw(seed);
  Asked out;
  out.text = draw.below(3) == 0 ? kDenseModel : kMoeModel;
  std::vector<const config::Key*> keys;
  for (const config::Key& key : config::schema()) {
    if (key.path == "device.threads" || key.path == "train.steps") continue;
    if (key.path == "comm.mpi_native") continue;  // whether ranks talk over MPI is the launcher's to say
    if (key.path == "parallel.ranks_per_node") continue;  // and so is how many share a machine
    if (key.path == "device.kind" && draw.below(2) == 0) continue;
    keys.push_back(&key);
  }
  const int64_t num_keys = 1 + draw.below(4);
  for (int64_t i = 0; i < num_keys; ++i) {
    const config::Key& key = *draw.of(keys);
    if (const std::string value = value_of(key, draw); !value.empty())
      out.sets.push_back(key.path + "=" + value);
  }
  // Layouts of two and four ranks, and what several ranks have.
  if (draw.below(2) == 0) {
    out.ranks = draw.below(3) == 0 ? 4 : 2;
    for (const char* axis : {"tp", "cp", "pp", "ep", "etp"})
      if (draw.below(4) == 0) out.sets.push_back(fmt::format("parallel.{}=2", axis));
    if (draw.below(4) == 0) out.sets.push_back("moe.token_budget=1.25");
    if (draw.below(4) == 0) out.sets.push_back("recompute.modules=[\"experts\"]");
  }
  if (draw.below(6) == 0) {
    out.sets.push_back("offload.modules=[\"attn_norm\", \"activation\"]");
    out.sets.push_back(fmt::format("offload.min_bytes={}", draw.of<int64_t>({0, 0, 0, 256})));
    out.sets.push_back(fmt::format("offload.keep_last={}", draw.below(2)));
  }
  return out;
}

// As apps/commands/plan.cpp.
std::string plan_says(const Asked& a) {
  return pleat::testing::message_of([&] {
    const config::Config c = config::resolve(config::parse(a.text, a.sets, "test.toml"));
    for (const program::Program& p : schedule::build_ranks(c, a.ranks).programs) {
      interpret::require_ok(interpret::check(p), "program");
      interpret::plan(p);
    }
  });
}

void random_microbatch(const config::Config& c, int64_t number, runtime::Microbatch& out) {
  const base::RandomStream random(3, base::RandomUse::Test, static_cast<uint64_t>(number), 0);
  const int64_t rows = c.train.micro_batch * c.train.seq_len;
  out.resize(static_cast<size_t>(rows));
  for (int64_t i = 0; i < rows; ++i) {
    const size_t at = static_cast<size_t>(i);
    const auto token = [&](int64_t n) {
      return static_cast<int32_t>(random.uniform(static_cast<uint64_t>(n)) * double(c.model.vocab_size));
    };
    out.tokens[at] = token(2 * i), out.labels[at] = token(2 * i + 1);
    out.positions[at] = static_cast<int32_t>(i % c.train.seq_len);
    out.doc_start[at] = static_cast<int32_t>(i - i % c.train.seq_len);
    out.loss_mask[at] = out.valid[at] = 1;
    out.token_index[at] = number * rows + i;
  }
}

// Two steps of this rank, as Trainer::step runs them.
void train_two_steps(const config::Config& c, runtime::Crew& crew) {
  runtime::ProgramChoice choice;
  choice.evaluate = true;
  runtime::Programs programs(c, choice, &crew);
  programs.initialize();
  const runtime::RankSetup& setup = crew.setup();
  const runtime::InputRows rows(c, setup.mesh, setup.place);
  runtime::Microbatch microbatch;
  const int64_t tokens = c.train.micro_batch * c.train.seq_len * c.train.num_microbatches;
  for (int64_t step = 1; step <= 2; ++step) {
    interpret::Executor& e = programs.train();
    // Those the program holds: passes over repeated stages take the same rows.
    for (int64_t mb = setup.place.at(program::Group::Data);
         mb < c.train.num_microbatches && e.has(program::step::tokens, mb / setup.mesh.dp);
         mb += setup.mesh.dp) {
      random_microbatch(c, mb, microbatch);
      rows.write(e, mb / setup.mesh.dp, microbatch);
    }
    runtime::write_norm(e, {tokens, tokens, tokens, c.train.micro_batch * c.train.num_microbatches},
                        c.train.num_microbatches);
    runtime::write_rng(e, c.train.seed, step);
    runtime::write_hyper(e, 1e-3, step);
    e.run();
  }
}

std::string train_says(const Asked& a) {
  return pleat::testing::message_of([&] {
    const config::Config c = config::parse(a.text, a.sets, "test.toml");
    launch(c, a.ranks, [](const config::Config& asked, runtime::Crew& crew, const std::string&) {
      train_two_steps(config::resolve(asked), crew);
    });
  });
}

TEST(PlanAccepts, WhatIsPlannedTrainsTwoStepsAndWhatIsRefusedIsRefusedByBothInTheSameWords) {
  int accepted = 0, on_ranks = 0, refused = 0;
  std::set<std::string> reasons;
  for (uint64_t seed = 0; seed < 600; ++seed) {
    const Asked a = draw_config(seed);
    SCOPED_TRACE(a.said());
    const std::string plan = plan_says(a);
    const auto asks = [&](const char* set) {
      return std::find(a.sets.begin(), a.sets.end(), set) != a.sets.end();
    };
    const bool elsewhere = asks("device.kind=\"cuda\"") || asks("precision.recipe=\"mxfp8\"") ||
                           asks("precision.recipe=\"nvfp4\"");
    if (!(elsewhere && plan.empty())) {  // what runs on a GPU is not run here, nor what has no kernels yet
      const std::string train = train_says(a);
      EXPECT_EQ(plan, train);
    }
    accepted += plan.empty();
    on_ranks += plan.empty() && a.ranks > 1;
    refused += !plan.empty();
    reasons.insert(plan.substr(0, 24));
  }
  EXPECT_GT(accepted, 100);
  EXPECT_GT(on_ranks, 30);
  EXPECT_GT(refused, 200);
  EXPECT_GT(reasons.size(), 60U);
}

TEST(PlanAccepts, AGroupScoreOfMoreExpertsThanAGroupHasIsRefusedByBothByItsKeys) {
  const Asked a{
      kMoeModel,
      {"moe.num_experts=2", "moe.num_groups=2", "moe.group_topk=2", "moe.group_score_topk=2", "moe.top_k=2"},
      1};
  const std::string plan = plan_says(a);
  EXPECT_NE(plan.find("moe.group_score_topk = 2 is more than the 1 experts of a group"), std::string::npos)
      << plan;
  EXPECT_EQ(plan, train_says(a));
}

// DeepSeek-V3's shape: the layers of the first pipeline stage have no experts.
TEST(PlanAccepts, ExpertRecomputeAndRerunTrainWhereAPipelineStageIsAllDense) {
  for (const char* set : {"recompute.modules=[\"experts\"]", "moe.overflow=\"rerun\"",
                          "recompute.modules=[\"experts\",\"norm\"]"}) {
    Asked a{kMoeModel, {"parallel.pp=2", "parallel.ep=2", "moe.token_budget=1.01", set}, 4};
    SCOPED_TRACE(a.said());
    EXPECT_EQ(plan_says(a), "");
    EXPECT_EQ(train_says(a), "");
  }
}

}  // namespace
}  // namespace pleat::train
