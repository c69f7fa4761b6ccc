// Frozen classes: bit for bit as they were after ten steps, everything else changed; a class without
// parameters refused.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/posix_vfs.h"
#include "checkpoint/load.h"
#include "exchange/exchange_support.h"
#include "exchange/import.h"
#include "model/parameters.h"
#include "runtime/programs.h"

namespace pleat::exchange::testing {
namespace {

struct Freeze : ::testing::Test {
  std::string run() const { return folder_.path() + "/run"; }
  void import(const std::string& family) const {
    std::vector<std::string> sets;
    if (family == "deepseek_v3") sets.push_back("moe.bias_update_rate=0.001");
    import_model({golden_folder(family), run(), sets});
  }
  std::vector<std::string> sets(const std::string& freeze) const {
    return {"data.train=\"" + folder_.path() + "/tokens\"",
            "train.steps=10",
            "train.seq_len=16",
            "device.threads=2",
            "log.tensorboard=false",
            "optimizer.freeze=" + freeze,
            "checkpoint.keep=5"};
  }
  std::map<std::string, std::vector<std::byte>> state(int64_t step) const {
    base::PosixVfs vfs;
    const checkpoint::Loaded loaded = checkpoint::open_step(vfs, run() + "/checkpoints", step);
    std::map<std::string, std::vector<std::byte>> out;
    for (const checkpoint::TensorEntry& t : loaded.manifest().tensors) {
      out[t.name].resize(static_cast<size_t>(t.length));
      loaded.read_tensor(t.name, out[t.name]);
    }
    return out;
  }
  // Names that differ between step 0 and step 10.
  void expect_frozen(const std::string& family, const std::string& freeze,
                     const std::vector<std::string>& classes) {
    import(family);
    write_dataset(folder_.path(), 128);
    train_run(run(), sets(freeze));
    const auto before = state(0), after = state(10);
    const config::Config c = config::resolve(config::load(run() + "/config.toml"));
    int num_frozen = 0, num_trained = 0;
    for (const model::Parameter& p : model::make_parameters(c)) {
      if (!p.tied_to.empty()) continue;
      const bool frozen =
          std::find(classes.begin(), classes.end(), model::name_of(p.parameter_class)) != classes.end();
      EXPECT_EQ(before.at(p.name) == after.at(p.name), frozen) << p.name;
      ++(frozen ? num_frozen : num_trained);
    }
    EXPECT_GT(num_frozen, 0);
    EXPECT_GT(num_trained, 0);
    for (const auto& [name, bytes] : after)
      if (name.ends_with(".router.expert_bias")) {
        EXPECT_EQ(before.at(name) == bytes,
                  std::find(classes.begin(), classes.end(), "router") != classes.end())
            << name;
      }
  }
  TemporaryFolder folder_;
};

TEST_F(Freeze, AttentionAndRouter) {
  expect_frozen("deepseek_v3", "[\"attention\", \"router\"]", {"attention", "router"});
}
TEST_F(Freeze, Experts) {
  expect_frozen("deepseek_v3", "[\"experts\", \"shared_experts\"]", {"experts", "shared_experts"});
}
TEST_F(Freeze, AllButTheRouter) {
  expect_frozen("qwen3_moe", "[\"embedding\", \"attention\", \"norm\", \"experts\", \"head\"]",
                {"embedding", "attention", "norm", "experts", "head"});
}
TEST_F(Freeze, AllButTheHead) {
  expect_frozen("gpt_oss", "[\"embedding\", \"attention\", \"norm\", \"experts\", \"router\"]",
                {"embedding", "attention", "norm", "experts", "router"});
}
TEST_F(Freeze, ATiedEmbeddingWithDenseLayers) {
  expect_frozen("qwen3", "[\"embedding\", \"mlp\"]", {"embedding", "mlp"});
}

TEST_F(Freeze, LeavesOutWhatNobodyNeeds) {
  import("llama");
  const auto stages = [&](const std::string& freeze) {
    const config::Config c = config::resolve(config::load(run() + "/config.toml", sets(freeze)));
    return runtime::plan_training_step(c, model::make_parameters(c)).program.stages;
  };
  const auto all = stages("[]"), head_only = stages("[\"embedding\", \"attention\", \"norm\", \"mlp\"]");
  const auto backward = [](const std::vector<program::Stage>& list) {
    return std::count_if(list.begin(), list.end(), [](const program::Stage& s) {
      return s.layer >= 0 &&
             (s.phase == program::Phase::BackwardInput || s.phase == program::Phase::BackwardWeight);
    });
  };
  EXPECT_GT(backward(all), 0);
  EXPECT_EQ(backward(head_only), 0);  // the gradient stops at the head
}

TEST_F(Freeze, ClassesThatMatchNothingAreRefused) {
  import("qwen3");
  const auto complaint = [&](const std::string& freeze, const std::string& extra = "train.seed=1") {
    std::vector<std::string> all = sets(freeze);
    all.push_back(extra);
    return message_of([&] { config::load(run() + "/config.toml", all); });
  };
  for (const char* name : {"router", "experts", "shared_experts"}) {
    const std::string text = complaint(std::string("[\"") + name + "\"]");
    EXPECT_NE(text.find(std::string("\"") + name + "\", which matches no parameter"), std::string::npos)
        << text;
  }
  EXPECT_NE(complaint("[\"attentoin\"]").find("attention"), std::string::npos);
  EXPECT_NE(complaint("[\"mlp\", \"mlp\"]").find("twice"), std::string::npos);
  EXPECT_NE(
      complaint("[\"mlp\"]", "optimizer.groups.mlp.lr_mult=2").find("optimizer.freeze does not name mlp"),
      std::string::npos);
}

TEST_F(Freeze, NothingLeftIsRefused) {
  import("llama");
  write_dataset(folder_.path(), 128);
  const std::string text = message_of(
      [&] { train_run(run(), sets("[\"embedding\", \"attention\", \"norm\", \"mlp\", \"head\"]")); });
  EXPECT_NE(text.find("nothing is left to train"), std::string::npos) << text;
}

}  // namespace
}  // namespace pleat::exchange::testing
