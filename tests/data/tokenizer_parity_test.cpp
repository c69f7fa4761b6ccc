// Ids and texts of small tokenizers of every kind, as Hugging Face's tokenizers, tiktoken and sentencepiece
// gave them (tools/tokenizer_parity.py --fixtures made the files).
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "data/data_support.h"
#include "data/tokenizer/hugging_face_tokenizer.h"
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

// A tokenizer written like a family's: its own pipeline, a vocabulary that several share.
std::unique_ptr<TextTokenizer> open_family(const std::string& name) {
  static const nlohmann::json all = nlohmann::json::parse(read_file(tokenizer_data() + "families.json"));
  nlohmann::json file = all.at("families").at(name);
  file["model"].update(all.at("models").at(file.at("vocabulary").get<std::string>()));
  file.erase("vocabulary");
  return std::make_unique<HuggingFaceTokenizer>(file.dump(), name, "");
}

TEST(TokenizerParity, SameIdsAndTexts) {
  const nlohmann::json all = nlohmann::json::parse(read_file(tokenizer_data() + "cases.json"));
  const nlohmann::json& texts = all["texts"];
  for (const auto& row : all["tokenizers"]) {
    const std::string file = row["file"], family = row["family"];
    const bool shares = file.find('.') == std::string::npos && file != "kimi";
    const auto tokenizer =
        shares ? open_family(file) : open_tokenizer(tokenizer_data() + file, {.rank_family = family});
    const auto before = row["before"].get<std::vector<int32_t>>();
    const auto after = row["after"].get<std::vector<int32_t>>();
    ASSERT_EQ(row["cases"].size(), texts.size());
    for (size_t i = 0; i < texts.size(); ++i) {
      const auto& item = row["cases"][i];
      const std::string text = from_hex_text(texts[i]);
      const auto ids = item["ids"].get<std::vector<int32_t>>();
      const std::string where = file + " " + family + ": " + shown(text);
      ASSERT_EQ(tokenizer->encode(text), ids) << where;
      EXPECT_EQ(tokenizer->encode(text), ids) << where << ", from what it remembers";
      std::vector<int32_t> framed = before;
      framed.insert(framed.end(), ids.begin(), ids.end());
      framed.insert(framed.end(), after.begin(), after.end());
      EXPECT_EQ(tokenizer->encode(text, EncodeOptions{.add_special_tokens = true}), framed) << where;
      const std::string decoded =
          item.contains("decoded") ? item["decoded"].get<std::string>() : replace_broken_utf8(text);
      EXPECT_EQ(tokenizer->decode(ids, DecodeOptions{}), decoded) << where;
    }
  }
  EXPECT_EQ(all["tokenizers"].size(), 27u + 6u);  // tokenizer.json files and others
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
  std::vector<std::unique_ptr<TextTokenizer>> tokenizers;
  for (const char* file : {"gpt2.json", "llama3.json", "llama2.json", "metaspace.json", "deepseek.json"})
    tokenizers.push_back(open_tokenizer(tokenizer_data() + file));
  for (const char* name : {"gemma", "falcon", "kimi_json", "exaone_moe", "bloom", "bytes_first"})
    tokenizers.push_back(open_family(name));
  for (const auto& tokenizer : tokenizers)
    for (const char* unit : {"^", " ", "a", "\n ", "the", "\xe4\xb8\xad", "A"}) {
      std::string text = "x";
      while (text.size() < 120'000) text += unit;
      EXPECT_EQ(tokenizer->decode(tokenizer->encode(text), DecodeOptions{}), text)
          << tokenizer->name() << " " << unit;
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
