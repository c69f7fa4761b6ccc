// The forms conversations come in: each line against the same conversation as OpenAI writes it.
#include <gtest/gtest.h>

#include "base/error.h"
#include "data/byte_tokenizer.h"
#include "data/chat/chat_line.h"
#include "data/chat/chat_template.h"
#include "data/chat/json_value.h"
#include "data/data_support.h"
#include "data/prepare.h"

namespace pleat::data {
namespace {

void expect_messages(const std::string& line, ChatForm form, const std::string& wanted) {
  const Conversation c = conversation_from_json(line, "f:1");
  EXPECT_EQ(c.form, form) << line;
  TemplateValue::List wholes;
  for (const ChatMessage& message : c.messages) {
    wholes.push_back(message.whole);
    EXPECT_EQ(*message.whole.member("role"), TemplateValue(message.role));
    const TemplateValue* content = message.whole.member("content");
    EXPECT_EQ(content && content->text() ? *content->text() : "", message.content);
  }
  EXPECT_EQ(TemplateValue(wholes), value_from_json(wanted, "wanted")) << line;
}

std::string fault_of(const std::string& line) {
  return refusal([&] { conversation_from_json(line, "f:7"); });
}

TEST(ChatForms, OpenAiMessagesAreKeptWhole) {
  expect_messages(
      R"({"messages": [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "name": "kim", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": null, "refusal": null, "audio": null, "annotations": [],
         "reasoning_content": "hm", "tool_calls": [{"id": "1", "type": "function",
           "function": {"name": "f", "arguments": "{\"z\": 1, \"a\": 2}"}}]},
        {"role": "tool", "tool_call_id": "1", "content": "3", "weight": 0},
        {"role": "assistant", "tool_calls": [{"function": {"name": "g", "arguments": {"z": 1.5, "a": [null]}}}]},
        {"role": "assistant", "content": null, "function_call": {"name": "h", "arguments": "{}"}},
        {"role": "function", "name": "h", "content": "4"},
        {"role": "assistant", "content": "7", "function_call": null, "tool_calls": null}]})",
      ChatForm::OpenAi,
      R"([{"role": "developer", "content": "Be brief."},
        {"role": "user", "name": "kim", "content": "ab"},
        {"role": "assistant", "content": null, "reasoning_content": "hm", "tool_calls": [{"id": "1", "type": "function",
           "function": {"name": "f", "arguments": "{\"z\": 1, \"a\": 2}"}}]},
        {"role": "tool", "tool_call_id": "1", "content": "3"},
        {"role": "assistant", "tool_calls": [{"function": {"name": "g", "arguments": {"z": 1.5, "a": [null]}}}]},
        {"role": "assistant", "content": null,
         "tool_calls": [{"type": "function", "function": {"name": "h", "arguments": "{}"}}]},
        {"role": "tool", "name": "h", "content": "4"},
        {"role": "assistant", "content": "7"}])");
}

TEST(ChatForms, ShareGptWasRefused) {
  expect_messages(
      R"({"id": "x_0", "system": "S", "conversations": [{"from": "human", "value": "q", "markdown": null},
        {"from": "function_call", "value": "{\"name\": \"f\", \"arguments\": {\"b\": 1, \"a\": 2}}"},
        {"from": "observation", "value": "3"}, {"from": "gpt", "value": "r", "weight": 0}]})",
      ChatForm::ShareGpt,
      R"([{"role": "system", "content": "S"}, {"role": "user", "content": "q"},
        {"role": "assistant", "content": null,
         "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"b": 1, "a": 2}}}]},
        {"role": "tool", "content": "3"}, {"role": "assistant", "content": "r"}])");
  const Conversation c = conversation_from_json(
      R"({"conversations": [{"from": "gpt", "value": "r", "weight": 0}], "tools": "[{\"name\": \"f\"}]"})",
      "f:1");
  EXPECT_EQ(c.messages[0].counts, false);
  EXPECT_EQ(c.tools, value_from_json(R"([{"type": "function", "function": {"name": "f"}}])", ""));
  // Role and content under the other name.
  expect_messages(R"({"conversations": [{"role": "user", "content": "q"}]})", ChatForm::OpenAi,
                  R"([{"role": "user", "content": "q"}])");
}

