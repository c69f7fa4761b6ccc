// What is refused when a tokenizer file is read, and what open_tokenizer takes.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/hash.h"
#include "data/data_support.h"
#include "data/tokenizer/hugging_face_tokenizer.h"
#include "data/tokenizer/open_tokenizer.h"
#include "data/tokenizer/rank_files.h"
#include "data/tokenizer/sentencepiece_tokenizer.h"

namespace pleat::data {
namespace {

using Json = nlohmann::json;

Json tiny() {
  return Json::parse(R"({"version": "1.0", "truncation": null, "padding": null,
    "added_tokens": [{"id": 3, "content": "<e>", "special": true, "normalized": false}],
    "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": null,
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}})");
}

// The message after `change` was made to a good file.
std::string refused(const std::function<void(Json&)>& change) {
  Json json = tiny();
  change(json);
  return refusal([&] { HuggingFaceTokenizer(json.dump(), "t", ""); });
}

bool has(const std::string& message, const std::string& part) {
  return message.find(part) != std::string::npos;
}

TEST(TokenizerFiles, TinyFileWorks) {
  const HuggingFaceTokenizer t(tiny().dump(), "t", "<e>");
  EXPECT_EQ(t.encode("abba<e>ab?"), (std::vector<int32_t>{2, 1, 0, 3, 2}));
  EXPECT_EQ(t.vocab_size(), 4);
  EXPECT_EQ(t.end_of_document(), 3);
  EXPECT_EQ(t.id_of("<e>"), 3);
  EXPECT_EQ(t.id_of("zz"), std::nullopt);
  EXPECT_EQ(t.decode(std::vector<int32_t>{2, 3, 0}), "aba");  // the end of a document decodes to nothing
  EXPECT_TRUE(has(refusal([&] { t.decode(std::vector<int32_t>{7}); }), "id 7 at position 0"));
  EXPECT_TRUE(has(refusal([&] { t.decode(std::vector<int32_t>{-1}); }), "id -1 at position 0"));
}

TEST(TokenizerFiles, AnEmptyVocabularyIsCalledEmpty) {
  EXPECT_TRUE(has(refused([](Json& j) {
                    j["model"]["vocab"] = Json::object();
                    j["model"]["merges"] = Json::array();
                  }),
                  "model.vocab: the vocabulary is empty"));
}

