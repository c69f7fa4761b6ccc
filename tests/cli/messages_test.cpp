// What a user is told about input that cannot be used.
#include <gtest/gtest.h>

#include <filesystem>

#include "support/process.h"

namespace pleat {
namespace {

using testing::Ended;
using testing::write_file;
using Words = std::vector<std::string>;

class Messages : public ::testing::Test {
 protected:
  Messages() {
    write_file(
        config_,
        "[model]\nvocab_size = 257\nhidden_size = 32\nnum_layers = 2\nnum_heads = 2\n[moe]\nnum_experts = 4\n"
        "top_k = 2\nffn_hidden_size = 16\n");
  }

  // Ends with `code`, says all `words`, and nothing longer than people read.
  void expect_says(int code, const std::vector<std::string>& arguments,
                   std::initializer_list<std::string> words) {
    const Ended ended = testing::run_pleat(folder_.path(), arguments);
    EXPECT_EQ(ended.code, code) << ::testing::PrintToString(arguments) << ended.signal << ended.err;
    EXPECT_LT(ended.err.size(), 800u) << ended.err;
    for (const std::string& word : words)
      EXPECT_NE(ended.err.find(word), std::string::npos) << "no '" << word << "' in: " << ended.err;
  }

  testing::TemporaryFolder folder_;
  const std::string config_ = folder_.at("model.toml");
};

TEST_F(Messages, NumbersOutOfRange) {
  expect_says(65, {"generate", "x", "--temperature", "-1"}, {"--temperature", "-1 is negative"});
  expect_says(65, {"generate", "x", "--max-tokens", "0"},
              {"--max-tokens", "0 is not allowed; it must be above 0"});
  expect_says(65, {"plan", config_, "--set", "optimizer.lr=0"}, {"optimizer.lr = 0", "it must be above 0"});
  expect_says(65, {"plan", config_, "--set", "moe.top_k=two"},
              {"moe.top_k = two is not an integer", "as in 2"});
  expect_says(65, {"plan", config_, "--set", "optimizer.lr=1e"}, {"optimizer.lr = 1e is not a number"});
}

// They spoke of a configuration file that cannot be opened, and of something that is no folder.
TEST_F(Messages, AFolderThatDoesNotExistIsCalledThat) {
  const std::string gone = folder_.at("gone");
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"export", gone, "--out", folder_.at("out")}, {"report", gone}})
    expect_says(65, command, {"'" + gone + "' does not exist", "needed is a run folder"});
  expect_says(65, {"report", config_}, {"'" + config_ + "' is a file; needed is a run folder"});
}

TEST_F(Messages, AMillionMicrobatchesAreRefusedAtOnce) {
  expect_says(65, {"plan", config_, "--set", "train.num_microbatches=1000000"},
              {"1000000 microbatches of 2 layers", "32000000 stages", "at most 2000000"});
}

TEST_F(Messages, TooLittleValidationDataIsToldAtTheStartNotAfterHours) {
  write_file(folder_.at("text.txt"), std::string(5000, 'a'));
  write_file(folder_.at("valid.txt"), std::string(100, 'a'));
  expect_says(65,
              {"train", config_, "--set", "data.train=" + folder_.at("text.txt"), "--set",
               "data.valid=" + folder_.at("valid.txt"), "--set", "train.eval_every=1000", "--set",
               "train.micro_batch=4", "--set", "train.seq_len=64", "--set", "train.steps=2", "--set",
               "optimizer.warmup_steps=1", "--set", "log.run_dir=" + folder_.at("run")},
              {"the validation data holds 1 sequence of 64 tokens", "train.micro_batch = 4"});
}

TEST_F(Messages, TooFewMicrobatchesForTheReplicasAreNotTheModelsFault) {
  expect_says(
      65, {"plan", config_, "--ranks", "8", "--set", "train.num_microbatches=1"},
      {"this configuration does not fit the layout", "set train.num_microbatches to a multiple of 8"});
}

TEST_F(Messages, AGpuIsCalledCuda) {
  expect_says(65, {"plan", config_, "--set", "device.kind=gpu"}, {"device.kind", "the nearest is \"cuda\""});
  expect_says(65, {"plan", config_, "--set", "model.dtype=BF16"}, {"the nearest is \"bfloat16\""});
}

// Few bits are planned and simulated wherever one likes, and trained where there are kernels.
TEST_F(Messages, ARecipeThatNothingRunsIsPlannedAndNotTrained) {
  write_file(folder_.at("text.txt"), std::string(5000, 'a'));
  for (const char* recipe : {"fp8", "mxfp8", "nvfp4"}) {
    const std::string set = fmt::format("precision.recipe={}", recipe);
    const Words gpu = {"--set", set, "--set", "device.kind=cuda", "--set", "model.dtype=bfloat16"};
    for (const Words& command :
         {Words{"plan", config_}, Words{"simulate", config_, "--ranks", "1", "--machine", "b200"},
          Words{"explain", config_, "--ledger"}}) {
      Words words = command;
      words.insert(words.end(), gpu.begin(), gpu.end());
      const Ended ended = testing::run_pleat(folder_.path(), words);
      EXPECT_EQ(ended.code, 0) << recipe << ended.err;
    }
    if (std::string(recipe) == "fp8") continue;  // trains
    Words train = {"train", config_,
                   "--set", "data.train=" + folder_.at("text.txt"),
                   "--set", "log.run_dir=" + folder_.at("run")};
    train.insert(train.end(), gpu.begin(), gpu.end());
    expect_says(65, train, {"precision.recipe", "can be planned and simulated"});
  }
  expect_says(65,
              {"simulate", config_, "--ranks", "1", "--machine", "a100", "--set", "precision.recipe=fp8",
               "--set", "device.kind=cuda", "--set", "model.dtype=bfloat16"},
              {"machine 'a100'", "has no such products", "processor.fp8_tflops"});
}

