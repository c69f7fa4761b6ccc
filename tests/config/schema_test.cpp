// The table against the structs: every field has exactly one key, every key a meaning, and text round-trips.
#include "config/schema.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "config/nearest.h"
#include "config_support.h"

namespace pleat::config {
namespace {

struct Anything {
  template <class T>
  operator T() const;
};

// Number of fields of an aggregate: the most values it can be brace-initialised from.
template <class T, class... Values>
constexpr size_t num_fields() {
  if constexpr (requires { T{Values{}..., Anything{}}; })
    return num_fields<T, Values..., Anything>();
  else
    return sizeof...(Values);
}

size_t num_keys(const std::string& section) {
  return static_cast<size_t>(std::count_if(schema().begin(), schema().end(), [&](const Key& key) {
    return key.path.substr(0, key.path.rfind('.')) == section;
  }));
}

TEST(ConfigSchema, EveryFieldHasAKey) {
  EXPECT_EQ(num_keys("model"), num_fields<ModelConfig>());
  EXPECT_EQ(num_keys("moe"), num_fields<MoeConfig>());
  // `groups` is a map whose keys are counted apart.
  EXPECT_EQ(num_keys("optimizer"), num_fields<OptimizerConfig>() - 1);
  EXPECT_EQ(num_keys("optimizer.groups.norm"), num_fields<OptimizerConfig::GroupConfig>());
  EXPECT_EQ(num_keys("train"), num_fields<TrainConfig>());
  EXPECT_EQ(num_keys("data"), num_fields<DataConfig>());
  EXPECT_EQ(num_keys("chat"), num_fields<ChatConfig>());
  EXPECT_EQ(num_keys("checkpoint"), num_fields<CheckpointConfig>());
  EXPECT_EQ(num_keys("log"), num_fields<LogConfig>());
  EXPECT_EQ(num_keys("precision"), num_fields<PrecisionConfig>());
  EXPECT_EQ(num_keys("recompute"), num_fields<RecomputeConfig>());
  EXPECT_EQ(num_keys("offload"), num_fields<OffloadConfig>());
  EXPECT_EQ(num_keys("parallel"), num_fields<ParallelConfig>());
  EXPECT_EQ(num_keys("device"), num_fields<DeviceConfig>());
}

// Some other value of the same type.
struct Other {
  Value operator()(bool value) const { return !value; }
  Value operator()(int64_t value) const { return value + 1; }
  Value operator()(double value) const { return value + 1.5; }
  Value operator()(const std::string& value) const { return value + "x"; }
  template <class T>
  Value operator()(std::vector<T> values) const {
    values.emplace_back();
    return values;
  }
};

TEST(ConfigSchema, EachKeyMovesOneFieldOfItsOwn) {
  std::set<std::string> paths;
  for (const Key& key : schema()) {
    EXPECT_TRUE(paths.insert(key.path).second) << key.path;
    Config changed;
    key.set(changed, std::visit(Other{}, key.default_value()));
    EXPECT_NE(changed, Config{}) << key.path;
    EXPECT_NE(key.get(changed), key.default_value()) << key.path;
    for (const Key& other : schema()) {
      if (other.path == key.path) continue;
      EXPECT_EQ(other.get(changed), other.default_value()) << key.path << " " << other.path;
    }
    const auto lines = differences(Config{}, changed);
    EXPECT_TRUE(std::any_of(lines.begin(), lines.end(), [&](const std::string& line) {
      return line.starts_with(key.path + ": ");
    })) << key.path;
    EXPECT_NE(digest(changed), digest(Config{})) << key.path;
  }
}

TEST(ConfigSchema, DefaultsAreAllowedAndReferencesExist) {
  for (const Key& key : schema()) {
    for (const std::string& path : key.related)
      EXPECT_NE(find_key(path), nullptr) << key.path << " -> " << path;
    for (const Condition& condition : key.conditions) {
      EXPECT_FALSE(condition.text.empty()) << key.path;
      for (const std::string& path : condition.decided_by)
        EXPECT_NE(find_key(path), nullptr) << key.path << " -> " << path;
    }
    if (key.choices.empty() || !std::holds_alternative<std::string>(key.default_value())) continue;
    const std::string fallback = std::get<std::string>(key.default_value());
    EXPECT_EQ(std::count(key.choices.begin(), key.choices.end(), fallback), 1) << key.path;
  }
}

TEST(ConfigExplain, EveryKeyIsExplained) {
  for (const Key& key : schema()) {
    EXPECT_GE(key.meaning.size(), 20u) << key.path;
    EXPECT_TRUE(key.meaning.ends_with('.')) << key.path;
    const std::string text = explain(key.path);
    EXPECT_TRUE(text.starts_with(key.path + "\n")) << key.path;
    for (const char* part : {"type", "default", "applies"}) EXPECT_TRUE(holds(text, part)) << key.path;
  }
  EXPECT_EQ(all_keys().size(), schema().size());
}

TEST(ConfigExplain, ShowsAllItKnows) {
  EXPECT_EQ(explain("moe.drop_policy"),
            "moe.drop_policy\n\n"
            "Which tokens a full expert keeps: those with the highest probability, or the first ones.\n\n"
            "  type      a string\n"
            "  default   \"probs\"\n"
            "  allowed   one of \"probs\", \"position\"\n"
            "  applies   when moe.num_experts > 0, and moe.capacity_factor > 0 or moe.overflow = \"drop\"\n"
            "  resume    may change with --allow-change\n"
            "  related   moe.capacity_factor, moe.overflow\n");
  EXPECT_TRUE(holds(explain("optimizer.groups.norm.weight_decay"), "default   unset"));
  EXPECT_TRUE(holds(explain("train.steps"), "applies   always"));
}

TEST(ConfigExplain, SectionsListTheirKeys) {
  EXPECT_TRUE(holds(explain("train"), "train.micro_batch"));
  EXPECT_TRUE(holds(explain("optimizer.groups"), "optimizer.groups.head.lr_mult"));
  EXPECT_TRUE(holds(explain(""), "recompute"));
  try {
    explain("moe.topk");
    FAIL();
  } catch (const base::Error& error) {
    EXPECT_STREQ(error.what(), "there is no configuration key \"moe.topk\"; the nearest is \"moe.top_k\"");
  }
}

TEST(ConfigNearest, Distances) {
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(edit_distance("abc", ""), 3u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(edit_distance("lr", "rl"), 1u);
  EXPECT_EQ(nearest_word("sigmod", {"softmax", "sigmoid"}), "sigmoid");
}

const char* kRich = R"(
[model]
dtype = "float64"
hidden_size = 96
num_layers = 4
num_heads = 6
num_kv_heads = 2
head_dim = 32
ffn_hidden_size = 100
rotary_dim = 16
rope_interleaved = true
qkv_bias = true
sliding_window = 33
init_std = 0.1
leading_dense_layers = 1
[moe]
num_experts = 8
top_k = 4
ffn_hidden_size = 24
shared_ffn_hidden_size = 48
shared_gate = true
score = "sigmoid"
renormalize = false
scaling_factor = 2.5
num_groups = 4
group_topk = 2
load_balancing = ["bias", "global_aux", "seq_aux"]
aux_coef = [1e-4, 0.30000000000000004]
global_aux_form = "exact"
capacity_factor = 1.25
pad_to_capacity = true
force_routing = "skewed"
force_bias_std = -0.5
[optimizer]
schedule = "wsd"
decay_biases = true
[optimizer.groups.router]
lr_mult = 0.1
[optimizer.groups.experts]
weight_decay = 0.0
[train]
order = "gpipe"
seed = 9007199254740993
[data]
train = 'a "quoted" \ path'
valid = "übung"
[recompute]
modules = ["norm", "experts"]
layers = "0-1,3"
[offload]
modules = ["expert_up", "attn_norm"]
layers = "2"
fraction = 0.75
keep_last = 0
ahead = 3
min_bytes = 4096
[parallel]
tp = 2
pp = 2
vpp = 2
ep = 2
order = "tp-cp-ep-pp-dp"
pipeline_layout = "Et|t|t|tL"
)";

TEST(ConfigText, RoundTripIsExact) {
  std::vector<Config> configs = {parse(kDense), parse(kMoe), parse(kRich),
                                 parse(kMoe + "model.dtype = \"float64\"")};
  for (const auto& entry : std::filesystem::directory_iterator(PLEAT_SOURCE_DIR "/configs"))
    if (entry.path().extension() == ".toml") configs.push_back(load(entry.path().string()));
  for (const Config& config : configs) {
    for (const Config& c : {config, resolve(config)}) {
      const std::string text = to_toml(c);
      const Config again = parse(text);
      EXPECT_EQ(again, c) << text;
      EXPECT_EQ(to_toml(again), text);
      EXPECT_EQ(digest(again), digest(c));
      EXPECT_EQ(digest(c).size(), 64u);
    }
  }
}

TEST(ConfigText, ValuesWithoutEffectAreNotLostSilently) {
  Config c = parse(kDense);
  c.moe.top_k = 5;
  EXPECT_TRUE(holds(refusal(to_toml(c)), "moe.top_k = 5 has no effect"));
}

TEST(ConfigText, DifferencesNameKeyAndBothValues) {
  const Config a = parse(kDense);
  EXPECT_TRUE(differences(a, parse(kDense)).empty());
  EXPECT_EQ(differences(a, parse(kDense, {"model.num_layers=2", "optimizer.groups.norm.lr_mult=0.5"})),
            (Words{"model.num_layers: 4 -> 2", "optimizer.groups.norm.lr_mult: unset -> 0.5"}));
}

}  // namespace
}  // namespace pleat::config
