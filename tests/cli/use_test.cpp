// A model in use: what a run trained on conversations is asked, from the command line and through pipes.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cli/process.h"

namespace pleat::testing {
namespace {

class UseOfARun : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<TempFolder>();
    std::string chat;
    for (int i = 0; i < 60; ++i)
      chat += fmt::format(
          "{{\"messages\": [{{\"role\": \"user\", \"content\": \"What is {} and {}?\"}}, {{\"role\": "
          "\"assistant\", "
          "\"content\": \"It is {}.\"}}]}}\n",
          i, i, 2 * i);
    write_text(folder_->at("chat.jsonl"), chat);
    const auto [made, why] = shell("data tokenize " + folder_->at("chat.jsonl") +
                                   " --tokenizer byte --chat plain --split 0.75 --out " + folder_->at("set"));
    ASSERT_EQ(made, 0) << why;
    write_text(folder_->at("config.toml"),
               "[model]\nhidden_size = 16\nnum_layers = 1\nnum_heads = 2\nffn_hidden_size = 16\n[moe]\n"
               "num_experts = 0\n[train]\nsteps = 2\nseq_len = 64\nmicro_batch = 1\neval_batches = 1\n"
               "[device]\nthreads = 1\n[data]\ntrain = \"" +
                   folder_->at("set-train") + "\"\nvalid = \"" + folder_->at("set-validation") +
                   "\"\n[log]\ntensorboard = false\nrun_dir = \"" + run_dir() + "\"\n");
    const auto [code, out] = shell("train " + folder_->at("config.toml") + " --quiet");
    ASSERT_EQ(code, 0) << out;
  }
  static void TearDownTestSuite() { folder_.reset(); }
  static std::string run_dir() { return folder_->at("run"); }
  // What `before | pleat arguments` prints, and its exit code.
  static std::pair<int, std::string> shell(const std::string& arguments, const std::string& before = "") {
    const std::string out = folder_->at("out.txt"), errors = folder_->at("err.txt");
    const std::string line =
        fmt::format("{}{} {} > {} 2> {}{}", before.empty() ? "" : before + " | ", PLEAT_BINARY, arguments,
                    out, errors, before.empty() ? " < /dev/null" : "");
    const int status = std::system(line.c_str());
    return {WEXITSTATUS(status), status == 0 ? read_text(out) : read_text(errors)};
  }
  static std::unique_ptr<TempFolder> folder_;
};
std::unique_ptr<TempFolder> UseOfARun::folder_;

TEST_F(UseOfARun, EvalScoresTheRunsValidationDataWithItsMask) {
  const auto [code, out] = shell("eval " + run_dir() + " --json --quiet");
  ASSERT_EQ(code, 0) << out;
  const nlohmann::json counted = nlohmann::json::parse(out),
                       all = nlohmann::json::parse(
                           shell("eval " + run_dir() + " --json --quiet --all-tokens").second);
  EXPECT_EQ(counted.at("documents"), 15);
  EXPECT_LT(counted.at("tokens"), all.at("tokens"));
  EXPECT_EQ(counted.at("tokens_of_the_documents"), all.at("tokens"));
  EXPECT_NE(counted.at("data").get<std::string>().find("validation"), std::string::npos);
  // "It is N.", a line end and the end of the document.
  EXPECT_GT(counted.at("tokens"), 15 * 9);
  EXPECT_LT(counted.at("tokens"), 15 * 14);
  EXPECT_NE(shell("eval " + run_dir() + " --quiet").second.find("that count in the loss"), std::string::npos);
}

TEST_F(UseOfARun, PromptsComeFromStandardInput) {
  const std::string generate = "generate " + run_dir() + " --max-tokens 3 --json --ignore-end";
  const auto [code, out] = shell(generate, "printf 'What is'");
  ASSERT_EQ(code, 0) << out;
  EXPECT_EQ(nlohmann::json::parse(out).at("prompt"), "What is");
  EXPECT_EQ(
      nlohmann::json::parse(shell(generate + " --prompt -", "printf 'one\\ntwo\\n'").second).at("prompt"),
      "one\ntwo");
  const std::string two = shell(generate + " --prompts -", "printf 'one\\ntwo\\n'").second;
  EXPECT_NE(two.find("\"prompt\":\"one\""), std::string::npos) << two;
  EXPECT_NE(two.find("\"prompt\":\"two\""), std::string::npos) << two;
}

TEST_F(UseOfARun, ChatWritesTheConversationAsItWasTrained) {
  const std::string generate = "generate " + run_dir() + " --chat --max-tokens 3 --json --ignore-end";
  const auto [code, out] = shell(generate + " --system Sums --prompt 'What is 1 and 1?' --prompt Hello");
  ASSERT_EQ(code, 0) << out;
  const nlohmann::json first = nlohmann::json::parse(out.substr(0, out.find('\n')));
  std::string written;
  for (const int id : first.at("prompt_tokens")) written += static_cast<char>(id);
  EXPECT_EQ(written, "System: Sums\nUser: What is 1 and 1?\nAssistant: ");
  EXPECT_EQ(first.at("prompt"), "What is 1 and 1?");
  EXPECT_EQ(std::count(out.begin(), out.end(), '\n'), 2);
  EXPECT_EQ(nlohmann::json::parse(shell(generate, "printf Hello").second).at("prompt"), "Hello");
  EXPECT_NE(shell(generate).second.find("nothing to answer"), std::string::npos);
  EXPECT_NE(shell("generate " + run_dir() + " --system x").second.find("--chat"), std::string::npos);
}

}  // namespace
}  // namespace pleat::testing