TEST(TokenizerFiles, AShortTextStaysShort) {
  EXPECT_TRUE(has(refused([](Json& j) {
                    j["normalizer"] = {{"type", "Prepend"}, {"prepend", std::string(100'000, 'a')}};
                  }),
                  "\"prepend\" has 100000 bytes; at most 256"));
  const Json doubling = {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aa"}};
  const auto text_with = [](const Json& normalizer, const std::string& text) {
    Json json = tiny();
    json["normalizer"] = normalizer;
    return refusal([&] { HuggingFaceTokenizer(json.dump(), "t", "").encode(text); });
  };
  const Json sixty = {{"type", "Sequence"}, {"normalizers", Json(60, doubling)}};
  EXPECT_TRUE(has(text_with(sixty, "aaab"), "normalizer makes more than 4352 bytes of a text of 4"));
  // Nested, the bound is the same; five of them are within it.
  const Json nested = {{"type", "Sequence"}, {"normalizers", {sixty, doubling}}};
  EXPECT_TRUE(has(text_with(nested, "aaab"), "normalizer makes more than 4352 bytes of a text of 4"));
  Json five = tiny();
  five["normalizer"] = {{"type", "Sequence"}, {"normalizers", Json(5, doubling)}};
  EXPECT_EQ(HuggingFaceTokenizer(five.dump(), "t", "").encode("ab").size(), 32u);
  const Json one = {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", std::string(5000, 'b')}};
  EXPECT_TRUE(has(text_with(one, "aaab"), "normalizer makes more than 4352 bytes"));
}

TEST(TokenizerFiles, AFewTokensDecodeToAFewBytes) {
  const std::vector<int32_t> ids = {0, 0, 0, 1};
  const auto with = [](const Json& decoder) {
    Json json = tiny();
    json["decoder"] = decoder;
    return json.dump();
  };
  const auto decoded_with = [&](const Json& decoder) {
    return refusal([&] { HuggingFaceTokenizer(with(decoder), "t", "").decode(ids, {}); });
  };
  const Json long_one = {
      {"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", std::string(1'000'000, 'a')}};
  EXPECT_TRUE(has(decoded_with(long_one), "decoder makes more than 4352 bytes of a text of 4; at most 64"));
  const Json doubling = {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aa"}};
  const Json sixty = {{"type", "Sequence"}, {"decoders", Json(60, doubling)}};
  EXPECT_TRUE(has(decoded_with(sixty), "decoder makes more than 4352 bytes of a text of 4"));
  const Json nested = {{"type", "Sequence"}, {"decoders", {sixty, doubling}}};
  EXPECT_TRUE(has(decoded_with(nested), "decoder makes more than 4352 bytes of a text of 4"));
  EXPECT_TRUE(has(decoded_with({{"type", "Sequence"}, {"decoders", {sixty, sixty}}}),
                  "more than 64 decoders in a row"));
  const Json two = {{"type", "Sequence"}, {"decoders", Json(2, doubling)}};
  EXPECT_EQ(HuggingFaceTokenizer(with(two), "t", "").decode(ids, {}), "aaaaaaaaaaaab");
}

TEST(TokenizerFiles, UnsupportedPartsAreNamed) {
  EXPECT_TRUE(has(refused([](Json& j) {
                    j["normalizer"] = {{"type", "Precompiled"}};
                  }),
                  "normalizer \"Precompiled\""));
  EXPECT_TRUE(has(refused([](Json& j) {
                    j["pre_tokenizer"] = {{"type", "UnicodeScripts"}};
                  }),
                  "pre_tokenizer \"UnicodeScripts\" is not supported; ByteLevel, Metaspace, Split"));
  EXPECT_TRUE(has(refused([](Json& j) { j["decoder"] = {{"type", "WordPiece"}}; }), "decoder \"WordPiece\""));
  EXPECT_TRUE(has(refused([](Json& j) {
                    j["post_processor"] = {{"type", "Other"}};
                  }),
                  "post_processor \"Other\""));
  for (const std::string model : {"Unigram", "WordPiece", "WordLevel"})
    EXPECT_TRUE(
        has(refused([&](Json& j) { j["model"]["type"] = model; }),
            "model \"" + model + "\" is not supported: of tokenizer.json files those with a BPE model"));
  EXPECT_TRUE(has(refused([](Json& j) { j["model"]["dropout"] = 0.1; }), "dropout"));
  EXPECT_TRUE(has(refused([](Json& j) { j["model"]["end_of_word_suffix"] = "</w>"; }), "end_of_word_suffix"));
  EXPECT_TRUE(has(refused([](Json& j) { j["model"]["continuing_subword_prefix"] = "##"; }),
                  "continuing_subword_prefix"));
  EXPECT_TRUE(has(refused([](Json& j) { j["extra"] = 1; }), "key \"extra\""));
  EXPECT_TRUE(has(refused([](Json& j) { j["model"]["surprise"] = 1; }), "model: key \"surprise\""));
  const Json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}};
  const Json first = {{"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "first"}};
  EXPECT_TRUE(has(refused([&](Json& j) {
                    j["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {bytes, first}}};
                  }),
                  "\"first\" behind ByteLevel or Metaspace"));
  EXPECT_TRUE(has(refused([&](Json& j) {
                    j["pre_tokenizer"] = first;
                    j["normalizer"] = {{"type", "Strip"}, {"strip_left", true}, {"strip_right", false}};
                  }),
                  "removes text before prepend_scheme \"first\""));
  EXPECT_TRUE(has(refused([&](Json& j) {
                    const Json spaces = {{"type", "WhitespaceSplit"}};
                    j["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {spaces, first}}};
                    j["normalizer"] = {{"type", "NFD"}};
                  }),
                  "before a sequence that uses prepend_scheme \"first\""));
  EXPECT_TRUE(has(
      refused([](Json& j) {
        j["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"Regex", "\\Gx"}}}, {"behavior", "Isolated"}};
      }),
      "pre_tokenizer.pattern: pattern"));
}

// Published files often carry both blocks; they were refused.
TEST(TokenizerFiles, TruncationAndPaddingAreAcceptedAndShownAsNotApplied) {
  Json json = tiny();
  EXPECT_EQ(HuggingFaceTokenizer(json.dump(), "t", "").not_applied(), "");
  json["truncation"] = {
      {"direction", "Right"}, {"max_length", 2}, {"strategy", "LongestFirst"}, {"stride", 0}};
  EXPECT_EQ(HuggingFaceTokenizer(json.dump(), "t", "").not_applied(),
            "t: truncation is set; not applied: every text keeps its own length");
  json["padding"] = {{"strategy", {{"Fixed", 8}}}, {"pad_id", 3}, {"pad_token", "<e>"}};
  const HuggingFaceTokenizer t(json.dump(), "t", "");
  EXPECT_EQ(t.not_applied(),
            "t: truncation and padding are set; not applied: every text keeps its own length");
  EXPECT_EQ(t.encode("abab"), (std::vector<int32_t>{2, 2}));
  EXPECT_EQ(t.encode("abba<e>ab"), (std::vector<int32_t>{2, 1, 0, 3, 2}));
}

// Some byte-level files name an unknown token they lack, and never need one.
TEST(TokenizerFiles, AnUnknownTokenThatIsNeverNeededMayBeMissing) {
  Json json = Json::parse(read_file(tokenizer_data() + "gpt2.json"));
  json["model"]["unk_token"] = "<none>";
  EXPECT_EQ(HuggingFaceTokenizer(json.dump(), "t", "").id_of("<none>"), std::nullopt);
}

TEST(TokenizerFiles, TextsThatGrowWithoutBoundAreRefused) {
  const Json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}};
  const Json spell = {{"type", "ByteLevel"}};
  EXPECT_TRUE(
      has(refused([&](Json& j) {
            j["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", std::vector<Json>(9, bytes)}};
          }),
          "8 ByteLevel steps before the last; at most 4"));
  EXPECT_TRUE(has(refused([&](Json& j) {
                    j["normalizer"] = {{"type", "Sequence"}, {"normalizers", std::vector<Json>(9, spell)}};
                  }),
                  "9 ByteLevel normalizers; at most 2"));
}

TEST(TokenizerFiles, HostileFilesAreRefused) {
  EXPECT_TRUE(has(refused([](Json& j) { j["model"]["vocab"]["c"] = 4000000000; }), "has id 4000000000"));
  EXPECT_TRUE(has(refused([](Json& j) { j["model"]["vocab"]["c"] = -1; }), "has id -1"));
  EXPECT_TRUE(has(refused([](Json& j) { j["model"]["vocab"]["c"] = 1; }), "the same id 1"));
  EXPECT_TRUE(has(refused([](Json& j) { j["model"]["merges"] = {"a c"}; }), "lacks"));
  EXPECT_TRUE(has(refused([](Json& j) { j["model"]["merges"] = {"b a"}; }), "needs the token \"ba\""));
  EXPECT_TRUE(has(refused([](Json& j) { j["model"]["merges"] = {"a b c"}; }), "not two tokens"));
  EXPECT_TRUE(has(refused([](Json& j) { j["model"]["merges"] = {5}; }), "neither a string nor a pair"));
  EXPECT_TRUE(
      has(refused([](Json& j) { j["model"]["merges"] = {std::string(100000, 'a')}; }), "not two tokens"));
  EXPECT_TRUE(has(refused([](Json& j) { j["model"]["unk_token"] = "?"; }), "the vocabulary lacks \"?\""));
  EXPECT_TRUE(has(refused([](Json& j) { j["added_tokens"][0]["id"] = 1; }), "which belongs to \"b\""));
  EXPECT_TRUE(has(refused([](Json& j) { j["added_tokens"][0]["content"] = "a"; }), "has id 3 here and 0"));
  EXPECT_TRUE(has(refused([](Json& j) { j["added_tokens"][0]["content"] = std::string(5000, 'x'); }),
                  "at most 4096"));
  EXPECT_TRUE(
      has(refused([](Json& j) {
            j["post_processor"] = Json::parse(
                R"({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "q", "type_id": 0}},
                            {"Sequence": {"id": "A", "type_id": 0}}], "special_tokens": {"q": {"ids": [9]}}})");
          }),
          "no token with id 9"));
  EXPECT_TRUE(has(refusal([] { HuggingFaceTokenizer(std::string(100, '['), "t", ""); }), "deeper than 64"));
  EXPECT_TRUE(has(refusal([] { HuggingFaceTokenizer("{\"a\": ", "t", ""); }), "t: broken JSON"));
  EXPECT_TRUE(has(refusal([] { HuggingFaceTokenizer("[]", "t", ""); }), "an object is needed"));
  EXPECT_TRUE(has(refusal([] { HuggingFaceTokenizer(tiny().dump(), "t", "<nope>"); }), "\"<nope>\""));
}

TEST(TokenizerFiles, RankFiles) {
  std::string ranks = read_file(tokenizer_data() + "small.tiktoken");
  const auto t = read_tiktoken(ranks, "r", "qwen");
  const auto first_special = static_cast<int32_t>(std::count(ranks.begin(), ranks.end(), '\n'));
  EXPECT_EQ(t->end_of_document(), first_special);
  EXPECT_EQ(t->id_of("<|im_end|>"), first_special + 2);
  EXPECT_EQ(t->decode(std::vector<int32_t>{first_special + 1}), "<|im_start|>");
  EXPECT_NE(t->encode("<|im_start|>").size(), 1u);  // text never makes special tokens
  EXPECT_NE(read_tiktoken(ranks, "r", "llama3")->tokenizer_hash(), t->tokenizer_hash());
  EXPECT_TRUE(has(refusal([&] { read_tiktoken(ranks, "r", "gpt9"); }), "known are r50k"));
  const auto harmony = read_tiktoken(ranks, "r", "o200k_harmony");
  EXPECT_EQ(harmony->id_of("<|channel|>"), 200005);
  EXPECT_EQ(harmony->id_of("<|reserved_201087|>"), 201087);
  EXPECT_EQ(harmony->end_of_document(), 199999);
  EXPECT_EQ(harmony->vocab_size(), 201088);
  EXPECT_TRUE(
      has(refusal([&] { read_tiktoken(ranks + "xx 1\n", "r", "qwen"); }), "\"xx 1\" is not \"base64 rank\""));
  EXPECT_TRUE(has(refusal([&] { read_tiktoken(ranks + "AAAA 3\n", "r", "qwen"); }), "the same id 3"));
  EXPECT_TRUE(
      has(refusal([&] { read_tiktoken(ranks + "QUFBQUFB 999999999\n", "r", "qwen"); }), "has id 999999999"));
  EXPECT_TRUE(has(refusal([&] { read_tiktoken("QQ== 0\n", "r", "qwen"); }), "has no rank"));
  EXPECT_TRUE(has(refusal([&] { read_tiktoken("", "r", "qwen"); }), "holds no rank"));
  RankFileFamily letters{.pattern = "[a-z]+"};
  const auto partial = read_tiktoken(ranks, "r", letters);
  EXPECT_TRUE(has(refusal([&] { partial->encode("ab 1"); }), "leaves 2 bytes at 2 uncovered"));
  EXPECT_TRUE(has(refusal([&] { partial->end_of_document(); }), "which token ends a document"));
}

// Kimi's folder: ranks, and special tokens in another file; no tokenizer.json. It was refused.
TEST(TokenizerFiles, AFolderWithTiktokenModelAndItsSettings) {
  TemporaryFolder folder;
  const std::string ranks = read_file(tokenizer_data() + "small.tiktoken");
  const auto num = static_cast<int32_t>(std::count(ranks.begin(), ranks.end(), '\n'));
  write_file(folder.at("tiktoken.model"), ranks);
  EXPECT_TRUE(has(refusal([&] { open_tokenizer(folder.at("")); }), "name its family"));
  EXPECT_TRUE(
      has(refusal([&] { open_tokenizer("kimi:" + folder.at("")); }), "tokenizer_config.json is not there"));
  Json settings = {{"tokenizer_class", "TikTokenTokenizer"}, {"bos_token", "[BOS]"}, {"eos_token", "[EOS]"}};
  const auto name = [&](int32_t id, const char* content) {
    settings["added_tokens_decoder"][std::to_string(num + id)] = {{"content", content}, {"special", true}};
  };
  name(0, "[BOS]"), name(1, "[EOS]"), name(3, "<|im_user|>"), name(11, "<|tool_calls_section_begin|>");
  write_file(folder.at("tokenizer_config.json"), settings.dump());
  const auto t = open_tokenizer(folder.at(""));
  EXPECT_EQ(t->name(), folder.at("tiktoken.model"));
  EXPECT_EQ(t->vocab_size(), num + 256);
  EXPECT_EQ(t->end_of_document(), num + 1);
  EXPECT_EQ(t->id_of("<|tool_calls_section_begin|>"), num + 11);
  EXPECT_EQ(t->id_of("<|reserved_token_" + std::to_string(num + 2) + "|>"), num + 2);
  const std::string text = "the<|im_user|>the";
  const auto ids = t->encode(text);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), num + 3), 1);
  EXPECT_EQ(t->decode(ids, DecodeOptions{}), text);
  const auto plain = t->encode(text, EncodeOptions{.find_special_tokens = false});
  EXPECT_EQ(std::count(plain.begin(), plain.end(), num + 3), 0);
  EXPECT_EQ(t->decode(plain, DecodeOptions{}), text);
  settings["added_tokens_decoder"]["x"] = {{"content", "y"}};
  write_file(folder.at("tokenizer_config.json"), settings.dump());
  EXPECT_TRUE(has(refusal([&] { open_tokenizer(folder.at("")); }), "\"x\" is no id"));
}

std::string tekken(const std::function<void(Json&)>& change = {}) {
  static constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  Json json = {
      {"config", {{"pattern", "[^ ]+| "}, {"default_vocab_size", 260}, {"default_num_special_tokens", 4}}},
      {"vocab", Json::array()}};
  for (int b = 0; b < 256; ++b)
    json["vocab"].push_back(
        {{"rank", b}, {"token_bytes", std::string{kDigits[b >> 2], kDigits[(b & 3) << 4], '=', '='}}});
  if (change) change(json);
  return json.dump();
}

TEST(TokenizerFiles, Tekken) {
  const auto t = read_tekken(tekken(), "tekken.json");
  EXPECT_EQ(t->vocab_size(), 260);
  EXPECT_EQ(t->encode("A b"), (std::vector<int32_t>{69, 36, 102}));
  EXPECT_EQ(t->encode("A", EncodeOptions{.add_special_tokens = true}), (std::vector<int32_t>{1, 69}));
  EXPECT_EQ(t->end_of_document(), 2);
  EXPECT_EQ(t->id_of("[INST]"), 3);
  EXPECT_TRUE(has(refusal([] { read_tekken(tekken([](Json& j) { j["vocab"][5]["rank"] = 6; }), "t"); }),
                  "vocab[5]: its rank is not 5"));
  EXPECT_TRUE(
      has(refusal([] { read_tekken(tekken([](Json& j) { j["config"]["default_vocab_size"] = 900; }), "t"); }),
          "does not fit"));
}

TEST(TokenizerFiles, SentencePiece) {
  const std::string file = read_file(tokenizer_data() + "small.model");
  const auto t = read_sentencepiece(file, "m");
  EXPECT_EQ(t->end_of_document(), t->id_of("</s>"));
  EXPECT_EQ(t->id_of("no such piece"), std::nullopt);
  EXPECT_EQ(t->tokenizer_hash(), base::to_hex(base::sha256(file)));
  EXPECT_TRUE(has(refusal([&] { t->decode(std::vector<int32_t>{99999}); }), "id 99999 at position 0"));
  EXPECT_TRUE(has(refusal([] { read_sentencepiece("not a model", "m"); }), "m: is no SentencePiece model"));
  EXPECT_TRUE(has(refusal([] { read_sentencepiece("", "m"); }), "m: "));
  EXPECT_TRUE(has(refusal([&] { read_sentencepiece(file.substr(0, file.size() / 2), "m"); }), "m: "));
}

TEST(TokenizerFiles, OpenPicksByName) {
  TemporaryFolder folder;
  EXPECT_TRUE(has(refusal([&] { open_tokenizer(folder.at("")); }), "holds no tokenizer.json"));
  EXPECT_TRUE(has(refusal([&] { open_tokenizer(folder.at("none.json")); }), "cannot open"));
  write_file(folder.at("x.tiktoken"), read_file(tokenizer_data() + "small.tiktoken"));
  EXPECT_TRUE(has(refusal([&] { open_tokenizer(folder.at("")); }), "name its family"));
  EXPECT_EQ(open_tokenizer(folder.at(""), {.rank_family = "qwen"})->name(), folder.at("x.tiktoken"));
  write_file(folder.at("tokenizer.model"), read_file(tokenizer_data() + "small.model"));
  EXPECT_EQ(open_tokenizer(folder.at(""))->vocab_size(), 420);
  const std::string json = read_file(tokenizer_data() + "gpt2.json");
  write_file(folder.at("tokenizer.json"), json);
  auto t = open_tokenizer(folder.at(""));
  EXPECT_EQ(t->tokenizer_hash(), base::to_hex(base::sha256(json)));
  EXPECT_FALSE(t->has_end_of_document());
  EXPECT_TRUE(has(refusal([&] { t->end_of_document(); }), "which token ends a document"));
  EXPECT_EQ(open_tokenizer(folder.at(""), {.end_of_document = "<|endoftext|>"})->end_of_document(), 0);
  write_file(folder.at("config.json"), R"({"eos_token_id": [1, 2]})");
  EXPECT_EQ(open_tokenizer(folder.at(""))->end_of_document(), 1);
  write_file(folder.at("special_tokens_map.json"), R"({"eos_token": {"content": "MASK"}})");
  t = open_tokenizer(folder.at(""));
  EXPECT_EQ(t->end_of_document(), t->id_of("MASK"));
  write_file(folder.at("tokenizer_config.json"), R"({"eos_token": "<|endoftext|>"})");
  EXPECT_EQ(open_tokenizer(folder.at(""))->end_of_document(), 0);
  EXPECT_TRUE(has(refusal([&] { open_tokenizer(folder.at("tokenizer.json"), {.rank_family = "qwen"}); }),
                  "is no rank file"));
  write_file(folder.at("other.bin"), "x");
  EXPECT_TRUE(has(refusal([&] { open_tokenizer(folder.at("other.bin")); }), "no tokenizer is known"));
}

// A model has more rows than its tokenizer has tokens, and may generate any of them: a run once ended in an
// error.
TEST(Tokenizers, IdsThatStandForNothingAreLeftOutWhereAsked) {
  const DecodeOptions lenient{.skip_unknown_ids = true};
  for (const char* name : {"byte", "qwen.json", "llama2.json", "small.model", "qwen:small.tiktoken"}) {
    std::string path = name;
    if (path != "byte") path.insert(path.find(':') + 1, tokenizer_data());
    const auto tokenizer = open_tokenizer(path);
    const int32_t beyond = static_cast<int32_t>(tokenizer->vocab_size());
    std::vector<int32_t> ids = tokenizer->encode("the dog");
    const std::string text = tokenizer->decode(ids, lenient);
    EXPECT_EQ(text, "the dog") << name;
    ids.insert(ids.begin() + 1, {beyond, beyond + 70000, -1});
    EXPECT_EQ(tokenizer->decode(ids, lenient), text) << name;
    EXPECT_TRUE(has(refusal([&] { tokenizer->decode(ids, DecodeOptions{}); }), "at position 1")) << name;
  }
}

}  // namespace
}  // namespace pleat::data
