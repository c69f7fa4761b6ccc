// A model in use: what a run trained on conversations is asked, from the command line and through pipes.
#include <gtest/gtest.h>
#include <pty.h>

#include <nlohmann/json.hpp>

#include "support/process.h"

namespace pleat::testing {
namespace {

class UseOfARun : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<TemporaryFolder>();
    std::string chat;
    for (int i = 0; i < 60; ++i)
      chat += fmt::format(
          "{{\"messages\": [{{\"role\": \"user\", \"content\": \"What is {} and {}?\"}}, {{\"role\": "
          "\"assistant\", "
          "\"content\": \"It is {}.\"}}]}}\n",
          i, i, 2 * i);
    write_file(folder_->at("chat.jsonl"), chat);
    const auto [made, why] = shell("data tokenize " + folder_->at("chat.jsonl") +
                                   " --tokenizer byte --chat plain --split 0.75 --out " + folder_->at("set"));
    ASSERT_EQ(made, 0) << why;
    write_file(folder_->at("config.toml"),
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
    return {WEXITSTATUS(status), status == 0 ? read_file(out) : read_file(errors)};
  }
  static std::unique_ptr<TemporaryFolder> folder_;
};
std::unique_ptr<TemporaryFolder> UseOfARun::folder_;

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

// "the object has no key "text"", of a run that was trained on nothing else.
TEST_F(UseOfARun, EvalWritesConversationsAsTheRunWasTrained) {
  const auto [made, why] = shell("data tokenize " + folder_->at("chat.jsonl") +
                                 " --tokenizer byte --chat plain --out " + folder_->at("whole"));
  ASSERT_EQ(made, 0) << why;
  for (const std::string more : {"", " --all-tokens"}) {
    const std::string eval = "eval " + run_dir() + " --json --quiet" + more + " --data ";
    const auto [code, out] = shell(eval + folder_->at("chat.jsonl"));
    ASSERT_EQ(code, 0) << out;
    const nlohmann::json of_file = nlohmann::json::parse(out),
                         of_set = nlohmann::json::parse(shell(eval + folder_->at("whole")).second);
    for (const char* key : {"documents", "tokens", "tokens_of_the_documents", "nats_per_token"})
      EXPECT_EQ(of_file.at(key), of_set.at(key)) << key;
  }
  // What is text stays text.
  write_file(folder_->at("text.jsonl"), "{\"text\": \"It is what it is.\"}\n");
  const auto [code, out] = shell("eval " + run_dir() + " --quiet --data " + folder_->at("text.jsonl"));
  ASSERT_EQ(code, 0) << out;
  EXPECT_NE(out.find("of 1 document of"), std::string::npos) << out;
}

TEST_F(UseOfARun, ConversationsWithoutATemplateAreTold) {
  const auto [code, why] =
      shell("train " + folder_->at("config.toml") + " --quiet --set data.train=" + folder_->at("chat.jsonl") +
            " --set log.run_dir=" + folder_->at("other"));
  EXPECT_EQ(code, 65);
  for (const char* part : {"chat.jsonl:1: the object has no key \"text\" but \"messages\"", "chat.template",
                           "pleat data tokenize --chat"})
    EXPECT_NE(why.find(part), std::string::npos) << why;
}

TEST_F(UseOfARun, AnotherTokenizerThanTheRunsIsNoted) {
  write_file(folder_->at("words.txt"), "some words and some more");
  ASSERT_EQ(shell("data train-tokenizer " + folder_->at("words.txt") + " --vocab-size 257 --out " +
                  folder_->at("other-tokenizer"))
                .first,
            0);
  const std::string generate = "generate " + run_dir() + " --prompt x --max-tokens 2 --tokenizer ";
  EXPECT_EQ(shell(generate + folder_->at("other-tokenizer")).first, 0);
  EXPECT_NE(read_file(folder_->at("err.txt")).find("is not the one the run was trained with (byte)"),
            std::string::npos)
      << read_file(folder_->at("err.txt"));
  EXPECT_EQ(shell(generate + "byte").first, 0);
  EXPECT_EQ(read_file(folder_->at("err.txt")).find("note: --tokenizer"), std::string::npos);
}

TEST_F(UseOfARun, AConversationKnowsHelpAndQuit) {
  const std::vector<std::string> words = {PLEAT_BINARY, "generate", run_dir(), "--chat"};
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  int terminal = -1;
  const pid_t child = ::forkpty(&terminal, nullptr, nullptr, nullptr);
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  const std::string typed = "/help\n/quit\n";
  EXPECT_EQ(::write(terminal, typed.data(), typed.size()), static_cast<ssize_t>(typed.size()));
  std::string shown;
  char buffer[4096];
  for (ssize_t n; (n = ::read(terminal, buffer, sizeof buffer)) > 0;) shown.append(buffer, size_t(n));
  ::close(terminal);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << shown;
  const size_t first = shown.find("/clear starts anew");
  ASSERT_NE(first, std::string::npos) << shown;
  EXPECT_NE(shown.find("/clear starts anew", first + 1), std::string::npos)
      << "/help says it again: " << shown;
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
