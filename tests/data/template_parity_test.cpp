// 200 conversations in the templates of five model families, as transformers' apply_chat_template writes them
// (tools/chat_parity.py --fixtures made the files): text, ids, prompt and assistant mask. Once with the
// templates' {% generation %} marks, once with the marks taken out.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "data/chat/chat_line.h"
#include "data/chat/tokenizer_chat.h"
#include "data/data_support.h"
#include "data/tokenizer/open_tokenizer.h"

namespace pleat::data {
namespace {

constexpr int64_t kParityTime = 1760011200;

std::string template_data(const std::string& name) {
  return std::filesystem::path(tokenizer_data()).parent_path().parent_path() / "template_data" / name;
}

std::vector<std::string> lines_of(const std::string& path) {
  std::vector<std::string> out;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) out.push_back(line);
  return out;
}

template <class Numbers>
std::string fnv(const Numbers& numbers) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const auto number : numbers)
    for (int shift = 0; shift < 32; shift += 8)
      hash = (hash ^ (static_cast<uint32_t>(number) >> shift & 255)) * 0x100000001b3u;
  return fmt::format("{:016x}", hash);
}

std::vector<size_t> runs_of(const std::vector<uint8_t>& mask) {
  std::vector<size_t> out;
  for (size_t i = 0; i <= mask.size(); ++i)
    if ((i < mask.size() && mask[i] == 1) != (i > 0 && mask[i - 1] == 1)) out.push_back(i);
  return out;
}

// The marks become comments, which strip the same white space.
std::string unmarked(std::string source) {
  for (const char* tag : {"{%- generation -%}", "{%- endgeneration -%}"})
    for (size_t at; (at = source.find(tag)) != std::string::npos;) {
      source[at + 1] = '#';
      source[source.find("%}", at)] = '#';
    }
  return source;
}

class TemplateParity : public ::testing::TestWithParam<std::tuple<const char*, bool>> {};

TEST_P(TemplateParity, SameTextIdsAndMasks) {
  const auto [family, marks] = GetParam();
  TemporaryFolder folder;
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"})
    std::filesystem::copy_file(template_data(std::string(family) + "/" + name), folder.at(name));
  const std::string source = read_file(template_data(std::string(family) + "/chat_template.jinja"));
  write_file(folder.at("chat_template.jinja"), marks ? source : unmarked(source));
  const auto tokenizer = open_tokenizer(folder.at("tokenizer.json"));
  const TokenizerChat chat(*tokenizer, {.now = kParityTime});
  EXPECT_EQ(chat.end_of_answer().size(), 1u);
  const std::vector<std::string> conversations = lines_of(template_data("conversations.jsonl"));
  const std::vector<std::string> expected = lines_of(template_data(std::string(family) + "/expected.jsonl"));
  ASSERT_EQ(conversations.size(), 200u);
  ASSERT_EQ(expected.size(), 200u);
  for (size_t i = 0; i < conversations.size(); ++i) {
    SCOPED_TRACE(conversations[i]);
    const nlohmann::json want = nlohmann::json::parse(expected[i]);
    const Conversation conversation = conversation_from_json(conversations[i], "line");
    const std::string text = chat.render(conversation, false, "line");
    ASSERT_EQ(fnv(std::vector<unsigned char>(text.begin(), text.end())), want["text"]) << text;
    const EncodedChat got = chat.encode(conversation, "line");
    ASSERT_EQ(got.tokens.size(), want["count"]);
    ASSERT_EQ(fnv(got.tokens), want["ids"]);
    ASSERT_EQ(runs_of(got.loss_mask), want["mask"].get<std::vector<size_t>>()) << text;
    ASSERT_EQ(fnv(chat.encode_prompt(conversation, "line")), want["prompt"]);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, TemplateParity,
                         ::testing::Combine(::testing::Values("llama3", "qwen3", "mixtral", "deepseek",
                                                              "gpt_oss"),
                                            ::testing::Bool()),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param)) +
                                  (std::get<1>(info.param) ? "WithMarks" : "WithoutMarks");
                         });

}  // namespace
}  // namespace pleat::data