TEST(ChatForms, Alpaca) {
  expect_messages(R"({"instruction": "Add.", "input": "1 2", "output": "3", "text": "Below is"})",
                  ChatForm::Alpaca,
                  R"([{"role": "user", "content": "Add.\n1 2"}, {"role": "assistant", "content": "3"}])");
  expect_messages(
      R"({"instruction": "q", "input": "", "output": "r", "system": "S", "history": [["a", "b"]]})",
      ChatForm::Alpaca,
      R"([{"role": "system", "content": "S"}, {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"}, {"role": "user", "content": "q"}, {"role": "assistant", "content": "r"}])");
}

TEST(ChatForms, OfPromptAndCompletionOnlyTheLastCounts) {
  expect_messages(R"({"prompt": "q", "completion": " r"})", ChatForm::PromptCompletion,
                  R"([{"role": "user", "content": "q"}, {"role": "assistant", "content": " r"}])");
  const Conversation c = conversation_from_json(
      R"({"prompt": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user",)"
      R"( "content": "c"}], "completion": [{"role": "assistant", "content": "d"}]})",
      "f:1");
  ASSERT_EQ(c.messages.size(), 4u);
  EXPECT_EQ(c.messages[1].counts, false) << "an answer of the prompt";
  EXPECT_EQ(c.messages[3].counts, std::nullopt) << "as its role says";
}

TEST(ChatForms, ToolsOfTheLine) {
  const auto tools = [](const std::string& member) {
    return conversation_from_json(R"({"messages": [{"role": "user", "content": "a"}], )" + member + "}",
                                  "f:1")
        .tools;
  };
  const TemplateValue one = value_from_json(R"([{"type": "function", "function": {"name": "f"}}])", "");
  EXPECT_EQ(tools(R"("tools": [{"type": "function", "function": {"name": "f"}}])"), one);
  EXPECT_EQ(tools(R"("functions": [{"name": "f"}])"), one);
  EXPECT_TRUE(tools(R"("tools": [])").is_none());
  EXPECT_TRUE(tools(R"("tools": null, "functions": null)").is_none());
}

TEST(ChatForms, WhatWouldChangeTheMeaningIsRefusedByName) {
  const auto message = [](const std::string& members) { return R"({"messages": [{)" + members + "}]}"; };
  const std::pair<std::string, const char*> cases[] = {
      {message(R"("role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}])"),
       "f:7: message 1: a part of type \"image_url\" is not supported; only \"text\" can be learned"},
      {message(R"("role": "user", "content": [{"type": "text", "text": "a", "cache": 1}])"),
       "\"cache\" in a part"},
      {message(R"("role": "user", "content": [])"), "\"content\" is an empty list"},
      {message(R"("role": "assistant", "content": "a", "refusal": "no")"), "\"refusal\" is not supported"},
      {message(
           R"("role": "user", "content": "a", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}])"),
       "only the assistant calls tools"},
      {message(R"("role": "assistant", "tool_calls": [{"function": {"name": "f"}}])"),
       "\"arguments\" of a tool call are missing"},
      {message(R"("role": "assistant", "tool_calls": [{"function": {"arguments": {}}}])"),
       "a tool call has no \"name\""},
      {message(
           R"("role": "assistant", "tool_calls": [{"type": "code", "function": {"name": "f", "arguments": "{}"}}])"),
       "another \"type\" than \"function\""},
      {message(R"("role": "assistant", "tool_calls": "f")"),
       "\"tool_calls\" holds a string; a list is needed"},
      {R"({"conversations": [{"from": "narrator", "value": "a"}]})",
       "message 1: \"from\" is \"narrator\"; known are"},
      {R"({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt"}]})",
       "message 2: \"value\" is missing"},
      {R"({"conversations": [{"from": "human", "value": "a", "emotion": "glad"}]})",
       "\"emotion\" is not supported"},
      {R"({"conversations": [{"from": "function_call", "value": "f of 1"}]})",
       "message 1: function_call: broken JSON"},
      {R"({"system": "S", "conversations": [{"from": "system", "value": "a"}]})", "one is needed"},
      {R"({"prompt": "a", "completion": "b", "label": false})", "\"label\" says whether an answer is good"},
      {R"({"prompt": "a", "chosen": "b", "rejected": "c"})", "\"chosen\" and \"rejected\" are pairs"},
      {R"({"instruction": "", "output": "b"})", "\"instruction\" and \"input\" are empty"},
      {R"({"instruction": "a", "output": "b", "history": ["a"]})", "pairs of question and answer"},
      {R"({"messages": [{"role": "user", "content": "a"}], "conversations": []})", "both \"messages\" and"},
      {R"({"messages": [{"role": "user", "content": "a"}], "tools": {"a": 1}})",
       "\"tools\" holds an object; a list"},
  };
  for (const auto& [line, wanted] : cases) {
    const std::string got = fault_of(line);
    EXPECT_TRUE(got.starts_with("f:7: ")) << got;
    expect_in(wanted, got);
    EXPECT_LT(got.size(), 300u);
  }
}

