// What zeros become, the asked / used / why table, and the layer queries.
#include "config/resolve.h"

#include <algorithm>

#include "config_support.h"

namespace pleat::config {
namespace {

ResolvedRow row(const Config& config, const std::string& key) {
  for (const ResolvedRow& r : resolved(config))
    if (r.key == key) return r;
  ADD_FAILURE() << "no row " << key;
  return {};
}

void expect_row(const Config& config, const std::string& key, const char* asked, const std::string& used,
                const char* why) {
  const ResolvedRow r = row(config, key);
  EXPECT_EQ(r.asked, asked) << key;
  EXPECT_EQ(r.used, used) << key;
  EXPECT_EQ(r.why, why) << key;
}

TEST(ConfigResolve, FillsWhatIsDerived) {
  const Config c = resolve(parse(kDense));
  EXPECT_EQ(c.model.vocab_size, 257);
  EXPECT_EQ(c.model.num_kv_heads, 8);
  EXPECT_EQ(c.model.head_dim, 32);
  EXPECT_EQ(c.model.rotary_dim, 32);
  EXPECT_EQ(c.optimizer.decay_steps, 100);
  EXPECT_EQ(c.train.loss_chunk, 128);
  EXPECT_EQ(c.checkpoint.dir, "runs/default/checkpoints");
  EXPECT_EQ(c.log.timeline_step, 100);
  EXPECT_EQ(c.device.threads, usable_cores());
  EXPECT_GE(c.device.threads, 1);
  EXPECT_EQ(resolve(c), c);
}

TEST(ConfigResolve, KeepsWhatIsGiven) {
  const Config c = parse(kDense, {"model.num_kv_heads=2", "model.head_dim=16", "model.rotary_dim=8",
                                  "model.vocab_size=300", "optimizer.decay_steps=50", "train.loss_chunk=7",
                                  "checkpoint.dir=x", "log.timeline_step=3", "device.threads=5"});
  EXPECT_EQ(resolve(c), c);
}

TEST(ConfigResolve, SchedulesAndChunks) {
  EXPECT_EQ(resolve(parse(kDense, {"optimizer.schedule=wsd", "train.steps=25"})).optimizer.decay_steps, 3);
  EXPECT_EQ(resolve(parse(kDense, {"optimizer.schedule=constant"})).optimizer.decay_steps, 0);
  const std::vector<std::string> large = {"model.vocab_size=4096", "train.micro_batch=8",
                                          "train.seq_len=256"};
  EXPECT_EQ(resolve(parse(kDense, large)).train.loss_chunk, 1024);
  EXPECT_EQ(resolve(parse(kDense, {"model.vocab_size=100000000", "train.seq_len=4096"})).train.loss_chunk,
            64);
}

TEST(ConfigResolve, APaddingTokenOutsideTheVocabularyOfTheTokenizerIsRefused) {
  const std::string message =
      "model.padding_token = 257 is outside the vocabulary of 257; needed is -1 (none) to 256";
  EXPECT_TRUE(holds(refusal(kDense, {"model.padding_token=257"}), message));
  EXPECT_EQ(refusal(kDense, {"model.padding_token=256"}), "");
  // Of a tokenizer file the vocabulary is known later.
  Config c = parse(kDense, {"model.padding_token=257", "data.tokenizer=some.json"});
  EXPECT_EQ(resolve(c).model.vocab_size, 0);
  c.model.vocab_size = 257;
  try {
    resolve(c);
    ADD_FAILURE() << "accepted";
  } catch (const base::Error& error) {
    EXPECT_TRUE(holds(error.what(), message));
  }
}

TEST(ConfigResolve, AFloat64ModelHasAFloat64Router) {
  const Config c = parse(kMoe + "model.dtype = \"float64\"");
  EXPECT_EQ(resolve(c).moe.router_dtype, "float64");
  expect_row(c, "moe.router_dtype", "default", "\"float64\"", "a float64 model has a float64 router");
  EXPECT_EQ(refusal(kMoe + "model.dtype = \"float64\"\nmoe.router_dtype = \"float64\""), "");
}

TEST(ConfigResolve, TheTableSaysAskedUsedWhy) {
  const Config c = parse(kDense + "model.num_heads = 4\ndevice.threads = 0\n");
  expect_row(c, "model.num_heads", "4", "4", "as asked");
  expect_row(c, "model.num_kv_heads", "default", "4", "model.num_heads");
  expect_row(c, "model.num_layers", "default", "4", "default");
  expect_row(c, "device.threads", "0", std::to_string(usable_cores()), "all cores this process may run on");
  expect_row(c, "moe.top_k", "default", "-", "not used: applies when moe.num_experts > 0");
  Config changed = c;
  changed.train.steps = 7;
  expect_row(changed, "train.steps", "default", "7", "set by the program");
}

TEST(ConfigLayers, EveryNthLayer) {
  const auto pattern = [](const Config& c) {
    std::string out;
    for (int64_t layer = 0; layer < c.model.num_layers; ++layer) out += is_moe_layer(c, layer) ? 'M' : 'd';
    EXPECT_EQ(num_moe_layers(c), std::count(out.begin(), out.end(), 'M'));
    return out;
  };
  const std::string both = kMoe + kDense + "model.num_layers = 6\n";
  EXPECT_EQ(pattern(parse(kMoe)), "MMMM");
  EXPECT_EQ(pattern(parse(kDense)), "dddd");
  EXPECT_EQ(pattern(parse(both, {"model.moe_layer_freq=2"})), "MdMdMd");
  EXPECT_EQ(pattern(parse(both, {"model.moe_layer_freq=3", "model.leading_dense_layers=1"})), "dddMdd");
  EXPECT_EQ(pattern(parse(both, {"model.moe_layer_freq=[0,1,1,0,0,1]"})), "dMMddM");
}

TEST(ConfigLayers, OffloadRanges) {
  EXPECT_EQ(offload_layers(parse(kDense)), (std::vector<bool>{false, false, false, false}));
  EXPECT_EQ(offload_layers(parse(kDense, {"offload.modules=qkv", "offload.layers=1-2"})),
            (std::vector<bool>{false, true, true, false}));
}

TEST(ConfigLayers, RecomputeRanges) {
  EXPECT_EQ(recompute_layers(parse(kDense)), (std::vector<bool>{false, false, false, false}));
  EXPECT_EQ(recompute_layers(parse(kDense, {"recompute.modules=norm"})),
            (std::vector<bool>{true, true, true, true}));
  EXPECT_EQ(recompute_layers(parse(kDense, {"recompute.modules=norm", "recompute.layers=3,0-1"})),
            (std::vector<bool>{true, true, false, true}));
}

}  // namespace
}  // namespace pleat::config
