// The pipeline string: the reference's examples, every rule, and strings that are no layout.
#include "layout/pipeline_string.h"

#include <gtest/gtest.h>

#include "layout/from_config.h"
#include "layout/layout_support.h"

namespace pleat::layout {
namespace {

std::string refusal(const std::string& text, const PipelineShape& shape) {
  return message_of([&] { PipelineLayout::parse(text, shape); });
}

// "Ettt", "tt", "m", ...
std::string shown(const Chunk& chunk) {
  std::string out;
  for (const PipelineItem& item : chunk) out += "EtmL"[static_cast<size_t>(item.part)];
  return out;
}

TEST(PipelineString, SixteenRanksTwoChunks) {
  const auto p = PipelineLayout::parse("Et*3|(tt|)*29,m|L", {16, 2, 61, 1});
  EXPECT_EQ(shown(p.chunk(0, 0)), "Ettt");
  for (int pp = 1; pp < 16; ++pp) EXPECT_EQ(shown(p.chunk(0, pp)), "tt");
  for (int pp = 0; pp < 14; ++pp) EXPECT_EQ(shown(p.chunk(1, pp)), "tt");
  EXPECT_EQ(shown(p.chunk(1, 14)), "m");
  EXPECT_EQ(shown(p.chunk(1, 15)), "L");
  EXPECT_EQ(p.chunk(0, 0)[3], (PipelineItem{Part::Layer, 2}));
  EXPECT_EQ(p.chunk(1, 0)[0], (PipelineItem{Part::Layer, 33}));
  EXPECT_EQ(p.place_of_layer(60), (ChunkPlace{1, 13}));
}

TEST(PipelineString, EightRanksFourChunks) {
  const auto p = PipelineLayout::parse("Et|(tt|)*30mL", {8, 4, 61, 1});
  EXPECT_EQ(shown(p.chunk(0, 0)), "Et");
  for (int64_t i = 1; i < 31; ++i) EXPECT_EQ(shown(p.chunk(i)), "tt");
  EXPECT_EQ(shown(p.chunk(3, 7)), "mL");
}

TEST(PipelineString, FourRanksFourChunks) {
  const auto p = PipelineLayout::parse("Et*4|(tttt|)*14tmL", {4, 4, 61, 1});
  EXPECT_EQ(shown(p.chunk(0, 0)), "Etttt");
  for (int64_t i = 1; i < 15; ++i) EXPECT_EQ(shown(p.chunk(i)), "tttt");
  EXPECT_EQ(shown(p.chunk(3, 3)), "tmL");
  EXPECT_EQ(p.place_of_layer(7), (ChunkPlace{0, 1}));
  EXPECT_EQ(p.place_of_layer(16), (ChunkPlace{1, 0}));
}

TEST(PipelineString, RepeatsNestAndSpacesSeparate) {
  const auto p = PipelineLayout::parse(" E , ( (t) * 2 | ) * 3 , t L", {4, 1, 7, 0});
  EXPECT_EQ(shown(p.chunk(0)), "Ett");
  EXPECT_EQ(shown(p.chunk(3)), "tL");
  EXPECT_EQ(PipelineLayout::parse("E|*3tL", {4, 1, 1, 0}).text(), "E|||tL");
}

TEST(PipelineString, EmptyChunksAreLegal) {
  const auto p = PipelineLayout::parse("Ett||tt|L", {4, 1, 4, 0});
  EXPECT_TRUE(p.chunk(1).empty());
  EXPECT_EQ(shown(p.chunk(3)), "L");
}

TEST(PipelineString, TextParsesBack) {
  const PipelineShape shapes[] = {{16, 2, 61, 1}, {8, 4, 61, 1}, {4, 4, 61, 1}, {4, 1, 4, 0}};
  const char* texts[] = {"Et*3|(tt|)*29,m|L", "Et|(tt|)*30mL", "Et*4|(tttt|)*14tmL", "Ett||tt|L"};
  for (int i = 0; i < 4; ++i) {
    const auto p = PipelineLayout::parse(texts[i], shapes[i]);
    const auto again = PipelineLayout::parse(p.text(), shapes[i]);
    EXPECT_EQ(again.text(), p.text());
    for (int64_t c = 0; c < p.num_chunks(); ++c) EXPECT_EQ(again.chunk(c), p.chunk(c));
  }
}

TEST(PipelineString, RulesAreChecked) {
  EXPECT_SAYS(refusal("Ett|ttL", {4, 1, 4, 0}),
              "2 chunks (one more than there are '|'), but pp x vpp = 4 x 1 = 4");
  EXPECT_SAYS(refusal("Ett|tL", {2, 1, 4, 0}), "3 decoder layers (t), but model.num_layers = 4");
  EXPECT_SAYS(refusal("tt|ttL", {2, 1, 4, 0}), "0 times E");
  EXPECT_SAYS(refusal("EtE|tttL", {2, 1, 4, 0}), "2 times E");
  EXPECT_SAYS(refusal("Ett|tt", {2, 1, 4, 0}), "0 times L");
  EXPECT_SAYS(refusal("Ett|ttmL", {2, 1, 4, 0}), "1 prediction layers (m), but the model has 0");
  EXPECT_SAYS(refusal("Ett|ttL", {2, 1, 4, 1}), "0 prediction layers (m), but the model has 1");
  EXPECT_SAYS(refusal("Ett|ttm|m|L", {4, 1, 4, 2}),
              "prediction layers in chunks 1 and 2; all m stand in one");
  EXPECT_SAYS(refusal("Et|t|ttm|L", {2, 2, 4, 1}), "chunk 2, which is on the first pipeline rank");
  EXPECT_SAYS(refusal("Ett|tmtL", {2, 1, 4, 1}), "decoder layer 3 comes after a prediction layer");
  EXPECT_EQ(refusal("EttttmL", {1, 1, 4, 1}), "");
}

TEST(PipelineString, OneSymbolInTheWrongPlaceWasCalledTheWrongNumber) {
  EXPECT_SAYS(refusal("|EttttL", {2, 1, 4, 0}),
              "E stands as item 1 of 6 in chunk 2 of 2; its place is the first item of the first chunk");
  EXPECT_SAYS(refusal("tEt|ttL", {2, 1, 4, 0}), "E stands as item 2 of 3 in chunk 1 of 2");
  EXPECT_SAYS(refusal("EttttL|", {2, 1, 4, 0}),
              "L stands as item 6 of 6 in chunk 1 of 2; its place is the last item of the last chunk");
  EXPECT_SAYS(refusal("Ett|tLt", {2, 1, 4, 0}), "L stands as item 2 of 3 in chunk 2 of 2");
}

TEST(PipelineString, SyntaxErrorsSayWhere) {
  const PipelineShape shape{2, 1, 4, 0};
  EXPECT_SAYS(refusal("Ett|txL", shape), "'x' is not known; needed E, t, m, L, |, (, ) or * (position 5)");
  EXPECT_SAYS(refusal("Et*|tL", shape), "'*' needs a number from 1 to 1048576 (position 2)");
  EXPECT_SAYS(refusal("Et*0|tL", shape), "'*' needs a number");
  EXPECT_SAYS(refusal("Et*99999999999999999999|tL", shape), "'*' needs a number");
  EXPECT_SAYS(refusal("*2", shape), "'*' repeats nothing");
  EXPECT_SAYS(refusal("E(tt|", shape), "'(' is not closed (position 1)");
  EXPECT_SAYS(refusal("Ett)|ttL", shape), "')' closes nothing (position 3)");
  EXPECT_SAYS(refusal("E()ttttL", shape), "brackets around nothing");
  EXPECT_SAYS(refusal("E((((t*999)*999)*999)*999)L", shape), "more than 1048576 items");
  EXPECT_SAYS(refusal(std::string(100, '('), shape), "deeper than 16 brackets");
  EXPECT_SAYS(refusal("E\x01", shape), "'?' is not known");
}

TEST(PipelineString, EvenSplit) {
  const auto p = PipelineLayout::even({4, 2, 16, 1});
  EXPECT_EQ(p.text(), "Et*2|t*2|t*2|t*2|t*2|t*2|t*2|t*2mL");
  EXPECT_EQ(PipelineLayout::make("", {1, 1, 3, 0}).text(), "Et*3L");
  EXPECT_EQ(PipelineLayout::make("Et|ttL", {2, 1, 3, 0}).text(), "Et|t*2L");
}

TEST(PipelineString, UnevenNeedsAString) {
  const PipelineShape shape{16, 2, 61, 1};
  const std::string text = message_of([&] { PipelineLayout::even(shape); });
  EXPECT_SAYS(text, "61 layers do not spread evenly over pp x vpp = 16 x 2 = 32 chunks: 61 / 32 = 1.906");
  EXPECT_SAYS(text, "Nearest that do: pp=");
  // What it proposes is right.
  const size_t quote = text.find('"');
  const std::string proposed = text.substr(quote + 1, text.rfind('"') - quote - 1);
  EXPECT_EQ(PipelineLayout::parse(proposed, shape).num_chunks(), 32);
  EXPECT_SAYS(message_of([] {
                PipelineLayout::even({4, 1, 6, 0});
              }),
              "Nearest that do: pp=3 vpp=1, pp=6 vpp=1, pp=2 vpp=1");
}

TEST(FromConfig, ReadsTheSectionAndTheModel) {
  const std::string base =
      "model.num_layers = 4\nmodel.hidden_size = 32\nmodel.num_heads = 4\nmoe.num_experts = 8\n"
      "moe.ffn_hidden_size = 16\n";
  const config::Config one = config::resolve(config::parse(base));
  EXPECT_EQ(sizes_of(one, 1), (Sizes{1, 1, 1, 1, 1, 1, 1, "tp-cp-ep-dp-pp", 8}));
  EXPECT_NO_THROW(require_one_rank(one));
  const config::Config c = config::resolve(config::parse(
      base + "parallel.tp = 2\nparallel.pp = 2\nparallel.ep = 4\nparallel.pipeline_layout = \"Et|tttL\"\n"));
  EXPECT_EQ(sizes_of(c, 16), (Sizes{16, 2, 1, 2, 1, 4, 1, "tp-cp-ep-dp-pp", 8}));
  EXPECT_EQ(pipeline_of(c).text(), "Et|t*3L");
  EXPECT_SAYS(message_of([&] { require_one_rank(c); }), "1 rank cannot be laid out as tp=2");
}

}  // namespace
}  // namespace pleat::layout
