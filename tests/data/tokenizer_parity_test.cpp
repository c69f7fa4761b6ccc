// Ids and texts of small tokenizers of every kind, as Hugging Face's tokenizers, tiktoken and sentencepiece
// gave them (tools/tokenizer_parity.py --fixtures made the files).
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "data/data_support.h"
#include "data/tokenizer/open_tokenizer.h"
#include "data/tokenizer/utf8.h"

namespace pleat::data {
namespace {

std::string from_hex_text(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2)
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return bytes;
}

TEST(TokenizerParity, SameIdsAndTexts) {
  const nlohmann::json cases = nlohmann::json::parse(read_file(tokenizer_data() + "cases.json"));
  std::map<std::string, std::unique_ptr<TextTokenizer>> open;
  for (const auto& item : cases) {
    const std::string file = item["file"], family = item["family"];
    auto& tokenizer = open[file + family];
    if (!tokenizer) tokenizer = open_tokenizer(tokenizer_data() + file, {.rank_family = family});
    const std::string text = from_hex_text(item["text"]);
    const auto ids = item["ids"].get<std::vector<int32_t>>();
    const std::string where = file + " " + family + ": " + shown(text);
    ASSERT_EQ(tokenizer->encode(text), ids) << where;
    EXPECT_EQ(tokenizer->encode(text), ids) << where << ", from what it remembers";
    const auto framed = item.contains("framed") ? item["framed"].get<std::vector<int32_t>>() : ids;
    EXPECT_EQ(tokenizer->encode(text, EncodeOptions{.add_special_tokens = true}), framed) << where;
    const std::string decoded =
        item.contains("decoded") ? from_hex_text(item["decoded"]) : replace_broken_utf8(text);
    EXPECT_EQ(tokenizer->decode(ids, DecodeOptions{}), decoded) << where;
  }
  EXPECT_EQ(open.size(), 14u);
}

TEST(TokenizerParity, ManyThreadsGiveTheSame) {
  const auto tokenizer = open_tokenizer(tokenizer_data() + "llama3.json");
  const std::string text = read_file(tokenizer_data() + "cases.json");
  const auto expected = tokenizer->encode(text);
  std::vector<std::vector<int32_t>> results(4);
  std::vector<std::thread> threads;
  for (auto& result : results) threads.emplace_back([&] { result = tokenizer->encode(text); });
  for (auto& thread : threads) thread.join();
  for (const auto& result : results) EXPECT_EQ(result, expected);
}

TEST(TokenizerParity, LongRunsAreNeitherDeepNorQuadratic) {
  for (const char* file : {"gpt2.json", "llama3.json", "llama2.json", "metaspace.json", "deepseek.json"}) {
    const auto tokenizer = open_tokenizer(tokenizer_data() + file);
    for (const char* unit : {"^", " ", "a", "\n ", "the", "\xe4\xb8\xad", "A"}) {
      std::string text = "x";
      while (text.size() < 300'000) text += unit;
      EXPECT_EQ(tokenizer->decode(tokenizer->encode(text), DecodeOptions{}), text) << file << " " << unit;
    }
  }
}

TEST(TokenizerParity, BytesCanStayBroken) {
  const auto tokenizer = open_tokenizer(tokenizer_data() + "gpt2.json");
  auto ids = tokenizer->encode("\xf0\x9f\x98\x80");
  ASSERT_GT(ids.size(), 1u);
  ids.pop_back();
  EXPECT_EQ(tokenizer->decode(ids, DecodeOptions{}), "\xef\xbf\xbd");
  EXPECT_TRUE(
      std::string("\xf0\x9f\x98\x80").starts_with(tokenizer->decode(ids, {.keep_broken_utf8 = true})));
}

}  // namespace
}  // namespace pleat::data
