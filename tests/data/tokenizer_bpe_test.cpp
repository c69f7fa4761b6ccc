// The merge loop and the trainer against plain quadratic versions of themselves.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "data/data_support.h"
#include "data/tokenizer/bpe_model.h"
#include "data/tokenizer/byte_alphabet.h"
#include "data/tokenizer/hugging_face_tokenizer.h"
#include "data/tokenizer/open_tokenizer.h"
#include "data/tokenizer/train_bpe.h"

namespace pleat::data {
namespace {

using Json = nlohmann::json;
using Merges = std::vector<std::pair<std::string, std::string>>;

// Merges drawn at random over a small alphabet, so that many tokens can be reached in several ways.
Json random_model(TestRandom& random, int num_merges) {
  std::vector<std::string> tokens = {"a", "b", "c", "d"};
  Json vocab = {{"a", 0}, {"b", 1}, {"c", 2}, {"d", 3}};
  Json merges = Json::array();
  for (int i = 0; i < num_merges; ++i) {
    const std::string left = tokens[random.below(tokens.size())], right = tokens[random.below(tokens.size())];
    if ((left + right).size() > 8) continue;
    if (!vocab.contains(left + right)) {
      vocab[left + right] = tokens.size();
      tokens.push_back(left + right);
    }
    if (std::find(merges.begin(), merges.end(), Json{left, right}) == merges.end())
      merges.push_back({left, right});
  }
  return {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}};
}

std::vector<int32_t> naive(const Json& model, const std::string& text) {
  std::vector<std::string> symbols;
  for (const char c : text) symbols.emplace_back(1, c);
  std::map<std::pair<std::string, std::string>, size_t> rank;
  for (size_t i = 0; i < model["merges"].size(); ++i)
    rank[{model["merges"][i][0], model["merges"][i][1]}] = i;
  for (;;) {
    size_t best = SIZE_MAX, at = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i)
      if (const auto found = rank.find({symbols[i], symbols[i + 1]});
          found != rank.end() && found->second < best) {
        best = found->second;
        at = i;
      }
    if (best == SIZE_MAX) break;
    symbols[at] += symbols[at + 1];
    symbols.erase(symbols.begin() + static_cast<ptrdiff_t>(at) + 1);
  }
  std::vector<int32_t> ids;
  for (const std::string& symbol : symbols) ids.push_back(model["vocab"][symbol]);
  return ids;
}

TEST(TokenizerBpe, ArrayTournamentAndCutsAgreeWithThePlainLoop) {
  TestRandom random(5);
  for (int round = 0; round < 150; ++round) {
    const Json json = random_model(random, 1 + static_cast<int>(random.below(24)));
    const BpeModel model(json, false, "m");
    BpeModel::Workspace workspace;
    for (const size_t length : {1u, 7u, 40u, 48u, 49u, 64u, 65u, 90u, 160u, 400u}) {
      std::string text;
      while (text.size() < length) text += static_cast<char>('a' + random.below(4));
      std::vector<int32_t> ids;
      model.encode(text, ids, workspace);
      ASSERT_EQ(ids, naive(json, text)) << json.dump() << " " << text;
    }
  }
}

