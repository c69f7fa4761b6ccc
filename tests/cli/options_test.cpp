// What is said about a command line that cannot be understood, and where help is found.
#include <gtest/gtest.h>

#include "support/process.h"

namespace pleat {
namespace {

using testing::Ended;

class Options : public ::testing::Test {
 protected:
  Ended pleat(const std::vector<std::string>& arguments) {
    return testing::run_pleat(folder_.path(), arguments);
  }
  // Exactly this one line on standard error, and the code of bad input.
  void expect_refused(const std::vector<std::string>& arguments, const std::string& line) {
    const Ended ended = pleat(arguments);
    EXPECT_EQ(ended.code, 65) << ended.err;
    EXPECT_EQ(ended.err, "pleat: " + line + "\n");
    EXPECT_EQ(ended.out, "");
  }
  testing::TemporaryFolder folder_;
};

// "The following arguments were not expected: x --promt".
TEST_F(Options, AMistypedOptionIsToldWithTheNearest) {
  expect_refused({"generate", "runs/story", "--promt", "x"},
                 "there is no option --promt of generate; the nearest is --prompt");
  expect_refused({"generate", "runs/story", "--promt=x"},
                 "there is no option --promt of generate; the nearest is --prompt");
  // Also where something else is missing because of it.
  expect_refused({"data", "tokenize", "--tokeniser", "byte"},
                 "there is no option --tokeniser of data tokenize; the nearest is --tokenizer");
  expect_refused({"--verison"}, "there is no option --verison of pleat itself; the nearest is --version");
  expect_refused({"plan", "x.toml", "--no-such-thing-at-all"},
                 "there is no option --no-such-thing-at-all of plan; `pleat plan --help` lists them");
}

TEST_F(Options, ASettingGivenAsAnOptionPointsToSet) {
  expect_refused({"train", "runs/b1", "--steps", "140"},
                 "there is no option --steps of train; did you mean --set train.steps=140");
  expect_refused({"train", "runs/b1", "--seq-len=64"},
                 "there is no option --seq-len of train; did you mean --set train.seq_len=64");
  expect_refused({"plan", "x.toml", "--train.steps", "3"},
                 "there is no option --train.steps of plan; did you mean --set train.steps=3");
  expect_refused({"train", "runs/b1", "train.steps=10"},
                 "'train.steps=10' is one word too many for pleat train; did you mean --set train.steps=10");
  expect_refused({"train", "runs/b1", "runs/b2"},
                 "'runs/b2' is one word too many for pleat train; `pleat train --help` shows what it takes");
}

// " requires --version", without a subject.
TEST_F(Options, JsonBeforeASubCommandIsExplained) {
  expect_refused({"--json", "train", "x.toml"},
                 "--json before a sub-command goes with --version only; a sub-command that has a --json "
                 "takes it after its name");
}

TEST_F(Options, WhatIsMissingIsSaidByPleat) {
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{"train"},
                                                    {"train", "x.toml", "--ranks", "0"},
                                                    {"generate", "x", "--seed"}}) {
    const Ended ended = pleat(arguments);
    EXPECT_EQ(ended.code, 65);
    EXPECT_TRUE(ended.err.starts_with("pleat: ")) << ended.err;
    EXPECT_NE(ended.err.find("`pleat " + arguments[0] + " --help`"), std::string::npos) << ended.err;
  }
}

TEST_F(Options, PleatAloneListsTheCommands) {
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{}, {"data"}}) {
    const Ended ended = pleat(arguments);
    EXPECT_EQ(ended.code, 65);
    EXPECT_EQ(ended.out, "");
    EXPECT_TRUE(ended.err.starts_with("pleat: needed is a sub-command; `pleat help")) << ended.err;
    EXPECT_NE(ended.err.find(arguments.empty() ? "\n  train " : "\n  train-tokenizer "), std::string::npos)
        << ended.err;
  }
}

TEST_F(Options, HelpIsACommandToo) {
  EXPECT_NE(pleat({"help"}).out.find("\n  train "), std::string::npos);
  EXPECT_EQ(pleat({"help", "train"}).out, pleat({"train", "--help"}).out);
  EXPECT_EQ(pleat({"help", "data", "tokenize"}).out, pleat({"data", "tokenize", "--help"}).out);
  expect_refused({"help", "trian"}, "there is no sub-command 'trian'; the nearest is 'train'");
}

TEST_F(Options, HelpShowsDefaults) {
  const std::string generate = pleat({"generate", "--help"}).out, train = pleat({"train", "--help"}).out;
  for (const char* part :
       {"--temperature FLOAT:NONNEGATIVE=0.8", "--seed INT=0", "--batch INT:POSITIVE=8", "else \"The \""})
    EXPECT_NE(generate.find(part), std::string::npos) << part << generate;
  EXPECT_EQ(train.find("{false}"), std::string::npos) << train;
}

}  // namespace
}  // namespace pleat