TEST(ChatForms, ALineOfMillionsOfValuesIsBounded) {
  std::string line = R"({"messages": [)";
  for (int i = 0; i < (1 << 20) + 1; ++i) line += "0,";
  expect_in("JSON with more than 1048576 values", fault_of(line + "0]}"));
}

TEST(ChatForms, OneFormPerFile) {
  TemporaryFolder folder;
  const std::string openai = R"({"messages": [{"role": "user", "content": "a"}]})";
  const std::string alpaca = R"({"instruction": "a", "output": "b"})";
  const ByteTokenizer bytes;
  const auto make = [&](const std::string& first, const std::string& second) {
    write_file(folder.at("a.jsonl"), first);
    write_file(folder.at("b.jsonl"), second);
    return prepare({.inputs = {folder.at("a.jsonl"), folder.at("b.jsonl")},
                    .chat = chat_preset("plain"),
                    .output_prefix = folder.at("out")},
                   bytes)
        .forms;
  };
  EXPECT_EQ(make(openai, alpaca), (std::vector<std::optional<ChatForm>>{ChatForm::OpenAi, ChatForm::Alpaca}));
  expect_in("b.jsonl:2: the line is in OpenAI form, but the file began in Alpaca form",
            refusal([&] { make(openai, alpaca + "\n" + openai); }));
}

// The strings of a template say who speaks and what; the rest would be lost.
TEST(ChatForms, StringTemplatesRefuseWhatTheyCannotSay) {
  const ByteTokenizer bytes;
  const ChatEncoder encoder(chat_preset("plain"), bytes);
  const auto fault = [&](const std::string& line) {
    return refusal([&] { encoder.encode(conversation_from_json(line, "f:3"), "f:3"); });
  };
  const std::string user = R"({"role": "user", "content": "a"})";
  const std::string call =
      R"({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]})";
  EXPECT_EQ(fault("{\"messages\": [" + user + ", " + call + "]}"),
            "f:3: message 2: \"tool_calls\": chat template plain has no words for it; chat.template = "
            "\"tokenizer\" (--chat tokenizer) uses the tokenizer's own");
  expect_in("f:3: the line has \"tools\": chat template plain",
            fault("{\"messages\": [" + user + "], \"tools\": [{}]}"));
  expect_in("message 1: \"reasoning_content\"",
            fault(R"({"messages": [{"role": "assistant", "content": "a", "reasoning_content": "b"}]})"));
  expect_in("message 1: \"name\"", fault(R"({"messages": [{"role": "user", "content": "a", "name": "b"}]})"));
  // A developer speaks as the system.
  const EncodedChat got = encoder.encode(
      conversation_from_json(R"({"messages": [{"role": "developer", "content": "a"}]})", "f:1"), "f:1");
  EXPECT_EQ(got.tokens, bytes.encode("System: a\n"));
}

}  // namespace
}  // namespace pleat::data
