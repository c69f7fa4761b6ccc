// Shell completion as a shell runs it: the script is read by bash, which is asked what may follow.
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "support/process.h"

namespace pleat {
namespace {

class Completion : public ::testing::Test {
 protected:
  Completion() {
    const testing::Ended ended = testing::run_pleat(folder_.path(), {"completion", "bash"});
    EXPECT_EQ(ended.code, 0) << ended.err;
    testing::write_file(folder_.at("pleat.bash"), ended.out);
  }

  // What completes the last of `words`, which are cut as bash cuts them: "--set" "moe.top_k" "=" "".
  std::vector<std::string> after(const std::vector<std::string>& words) {
    std::string list = "pleat";
    for (const std::string& word : words) list += " '" + word + "'";
    testing::write_file(
        folder_.at("ask.bash"),
        fmt::format("set -u\nsource {0}/pleat.bash\nCOMP_WORDS=({1})\nCOMP_CWORD={2}\n_pleat\n"
                    "printf '%s\\n' \"${{COMPREPLY[@]-}}\" > {0}/answer.txt\n",
                    folder_.path(), list, words.size()));
    const int status =
        std::system(fmt::format("bash --norc {} 2> {}", folder_.at("ask.bash"), folder_.at("err")).c_str());
    EXPECT_EQ(status, 0) << testing::read_file(folder_.at("err"));
    EXPECT_EQ(testing::read_file(folder_.at("err")), "");
    std::istringstream lines(testing::read_file(folder_.at("answer.txt")));
    std::vector<std::string> out;
    for (std::string line; std::getline(lines, line);)
      if (!line.empty()) out.push_back(line);
    return out;
  }

  static bool has(const std::vector<std::string>& words, const std::string& word) {
    return std::find(words.begin(), words.end(), word) != words.end();
  }

  testing::TemporaryFolder folder_;
};

using Words = std::vector<std::string>;

TEST_F(Completion, SubCommandsComeFromTheTable) {
  EXPECT_EQ(after({"tr"}), (Words{"train", "trace"}));
  EXPECT_EQ(after({"data", ""}), (Words{"tokenize", "train-tokenizer", "inspect"}));
  EXPECT_TRUE(has(after({"bench", ""}), "kernels"));
  EXPECT_TRUE(after({"train", "con"}).empty());  // a file: the shell's own completion
  EXPECT_EQ(after({"completion", "z"}), Words{"zsh"});
}

TEST_F(Completion, OptionsAreThoseOfTheSubCommand) {
  EXPECT_TRUE(has(after({"--"}), "--version"));
  const Words of_train = after({"train", "configs/tiny.toml", "--"});
  EXPECT_TRUE(has(of_train, "--ranks"));
  EXPECT_TRUE(has(of_train, "--help"));
  EXPECT_FALSE(has(of_train, "--tokenizer"));
  EXPECT_FALSE(has(of_train, "--fault-step"));  // a switch of tests
  EXPECT_TRUE(has(after({"data", "tokenize", "--t"}), "--tokenizer"));
  EXPECT_EQ(after({"explain", "c.toml", "--program", "e"}), Words{"evaluate"});
}

TEST_F(Completion, KeysFollowSet) {
  EXPECT_EQ(after({"plan", "c.toml", "--set", "moe.top_"}), Words{"moe.top_k="});
  EXPECT_EQ(after({"plan", "c.toml", "--set", "device.kind", "=", ""}), (Words{"cpu", "cuda"}));
  EXPECT_EQ(after({"plan", "c.toml", "--set", "device.kind", "="}), (Words{"cpu", "cuda"}));
  EXPECT_EQ(after({"plan", "c.toml", "--set", "device.kind", "=", "cu"}), Words{"cuda"});
  EXPECT_EQ(after({"train", "c.toml", "--set", "moe.pre_softmax", "=", "t"}), Words{"true"});
  EXPECT_TRUE(has(after({"explain-config", "mo"}), "moe"));
  EXPECT_TRUE(has(after({"explain-config", "moe.top_"}), "moe.top_k"));
}

TEST_F(Completion, AnotherShellIsRefused) {
  const testing::Ended ended = testing::run_pleat(folder_.path(), {"completion", "fish"});
  EXPECT_EQ(ended.code, 65);
  EXPECT_NE(ended.err.find("fish"), std::string::npos) << ended.err;
}

}  // namespace
}  // namespace pleat