// Steps behind the one that spoiled the weights are refused; the run ends as it should, without a sample of its text.
TEST_F(Messages, ARunWhoseWeightsSayNothingEndsAsAnyOther) {
  std::string text;
  for (int i = 0; i < 600; ++i) text += fmt::format("{} is {} of {}; ", i, i * i % 97, i * 31 % 89);
  write_file(folder_.at("text.txt"), text);
  Words train = {"train", config_};
  for (const std::string& set :
       {"data.train=" + folder_.at("text.txt"), "log.run_dir=" + folder_.at("run"),
        std::string("train.steps=30"), std::string("train.seq_len=32"), std::string("optimizer.lr=1000"),
        std::string("optimizer.clip=0"), std::string("optimizer.schedule=constant"),
        std::string("train.max_refused_steps=1000")})
    train.insert(train.end(), {"--set", set});
  const Ended ended = testing::run_pleat(folder_.path(), train);
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_NE(ended.err.find("no sample of text: "), std::string::npos) << ended.err;
  EXPECT_NE(testing::read_file(folder_.at("run/summary.json")).find("no_sample"), std::string::npos);
}

#ifndef PLEAT_SANITIZED
TEST_F(Messages, AnArenaThatDoesNotFitIsToldInPeoplesUnits) {
  write_file(folder_.at("text.txt"), std::string(5000, 'a'));
  const Ended ended = testing::run_shell(
      folder_.path(),
      fmt::format("cd '{}'; ulimit -v 3000000; pleat train model.toml --set data.train=text.txt "
                  "--set model.hidden_size=8192 --set model.num_heads=128 --set log.run_dir=big --set "
                  "device.threads=1",
                  folder_.path()));
  EXPECT_EQ(ended.code, 76) << ended.err;
  for (const char* word :
       {"the step does not fit: a rank needs 8.13 GiB", "the address space that ulimit -v allows has",
        "largest owners: optimizer", "Nothing was allocated", "pleat plan"})
    EXPECT_NE(ended.err.find(word), std::string::npos) << ended.err;
}
#endif

TEST_F(Messages, DeepJsonIsRefusedAndCrashesNothing) {
  write_file(folder_.at("text.txt"), std::string(4000, 'a'));
  const std::string run = folder_.at("run");
  ASSERT_EQ(testing::run_pleat(
                folder_.path(),
                {"train", config_, "--quiet", "--set", "data.train=" + folder_.at("text.txt"), "--set",
                 "log.run_dir=" + run, "--set", "train.steps=1", "--set", "train.seq_len=32"})
                .code,
            0);
  const std::string deep = std::string(80'000, '[') + std::string(80'000, ']');
  write_file(folder_.at("requests.jsonl"), "{\"text\": \"a\", \"x\": " + deep + "}\n");
  expect_says(65, {"eval", run, "--requests", folder_.at("requests.jsonl"), "--out", folder_.at("out.jsonl")},
              {"requests.jsonl:1: JSON nests deeper than 64 levels"});
  write_file(folder_.at("prompts.jsonl"), "\"a\"\n{\"tokens\": " + deep + "}\n");
  expect_says(65, {"generate", run, "--prompts", folder_.at("prompts.jsonl")},
              {"prompts.jsonl:2: JSON nests deeper than 64 levels"});
  write_file(folder_.at("prompts.jsonl"), "{\"prompt\": \"a\",}\n");
  expect_says(65, {"generate", run, "--prompts", folder_.at("prompts.jsonl")},
              {"prompts.jsonl:1: broken JSON at column 16"});
}

TEST_F(Messages, DatasetsThatAreNotThere) {
  expect_says(65, {"data", "inspect", folder_.at("no/set")},
              {"there is no dataset", "no/set.bin and ", "no/set.idx are missing", "pleat data tokenize"});
  write_file(folder_.at("text.txt"), "some text\n");
  // The folder is made.
  expect_says(
      0,
      {"data", "tokenize", folder_.at("text.txt"), "--tokenizer", "byte", "--out", folder_.at("a/b/notes")},
      {});
  EXPECT_TRUE(std::filesystem::exists(folder_.at("a/b/notes.idx")));
  expect_says(65, {"data", "inspect", folder_.at("a/b/notes.bin")}, {"give the name without .bin or .idx"});
  write_file(folder_.at("pointer.txt"),
             "version https://git-lfs.github.com/spec/v1\noid sha256:aa\nsize 1\n");
  expect_says(
      65, {"data", "tokenize", folder_.at("pointer.txt"), "--tokenizer", "byte", "--out", folder_.at("c")},
      {"pointer.txt: a Git LFS pointer"});
  expect_says(65,
              {"data", "tokenize", folder_.at("text.txt"), "--tokenizer", folder_.at("pointer.txt"), "--out",
               folder_.at("c")},
              {"pointer.txt: a Git LFS pointer"});
}

}  // namespace
}  // namespace pleat
