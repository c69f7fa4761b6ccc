// Recipes people copy: each can be planned at its full size and takes the memory it says; a small copy of it
// trains.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <regex>

#include "support/process.h"

namespace pleat {
namespace {

using testing::Ended;
using testing::write_file;
using Words = std::vector<std::string>;

std::string recipe(const std::string& name) {
  return std::string(PLEAT_SOURCE_DIR) + "/configs/recipes/" + name + ".toml";
}

Words with_sets(Words words, const Words& sets) {
  for (const std::string& set : sets) words.insert(words.end(), {"--set", set});
  return words;
}

// The models the recipes with --init name.
const Words kOlmoe = {
    "model.vocab_size=50304",   "model.hidden_size=2048",  "model.num_layers=16",  "model.num_heads=16",
    "model.qk_norm=true",       "model.qk_norm_full=true", "moe.num_experts=64",   "moe.top_k=8",
    "moe.ffn_hidden_size=1024", "moe.pre_softmax=true",    "moe.renormalize=false"};
const Words kUpcycledQwen = {"model.vocab_size=151936", "model.hidden_size=1024",
                             "model.num_layers=28",     "model.num_heads=16",
                             "model.num_kv_heads=8",    "model.head_dim=128",
                             "model.qk_norm=true",      "model.tie_embeddings=true",
                             "moe.num_experts=8",       "moe.top_k=2",
                             "moe.ffn_hidden_size=3072"};
const Words kOneBillion = {
    "model.vocab_size=50304", "model.hidden_size=1024", "model.num_layers=16", "model.num_heads=16",
    "model.num_kv_heads=8",   "model.qk_norm=true",     "moe.num_experts=32",  "moe.top_k=6",
    "moe.ffn_hidden_size=512"};

struct Recipe {
  const char* name;
  Words shape;  // of the model behind --init; empty: the recipe's own
};
const std::vector<Recipe>& recipes() {
  static const std::vector<Recipe> all = {{"pretrain-small-cpu", {}},
                                          {"pretrain-1b-gpu", {}},
                                          {"continue-olmoe-gpu", kOlmoe},
                                          {"chat-finetune", kOneBillion},
                                          {"upcycle-0.6b-gpu", kUpcycledQwen}};
  return all;
}

class Recipes : public ::testing::Test {
 protected:
  Ended run(const Words& arguments) { return testing::run_pleat(folder_.path(), arguments); }
  testing::TemporaryFolder folder_;
};

TEST_F(Recipes, EveryFileIsTried) {
  size_t files = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(PLEAT_SOURCE_DIR) + "/configs/recipes"))
    files += entry.path().extension() == ".toml";
  EXPECT_EQ(files, recipes().size());
}

TEST_F(Recipes, TakeTheMemoryTheySay) {
  for (const Recipe& r : recipes()) {
    SCOPED_TRACE(r.name);
    const Ended ended = run(with_sets({"plan", recipe(r.name), "--json"}, r.shape));
    ASSERT_EQ(ended.code, 0) << ended.err;
    const nlohmann::json plan = nlohmann::json::parse(ended.out);
    const double bytes = plan.contains("gpu_memory") ? plan.at("gpu_memory").at("total_bytes").get<double>()
                                                     : plan.at("arena_bytes").get<double>();
    const std::string text = testing::read_file(recipe(r.name));
    std::smatch said;
    ASSERT_TRUE(std::regex_search(text, said, std::regex("Memory: ([0-9.]+) (MB|GB)"))) << text;
    EXPECT_NEAR(bytes / (said[2] == "GB" ? 1e9 : 1e6), std::stod(said[1]), 0.02 * std::stod(said[1]));
  }
}

// Sizes divided, data made up, on this machine's processor.
const Words kSmaller = {"train.steps=2",       "train.micro_batch=2",      "train.num_microbatches=1",
                        "train.seq_len=32",    "optimizer.warmup_steps=1", "device.kind=cpu",
                        "model.dtype=float32", "device.threads=1",         "checkpoint.every=0"};
const Words kNarrow = {"model.hidden_size=32", "model.num_layers=2", "model.num_heads=4",
                       "model.num_kv_heads=2", "moe.num_experts=8",  "moe.ffn_hidden_size=16",
                       "model.vocab_size=300"};

class SmallRecipes : public Recipes {
 protected:
  SmallRecipes() {
    std::string text;
    for (int i = 0; i < 300; ++i) text += fmt::format("line {} of some made-up text\n\n", i * i);
    write_file(text_, text);
    std::string chat;
    for (int i = 0; i < 80; ++i)
      chat += fmt::format(
          R"({{"messages": [{{"role": "user", "content": "{}?"}}, {{"role": "assistant", "content": "{}!"}}]}})"
          "\n",
          i, i * i);
    write_file(chat_, chat);
  }

  // What the recipe does, with `sets` on top of what makes it small.
  void expect_trains(const char* name, const Words& more, const Words& sets) {
    SCOPED_TRACE(name);
    Words words = with_sets({"train", recipe(name), "--set", "log.run_dir=" + folder_.at(name)}, kSmaller);
    words.insert(words.end(), more.begin(), more.end());
    const Ended ended = run(with_sets(words, sets));
    ASSERT_EQ(ended.code, 0) << ended.err;
    const std::string metrics = testing::read_file(folder_.at(name) + "/metrics.jsonl");
    EXPECT_EQ(std::count(metrics.begin(), metrics.end(), '\n'), 2) << metrics;
    EXPECT_TRUE(std::filesystem::exists(folder_.at(name) + "/checkpoints"));
  }

  const std::string text_ = folder_.at("text.txt"), chat_ = folder_.at("chat.jsonl");
};

Words joined(Words a, const Words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST_F(SmallRecipes, FromNothing) {
  expect_trains("pretrain-small-cpu", {}, joined(kNarrow, {"data.train=" + text_, "data.tokenizer=byte"}));
  expect_trains("pretrain-1b-gpu", {},
                joined(kNarrow, {"data.train=" + text_, "data.valid=" + text_, "data.tokenizer=byte"}));
}

// With the shape given here; that --init brings the same shape from a model is tests/exchange's.
TEST_F(SmallRecipes, FromAModel) {
  const Words text = {"data.train=" + text_, "data.valid=" + text_, "data.tokenizer=byte"};
  expect_trains("continue-olmoe-gpu", {},
                joined(joined(kNarrow, text), {"model.qk_norm=true", "model.qk_norm_full=true", "moe.top_k=4",
                                               "moe.pre_softmax=true", "moe.renormalize=false"}));
  expect_trains(
      "upcycle-0.6b-gpu", {},
      joined(joined(kNarrow, text), {"model.qk_norm=true", "model.tie_embeddings=true", "moe.top_k=2"}));
  // The tokens around a message are the tokenizer's.
  const Ended made =
      run({"data", "train-tokenizer", text_, "--vocab-size", "300", "--special", "<|im_start|>", "--special",
           "<|im_end|>", "--out", folder_.at("tokenizer/tokenizer.json")});
  ASSERT_EQ(made.code, 0) << made.err;
  expect_trains("chat-finetune", {},
                joined(kNarrow, {"data.train=" + chat_, "data.tokenizer=" + folder_.at("tokenizer"),
                                 "train.seq_len=128", "moe.top_k=2"}));
}

}  // namespace
}  // namespace pleat
