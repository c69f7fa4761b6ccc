// Text to Config: types, unknown names, overrides, limits.
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "config_support.h"

namespace pleat::config {
namespace {

TEST(ConfigParse, ReadsEveryKindOfValue) {
  const Config c = parse(R"(
    [model]
    hidden_size = 64
    norm_eps = 1e-6
    qk_norm = true
    rope_theta = 500000
    ffn_hidden_size = 128
    num_layers = 4
    moe_layer_freq = [0, 1, 0, 1]
    [moe]
    num_experts = 4
    ffn_hidden_size = 32
    load_balancing = ["aux", "seq_aux"]
    aux_coef = [0.01, 1]
    [data]
    train = "a/b"
    [optimizer.groups.router]
    lr_mult = 0.5
  )");
  EXPECT_EQ(c.model.hidden_size, 64);
  EXPECT_EQ(c.model.norm_eps, 1e-6);
  EXPECT_EQ(c.model.rope_theta, 500000.0);
  EXPECT_TRUE(c.model.qk_norm);
  EXPECT_EQ(c.model.moe_layer_freq, (std::vector<int64_t>{0, 1, 0, 1}));
  EXPECT_EQ(c.moe.load_balancing, (Words{"aux", "seq_aux"}));
  EXPECT_EQ(c.moe.aux_coef, (std::vector<double>{0.01, 1.0}));
  EXPECT_EQ(c.data.train, "a/b");
  ASSERT_EQ(c.optimizer.groups.size(), 1u);
  EXPECT_EQ(c.optimizer.groups.at("router").lr_mult, 0.5);
  EXPECT_LT(c.optimizer.groups.at("router").weight_decay, 0);
  EXPECT_EQ(c.asked.at("model.hidden_size"), "64");
  EXPECT_FALSE(c.asked.contains("model.dtype"));
}

TEST(ConfigParse, AnUntouchedConfigHasTheStructDefaults) {
  Config expected;
  expected.model.ffn_hidden_size = 64;
  EXPECT_EQ(parse(kDense), expected);
}

TEST(ConfigParse, OneValueStandsForAListOfOne) {
  const Config c =
      parse(kMoe + "moe.load_balancing = \"seq_aux\"\nmoe.aux_coef = 0.5\nmodel.moe_layer_freq = 1\n");
  EXPECT_EQ(c.moe.load_balancing, (Words{"seq_aux"}));
  EXPECT_EQ(c.moe.aux_coef, (std::vector<double>{0.5}));
}

TEST(ConfigParse, UnknownKeysNameTheNearest) {
  EXPECT_EQ(refusal("[model]\nhiden_size = 3\n"),
            "test.toml:2: unknown key \"model.hiden_size\"; the nearest is \"model.hidden_size\"");
  EXPECT_TRUE(holds(refusal("[train]\nlr = 3\n"), "the nearest is \"optimizer.lr\""));
  EXPECT_TRUE(holds(refusal("hidden_size = 3\n"), "the nearest is \"model.hidden_size\""));
  EXPECT_TRUE(holds(refusal("[modle]\nnum_layers = 3\n"), "unknown key \"modle\"; the nearest is \"model\""));
  EXPECT_TRUE(holds(refusal("[moe]\nnum_experts_per_tok = 3\n"), "the nearest is \"moe.top_k\""));
  EXPECT_TRUE(holds(refusal("[model]\nhidden_size.x = 3\n"), "model.hidden_size = [...] is a table"));
  EXPECT_TRUE(holds(refusal("[optimizer.groups.ruoter]\nlr_mult = 3\n"),
                    "the nearest is \"optimizer.groups.router\""));
  EXPECT_TRUE(holds(refusal("\"model.dtype\" = \"float64\"\n"), "unknown key \"model.dtype\""));
  EXPECT_TRUE(holds(refusal("[model]\n\"\\u0007x\" = 1\n"), "unknown key \"model.?x\""));
}

TEST(ConfigParse, WrongTypesSayWhatIsNeeded) {
  EXPECT_EQ(refusal("[model]\n\nnum_layers = \"four\"\n"),
            "test.toml:3: model.num_layers = \"four\" is a string; needed is an integer, 1 to 4096, as in 4");
  EXPECT_TRUE(holds(refusal("model.num_layers = 4.0"), "is a number with a fraction; needed is an integer"));
  EXPECT_TRUE(holds(refusal("model.qk_norm = 1"), "is an integer; needed is true or false, as in false"));
  EXPECT_TRUE(holds(refusal("model.norm_eps = \"1e-5\""), "needed is a number"));
  EXPECT_TRUE(holds(refusal("model.norm_eps = 9007199254740993"), "needed is a number"));
  EXPECT_TRUE(holds(refusal("moe.score = 3"), "needed is a string, one of \"softmax\""));
  EXPECT_TRUE(holds(refusal("moe.aux_coef = [0.1, \"x\"]"), "needed is a list of numbers"));
  EXPECT_TRUE(holds(refusal("train.steps = 1979-05-27"), "is a date or time"));
  EXPECT_TRUE(holds(refusal("train.steps = [3]"), "is a list"));
  EXPECT_TRUE(holds(refusal("model = 3"), "model = 3 is an integer; needed is a section [model]"));
  EXPECT_TRUE(holds(refusal("[[model]]\nnum_layers = 3"), "needed is a section [model]"));
}

TEST(ConfigParse, SyntaxErrorsGiveLineAndColumn) {
  EXPECT_TRUE(begins(refusal("[model]\nnum_layers = = 3\n"), "test.toml:2:14: not valid TOML: "));
  EXPECT_TRUE(holds(refusal("[model\n"), "not valid TOML"));
  EXPECT_EQ(refusal("\n [\nmodel]\n"),
            "test.toml:2:2: not valid TOML: '[' must be followed by the name of a section");
  for (const char* header : {"[", "[[", "[ [a]]", "[=]", "[[\n", "[]", "[\r\n"})
    EXPECT_TRUE(holds(refusal(header), "not valid TOML")) << header;
  EXPECT_TRUE(begins(refusal("[model]\nnum_layers = 3\nnum_layers = 4\n"), "test.toml:3:"));
  EXPECT_TRUE(holds(refusal("a = \"\xff\xfe\"\n"), "not valid TOML"));
}

TEST(ConfigParse, SetsOverrideInOrderAndAreReported) {
  const Config c = parse(kDense + "optimizer.lr = 0.1\n",
                         {"optimizer.lr=0.2", "log.run_dir=runs/a b", " train.steps = 7 ", "optimizer.lr=0.3",
                          "data.train=\"x=y\"", "recompute.modules=norm"});
  EXPECT_EQ(c.optimizer.lr, 0.3);
  EXPECT_EQ(c.log.run_dir, "runs/a b");
  EXPECT_EQ(c.train.steps, 7);
  EXPECT_EQ(c.data.train, "x=y");
  EXPECT_EQ(c.recompute.modules, (Words{"norm"}));
  EXPECT_EQ(c.notes, (Words{"by --set, other than in the file: optimizer.lr = 0.2 (not 0.1)",
                            "--set optimizer.lr was given more than once: 0.3 takes the place of 0.2"}));
  EXPECT_TRUE(parse(kDense, {"train.seed=3"}).notes.empty());
}

// A short run of a recipe began with nine lines of them.
TEST(ConfigParse, ManySetsAreOneNote) {
  const Config c =
      parse(kDense + "optimizer.lr = 0.1\ntrain.steps = 9\n", {"optimizer.lr=0.2", "train.steps=3"});
  EXPECT_EQ(c.notes, (Words{"by --set, other than in the file: optimizer.lr = 0.2 (not 0.1), train.steps = 3 "
                            "(not 9)"}));
}

TEST(ConfigParse, AnEmptySetTakesAKeyBack) {
  const std::string text = kDense + "optimizer.min_lr = 0\noptimizer.groups.norm.lr_mult = 2\n";
  EXPECT_TRUE(holds(refusal(text, {"optimizer.schedule=constant"}), "optimizer.min_lr = 0.0 has no effect"));
  const Config c =
      parse(text, {"optimizer.schedule=constant", "optimizer.min_lr=", "optimizer.groups.norm.lr_mult="});
  EXPECT_EQ(c.optimizer.min_lr, OptimizerConfig{}.min_lr);
  EXPECT_TRUE(c.optimizer.groups.empty());
  EXPECT_FALSE(c.asked.contains("optimizer.min_lr"));
}

TEST(ConfigParse, KeysOfTheFormerDeviceAreLeftOutWithANote) {
  const std::string text = kDense +
                           "model.dtype = \"bfloat16\"\ndevice.kind = \"cuda\"\ndevice.graph = false\n"
                           "optimizer.grad_dtype = \"bfloat16\"\n";
  const Config c = parse(text, {"device.kind=cpu", "model.dtype=float32"});
  EXPECT_EQ(c.optimizer.grad_dtype, "float32");
  EXPECT_TRUE(c.device.graph);
  EXPECT_FALSE(c.asked.contains("optimizer.grad_dtype"));
  EXPECT_NE(
      std::find(c.notes.begin(), c.notes.end(),
                "optimizer.grad_dtype = \"bfloat16\" of the file is left out: it applies when model.dtype "
                "is \"bfloat16\""),
      c.notes.end());
  EXPECT_EQ(parse(to_toml(c)), parse(to_toml(parse(kDense, {"model.dtype=float32"}))));
  // What is asked for here and now must have an effect, and so must a file by itself.
  EXPECT_TRUE(holds(refusal(text, {"model.dtype=float32", "optimizer.grad_dtype=bfloat16"}),
                    "optimizer.grad_dtype = \"bfloat16\" has no effect"));
  EXPECT_TRUE(holds(refusal(kDense + "optimizer.grad_dtype = \"bfloat16\"\n", {"model.dtype=float32"}),
                    "optimizer.grad_dtype = \"bfloat16\" has no effect"));
}

TEST(ConfigParse, BadSetsAreRefused) {
  EXPECT_TRUE(holds(refusal(kDense, {"optimizer.lr"}), "needed is key=value"));
  EXPECT_EQ(refusal(kDense, {"optimizer.rl=1"}),
            "--set optimizer.rl=1: unknown key \"optimizer.rl\"; the nearest is \"optimizer.lr\"");
  EXPECT_TRUE(holds(refusal(kDense, {"optimizer=1"}), "is a section"));
  EXPECT_TRUE(holds(refusal(kDense, {"train.steps=many"}),
                    "train.steps = many is not an integer; needed is an integer"));
  EXPECT_TRUE(holds(refusal(kDense, {"train.steps=1\ntrain.seed=2"}), "single line"));
  EXPECT_TRUE(holds(refusal(kDense, {"train.steps={a=1}"}), "is a table; needed is an integer"));
  EXPECT_TRUE(holds(refusal(kDense, {"data.train=\xff"}), "not valid TOML"));
}

TEST(ConfigParse, LimitsHold) {
  EXPECT_TRUE(holds(refusal(std::string((1 << 20) + 1, '\n')), "at most 1048576"));
  EXPECT_EQ(refusal(kDense + std::string((1 << 20) - kDense.size(), '\n')), "");
  EXPECT_TRUE(holds(refusal("a = " + std::string(500000, '[')), "not valid TOML"));
  EXPECT_TRUE(holds(refusal("a = " + std::string(15, '[') + std::string(15, ']')), "unknown key"));
  std::string dotted = "a";
  for (int i = 0; i < 200000; ++i) dotted += ".a";
  EXPECT_TRUE(holds(refusal(dotted + " = 1"), "more than 256 dots in one line"));
  EXPECT_TRUE(holds(refusal("[" + dotted + "]"), "test.toml:1: more than 256 dots"));
  EXPECT_TRUE(holds(refusal("x = ['''\n#''', {" + dotted + " = 1}]"), "test.toml:2: more than 256 dots"));
  EXPECT_EQ(refusal("# " + std::string(100, '.') + "\n" + kDense), "");
  // The deepest text that gets through: chains of keys inside as many inline tables as toml++ allows.
  const std::string chain = dotted.substr(0, 2 * 250 + 1);
  std::string deep = "[" + chain + "]\n" + chain + " = ";
  for (int i = 0; i < 15; ++i) deep += "[{" + chain + " =\n";
  EXPECT_NE(refusal(deep), "");
  std::string nested = "[" + chain + "]\n";
  for (int i = 0; i < 7; ++i) nested += chain + " = [\n{";
  nested += "a = 1";
  for (int i = 0; i < 7; ++i) nested += "}]";
  EXPECT_TRUE(holds(refusal(nested), "unknown key \"a\""));
  EXPECT_TRUE(holds(refusal("log.run_dir = \"" + std::string(5000, 'x') + "\""), "is 5000 bytes long"));
  EXPECT_TRUE(holds(refusal("log.run_dir = \"a\\u0000b\""), "control character (code 0)"));
  std::string many = "model.moe_layer_freq = [1";
  for (int i = 0; i < 5000; ++i) many += ",1";
  EXPECT_TRUE(holds(refusal(kMoe + many + "]"), "holds 5001 values"));
}

TEST(ConfigLoad, FilesThatCannotBeReadAreNamed) {
  try {
    load("no/such/file.toml");
    FAIL();
  } catch (const base::Error& error) {
    EXPECT_TRUE(holds(error.what(), "cannot open the configuration file \"no/such/file.toml\""));
  }
  EXPECT_THROW(load("/"), base::Error);
}

TEST(ConfigLoad, ReadsAFileAndNamesItInErrors) {
  const std::string path =
      (std::filesystem::path(::testing::TempDir()) / "pleat_config_load_test.toml").string();
  std::ofstream(path) << kDense << "train.steps = 5\n";
  EXPECT_EQ(load(path, {"train.seed=9"}).train.steps, 5);
  std::ofstream(path) << "x = 1\n";
  try {
    load(path);
    FAIL();
  } catch (const base::Error& error) {
    EXPECT_TRUE(begins(error.what(), path + ":1: unknown key"));
  }
  std::filesystem::remove(path);
}

TEST(ConfigLoad, TheExamplesAreValid) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(PLEAT_SOURCE_DIR "/configs")) {
    if (entry.path().extension() != ".toml") continue;
    ++count;
    EXPECT_NO_THROW(load(entry.path().string())) << entry.path();
  }
  EXPECT_GE(count, 3);
}

}  // namespace
}  // namespace pleat::config
