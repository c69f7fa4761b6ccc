// Single steps of a tokenizer.json, each alone: where they cut and what they make of the text, as Hugging
// Face's tokenizers does it (tools/tokenizer_parity.py --fixtures made steps.json).
//
// The vocabulary is the 256 bytes, and a ByteLevel behind the step puts a space before every piece: the ids,
// read as bytes, are the text with its cuts.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "data/data_support.h"
#include "data/tokenizer/byte_alphabet.h"
#include "data/tokenizer/hugging_face_tokenizer.h"
#include "data/tokenizer/utf8.h"

namespace pleat::data {
namespace {

using Json = nlohmann::json;

HuggingFaceTokenizer tokenizer_with(const Json& normalizer, Json pre_tokenizers) {
  Json vocabulary = Json::object();
  for (int b = 0; b < 256; ++b) {
    std::string character;
    append_code_point(character, byte_character(static_cast<unsigned char>(b)));
    vocabulary[character] = b;
  }
  pre_tokenizers.push_back({{"type", "ByteLevel"}, {"add_prefix_space", true}, {"use_regex", false}});
  const Json file = {{"normalizer", normalizer},
                     {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", pre_tokenizers}}},
                     {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", Json::array()}}}};
  return HuggingFaceTokenizer(file.dump(), "steps.json", "");
}

std::string cut_by(const HuggingFaceTokenizer& tokenizer, const std::string& text) {
  std::string found;
  for (const int32_t id : tokenizer.encode(text)) found.push_back(static_cast<char>(id));
  return found;
}

TEST(TokenizerSteps, EachCutsAndSpellsAsItShould) {
  const Json all = Json::parse(read_file(tokenizer_data() + "steps.json"));
  EXPECT_GT(all["steps"].size(), 90u);
  for (const Json& step : all["steps"]) {
    const std::string what = step["normalizer"].dump() + " " + step["pre_tokenizers"].dump();
    const auto tokenizer = tokenizer_with(step["normalizer"], step["pre_tokenizers"]);
    for (size_t i = 0; i < all["texts"].size(); ++i)
      EXPECT_EQ(cut_by(tokenizer, all["texts"][i]), step["found"][i].get<std::string>()) << what;
  }
}

// A text of one long run costs in proportion to its length: a step that looked back over it would take minutes.
TEST(TokenizerSteps, LongRunsStayLinear) {
  const Json all = Json::parse(read_file(tokenizer_data() + "steps.json"));
  for (const Json& step : all["steps"]) {
    const std::string what = step["normalizer"].dump() + " " + step["pre_tokenizers"].dump();
    if (what.find("Regex") != std::string::npos) continue;  // a pattern may ask for more
    const auto tokenizer = tokenizer_with(step["normalizer"], step["pre_tokenizers"]);
    for (const std::string unit : {" ", "-"}) {
      std::string text;
      while (text.size() < 100'000) text += unit;
      tokenizer.encode("x" + text + "x");
    }
  }
}

}  // namespace
}  // namespace pleat::data
