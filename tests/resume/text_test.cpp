// Drawing tokens, and the bigram model every byte-level run is shown beside.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "data/byte_tokenizer.h"
#include "data/indexed_dataset.h"
#include "data/indexed_writer.h"
#include "infer/generate.h"
#include "resume/resume_support.h"
#include "train/announce.h"
#include "train/bigram.h"

namespace pleat::train {
namespace {

using infer::choose_token;
using infer::generate;
using infer::GenerateOptions;

// Probabilities 0.1, 0.4, 0.2, 0.3 at temperature 1; by likelihood: 1, 3, 2, 0.
const std::vector<double> kLogits = {std::log(0.1) + 5, std::log(0.4) + 5, std::log(0.2) + 5,
                                     std::log(0.3) + 5};

// Shares of each token over evenly spaced numbers in [0, 1).
std::vector<double> shares(const GenerateOptions& options, int n = 10000) {
  std::vector<double> out(kLogits.size());
  for (int i = 0; i < n; ++i) out[size_t(choose_token(kLogits, options, (i + 0.5) / n))] += 1.0 / n;
  return out;
}

void expect_shares(const GenerateOptions& options, const std::vector<double>& expected) {
  const std::vector<double> got = shares(options);
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(got[i], expected[i], 2e-4) << "token " << i;
}

GenerateOptions with(double temperature, int64_t top_k = 0, double top_p = 1.0) {
  GenerateOptions o;
  o.temperature = temperature;
  o.top_k = top_k;
  o.top_p = top_p;
  return o;
}

TEST(ChooseToken, FollowsTheProbabilities) { expect_shares(with(1), {0.1, 0.4, 0.2, 0.3}); }

TEST(ChooseToken, TemperatureSharpensAndFlattens) {
  expect_shares(with(0.5), {0.01 / 0.3, 0.16 / 0.3, 0.04 / 0.3, 0.09 / 0.3});
  expect_shares(with(1e9), {0.25, 0.25, 0.25, 0.25});
  expect_shares(with(0), {0, 1, 0, 0});
  EXPECT_EQ(choose_token({1, 3, 3, 2}, with(0), 0.999), 1) << "ties go to the smaller token";
}

TEST(ChooseToken, TopKKeepsTheMostLikely) {
  expect_shares(with(1, 1), {0, 1, 0, 0});
  expect_shares(with(1, 2), {0, 4.0 / 7, 0, 3.0 / 7});
  expect_shares(with(1, 99), {0.1, 0.4, 0.2, 0.3});
}

TEST(ChooseToken, TopPKeepsTheSmallestSetThatReachesIt) {
  expect_shares(with(1, 0, 0.3), {0, 1, 0, 0});
  expect_shares(with(1, 0, 0.5), {0, 4.0 / 7, 0, 3.0 / 7});
  expect_shares(with(1, 0, 0.8), {0, 4.0 / 9, 2.0 / 9, 3.0 / 9});
  // The share is of what top-k left.
  expect_shares(with(1, 2, 0.5), {0, 1, 0, 0});
}

TEST(ChooseToken, EndsOfTheInterval) {
  EXPECT_EQ(choose_token(kLogits, with(1), 0.0), 1);
  EXPECT_EQ(choose_token(kLogits, with(1), std::nextafter(1.0, 0.0)), 0);
}

class Generate : public ::testing::Test {
 protected:
  static config::Config small() { return config::resolve(config::parse(testing::run_toml("x", "y", 10))); }
  static runtime::ProgramChoice only_logits() {
    runtime::ProgramChoice c;
    c.train = c.evaluate = false;
    c.logits = true;
    return c;
  }
  Generate() : programs_(small(), only_logits()) { programs_.initialize(); }
  runtime::Programs programs_;
};

TEST_F(Generate, SameSeedSameText) {
  GenerateOptions o = with(1.0);
  o.max_tokens = 50;  // past the window of 32 tokens
  const std::vector<int32_t> prompt = {'a', 'b', 'c'};
  std::vector<int32_t> seen;
  const std::vector<int32_t> first = generate(programs_, prompt, o, [&](int32_t t) { seen.push_back(t); });
  EXPECT_EQ(first.size(), 50u);
  EXPECT_EQ(seen, first);
  EXPECT_EQ(generate(programs_, prompt, o), first);
  o.seed = 1;
  EXPECT_NE(generate(programs_, prompt, o), first);
  o.seed = 0;
  o.stop_tokens = {first[7]};
  const auto stop = std::find(first.begin(), first.end(), first[7]);
  EXPECT_EQ(generate(programs_, prompt, o), std::vector<int32_t>(first.begin(), stop));
}

TEST_F(Generate, BadRequestsAreRefused) {
  EXPECT_THROW(generate(programs_, {}, with(1)), base::Error);
  EXPECT_THROW(generate(programs_, {257}, with(1)), base::Error);
  EXPECT_THROW(generate(programs_, {-1}, with(1)), base::Error);
  EXPECT_THROW(generate(programs_, {1}, with(-1)), base::Error);
  EXPECT_THROW(generate(programs_, {1}, with(std::nan(""))), base::Error);
  EXPECT_THROW(generate(programs_, {1}, with(1, -1)), base::Error);
  EXPECT_THROW(generate(programs_, {1}, with(1, 0, 0.0)), base::Error);
  EXPECT_THROW(generate(programs_, {1}, with(1, 0, 1.5)), base::Error);
}

void write_documents(const std::string& prefix, const std::vector<std::string>& documents) {
  const data::ByteTokenizer tokenizer;
  data::IndexedDatasetWriter writer(prefix, {tokenizer.vocab_size(), tokenizer.end_of_document()});
  for (const std::string& text : documents) writer.append(tokenizer.encode(text)), writer.end_document();
  writer.finish();
}

// Train: a b a b a . (. ends the document): a->b twice, a->. once, b->a twice. Valid: a b b .
TEST(Bigram, HandComputedExample) {
  testing::TemporaryFolder folder;
  write_documents(folder.at("train"), {"ababa"});
  write_documents(folder.at("valid"), {"abb"});
  const data::IndexedDataset train(folder.at("train"), 257), valid(folder.at("valid"), 257);
  const double v = 257;
  const double a_b = (2 + 1 / v) / 4, b_b = (0 + 1 / v) / 3, b_end = (0 + 1 / v) / 3;
  const double bits = -std::log2(a_b) - std::log2(b_b) - std::log2(b_end);
  EXPECT_NEAR(bigram_bits_per_byte(train, valid), bits / 2, 1e-12);
}

// Counted in pieces or in one, the pairs are the same: text longer than one read.
TEST(Bigram, PairsAcrossReadsAreCounted) {
  testing::TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 70000; ++i) text += i % 2 ? 'y' : 'x';
  write_documents(folder.at("train"), {text});
  const data::IndexedDataset train(folder.at("train"), 257);
  const double v = 257;
  // x->y 35000 times of 35000; y->x 34999 and y->. once of 35000.
  const double x_y = (35000 + 1 / v) / 35001, y_x = (34999 + 1 / v) / 35001, y_end = (1 + 1 / v) / 35001;
  const double bits = -35000 * std::log2(x_y) - 34999 * std::log2(y_x) - std::log2(y_end);
  EXPECT_NEAR(bigram_bits_per_byte(train, train), bits / 69999, 1e-9);
}

// "byte" is also what a config says that names nothing: the ids of other tokenizers once counted beyond the
// table.
TEST(Bigram, IdsThatNoByteHasGiveNothing) {
  testing::TemporaryFolder folder;
  write_documents(folder.at("bytes"), {"abab"});
  data::IndexedDatasetWriter writer(folder.at("other"), {70000, 0});
  const std::vector<int32_t> ids = {1, 2, 257, 69999, 3};
  writer.append(ids), writer.end_document(), writer.finish();
  const data::IndexedDataset bytes(folder.at("bytes"), 70000), other(folder.at("other"), 70000);
  EXPECT_GT(bigram_bits_per_byte(bytes, bytes), 0);
  EXPECT_EQ(bigram_bits_per_byte(other, bytes), 0);
  EXPECT_EQ(bigram_bits_per_byte(bytes, other), 0);
}

// It said "-21.2 % lower".
TEST(Bigram, AModelThatIsWorseIsHigher) {
  EXPECT_EQ(compared_with_bigram(4.8665, 4.0153),
            "byte bigram on the same split: 4.0153 (the model is 21.2 % higher)");
  EXPECT_EQ(compared_with_bigram(3, 4), "byte bigram on the same split: 4.0000 (the model is 25.0 % lower)");
  EXPECT_EQ(compared_with_bigram(4, 4), "byte bigram on the same split: 4.0000 (the model is as good)");
}

}  // namespace
}  // namespace pleat::train