TEST(TokenizerBpe, AWordOfHundredsOfMegabytesIsRefused) {
  const BpeModel model(Json::parse(R"({"type": "BPE", "vocab": {"a": 0, "aa": 1}, "merges": ["a a"]})"), true,
                       "m");
  BpeModel::Workspace workspace;
  std::vector<int32_t> ids;
  model.encode(std::string(1'000'001, 'a'), ids, workspace);
  EXPECT_EQ(ids.size(), 500'001u);
  const std::string message =
      refusal([&] { model.encode(std::string(kMostWordBytes + 1, 'a'), ids, workspace); });
  EXPECT_EQ(message,
            "a word of 67108865 bytes: the tokenizer finds no place to cut the text, and at most 67108864 "
            "bytes are possible without one; split the text");
}

// Same pieces, same ties; counts everything again after every merge.
Merges train_naively(const std::vector<std::string>& words, size_t vocab_size, int64_t min_frequency,
                     Json& ids) {
  std::vector<std::vector<std::string>> split;
  for (const std::string& word : words) {
    split.emplace_back();
    for (const char c : word) {
      std::string character;
      append_byte_characters(character, {&c, 1});
      split.back().push_back(character);
    }
  }
  Merges merges;
  while (ids.size() < vocab_size) {
    std::map<std::pair<int, int>, std::pair<int64_t, std::pair<std::string, std::string>>> counts;
    for (const auto& word : split)
      for (size_t i = 0; i + 1 < word.size(); ++i) {
        auto& entry = counts[{ids[word[i]], ids[word[i + 1]]}];
        ++entry.first;
        entry.second = {word[i], word[i + 1]};
      }
    const std::pair<const std::pair<int, int>, std::pair<int64_t, std::pair<std::string, std::string>>>*
        best = nullptr;
    for (const auto& entry : counts)
      if (best == nullptr || entry.second.first > best->second.first) best = &entry;
    if (best == nullptr || best->second.first < min_frequency) break;
    const auto [left, right] = best->second.second;
    merges.emplace_back(left, right);
    if (!ids.contains(left + right)) ids[left + right] = ids.size();
    for (auto& word : split)
      for (size_t i = 0; i + 1 < word.size(); ++i)
        if (word[i] == left && word[i + 1] == right) {
          word[i] += right;
          word.erase(word.begin() + static_cast<ptrdiff_t>(i) + 1);
        }
  }
  return merges;
}

TEST(TokenizerTraining, AgreesWithCountingAgain) {
  TestRandom random(9);
  for (int round = 0; round < 20; ++round) {
    std::vector<std::string> words;
    for (int i = 0; i < 60; ++i) {
      std::string word;
      for (uint64_t n = 1 + random.below(7); n > 0; --n) word += "abcde"[random.below(5)];
      words.push_back(word);
    }
    BpeTrainer trainer({.vocab_size = 300, .min_frequency = 2});
    std::string document;
    for (const std::string& word : words) document += "\n" + word;  // a line break never joins a word
    trainer.add(document);
    const Json json = Json::parse(trainer.train().tokenizer_json);
    Json ids;
    for (const auto& item : json["model"]["vocab"].items())
      if (item.value() < 257) ids[item.key()] = item.value();
    const Merges expected = train_naively(words, 300, 2, ids);
    Merges merges;
    for (const Json& merge : json["model"]["merges"]) merges.emplace_back(merge[0], merge[1]);
    ASSERT_EQ(merges, expected) << document;
    ASSERT_EQ(json["model"]["vocab"], ids);
  }
}

TEST(TokenizerTraining, OrderOfDocumentsDoesNotMatterAndTheFileLoads) {
  const std::vector<std::string> documents = {"the cat and the dog",
                                              "die Gr\xc3\xb6\xc3\x9f"
                                              "e der Stra\xc3\x9f"
                                              "e",
                                              "the \xff end",
                                              "and and and the the",
                                              "",
                                              "x"};
  TrainBpeOptions options{.vocab_size = 290, .min_frequency = 1};
  int64_t last = 0;
  options.progress = [&](const TrainBpeProgress& p) { last = p.num_tokens; };
  options.special_tokens = {"<pad>", "<|endoftext|>"};
  size_t at = 0;
  const TrainedBpe forward = train_bpe(
      [&](std::string& d) {
        if (at == documents.size()) return false;
        d = documents[at++];
        return true;
      },
      options);
  EXPECT_EQ(last, 290);
  EXPECT_EQ(forward.vocab_size, 290);
  BpeTrainer backward(options);
  for (size_t i = documents.size(); i-- > 0;) backward.add(documents[i]);
  EXPECT_EQ(backward.train().tokenizer_json, forward.tokenizer_json);

  TemporaryFolder folder;
  write_trained_bpe(forward, folder.at("deep/er"));
  const auto tokenizer = open_tokenizer(folder.at("deep/er"));
  EXPECT_EQ(tokenizer->vocab_size(), 290);
  EXPECT_EQ(tokenizer->end_of_document(), 1);
  const auto ids = tokenizer->encode("the cat <pad>");
  EXPECT_EQ(ids.back(), 0);
  EXPECT_LT(ids.size(), 6u);
  EXPECT_EQ(tokenizer->decode(ids), "the cat <pad>");
}

TEST(TokenizerTraining, OwnPatternIsKept) {
  BpeTrainer trainer({.vocab_size = 270, .min_frequency = 1, .pattern = R"(\p{N}|[^\p{N}]+)"});
  trainer.add("1111 a a a a");
  const HuggingFaceTokenizer tokenizer(trainer.train().tokenizer_json, "t", "<|endoftext|>");
  EXPECT_EQ(tokenizer.encode("1111").size(), 4u);
  EXPECT_LT(tokenizer.encode(" a a a a").size(), 4u);
}

TEST(TokenizerTraining, BadOptionsAreNamed) {
  EXPECT_NE(refusal([] { BpeTrainer({.vocab_size = 100}); }).find("a vocabulary of 100; from 257"),
            std::string::npos);
  EXPECT_NE(refusal([] { BpeTrainer({.min_frequency = 0}); }).find("min_frequency 0"), std::string::npos);
  EXPECT_NE(refusal([] { BpeTrainer({.end_of_document = "x"}); }).find("\"x\" should end documents"),
            std::string::npos);
  EXPECT_NE(refusal([] { BpeTrainer({.vocab_size = 300}).train(); }).find("hold no text"), std::string::npos);
}

}  // namespace
}  // namespace pleat::data
