// The sampler against a direct reading of its definition, on small random datasets.
#include "data/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "base/error.h"
#include "data/data_support.h"
#include "data/indexed_writer.h"

namespace pleat::data {
namespace {

struct Made {
  TemporaryFolder folder;
  std::vector<int32_t> stream;
  std::vector<int64_t> begin_of;  // per token: where its document begins in the stream
  std::unique_ptr<IndexedDataset> dataset;

  // Document lengths include the end-of-document token; zero makes an empty document.
  explicit Made(const std::vector<int32_t>& lengths) {
    std::vector<std::vector<int32_t>> documents;
    std::vector<uint16_t> ids;
    TestRandom random(lengths.size());
    for (const int32_t length : lengths) {
      documents.push_back({length});
      const int64_t begin = static_cast<int64_t>(stream.size());
      for (int32_t i = 0; i < length; ++i) {
        stream.push_back(i + 1 == length ? 256 : static_cast<int32_t>(random.below(256)));
        ids.push_back(static_cast<uint16_t>(stream.back()));
        begin_of.push_back(begin);
      }
    }
    write_file(folder.at("d.idx"), RawIndex::of(documents, TokenType::U16).bytes());
    write_file(folder.at("d.bin"), {reinterpret_cast<const char*>(ids.data()), ids.size() * 2});
    dataset = std::make_unique<IndexedDataset>(folder.at("d"), 257);
  }
};

std::vector<int32_t> random_lengths(int count, uint64_t longest, uint64_t seed) {
  TestRandom random(seed);
  std::vector<int32_t> lengths;
  for (int i = 0; i < count; ++i) lengths.push_back(static_cast<int32_t>(random.below(longest + 1)));
  return lengths;
}

void expect_window(const Made& made, int64_t window, int64_t seq_len, bool isolate, const Sample& sample) {
  for (int64_t j = 0; j < seq_len; ++j) {
    const size_t at = static_cast<size_t>(window * seq_len + j), i = static_cast<size_t>(j);
    ASSERT_EQ(sample.tokens[i], made.stream[at]);
    ASSERT_EQ(sample.labels[i], made.stream[at + 1]);
    ASSERT_EQ(sample.valid[i], 1);
    const int64_t start = isolate ? std::max<int64_t>(0, made.begin_of[at] - window * seq_len) : 0;
    ASSERT_EQ(sample.doc_start[i], start);
    ASSERT_EQ(sample.positions[i], j - start);
    ASSERT_EQ(sample.loss_mask[i], isolate && made.begin_of[at] != made.begin_of[at + 1] ? 0 : 1);
  }
}

TEST(Sampler, AgreesWithItsDefinition) {
  for (const uint64_t longest : {1u, 3u, 20u, 200u}) {
    const Made made(random_lengths(40, longest, longest));
    for (const int64_t seq_len : {1, 2, 5, 16}) {
      for (const bool isolate : {false, true}) {
        for (const bool shuffle : {false, true}) {
          const Sampler sampler(*made.dataset, {seq_len, 17, shuffle, isolate});
          const int64_t count = sampler.num_samples_per_epoch();
          ASSERT_EQ(count, (static_cast<int64_t>(made.stream.size()) - 1) / seq_len);
          SampleStorage storage(1, seq_len);
          Sample sample = storage.sample(0);
          DataPosition position;
          std::vector<int> times(static_cast<size_t>(count), 0);
          for (int64_t i = 0; i < count; ++i) {
            const int64_t window = sampler.window_at(position);
            if (!shuffle) {
              ASSERT_EQ(window, i);
            }
            ++times[static_cast<size_t>(window)];
            sampler.next(position, sample);
            expect_window(made, window, seq_len, isolate, sample);
            if (HasFatalFailure()) return;
          }
          EXPECT_EQ(position, (DataPosition{1, 0}));
          EXPECT_EQ(std::count(times.begin(), times.end(), 1), count);
        }
      }
    }
  }
}

TEST(Sampler, EpochsDifferWhenShuffledOnly) {
  const Made made({501, 500});
  const Sampler shuffled(*made.dataset, {.seq_len = 4, .seed = 1});
  const Sampler sequential(*made.dataset, {.seq_len = 4, .seed = 1, .shuffle = false});
  int64_t same = 0;
  for (int64_t i = 0; i < 250; ++i) {
    same += shuffled.window_at({0, i}) == shuffled.window_at({1, i});
    EXPECT_EQ(sequential.window_at({3, i}), i);
  }
  EXPECT_LT(same, 10);
}

TEST(Sampler, ResumingFromAPositionContinuesExactly) {
  const Made made(random_lengths(50, 30, 9));
  constexpr int64_t kSeqLen = 8;
  const Sampler sampler(*made.dataset, {.seq_len = kSeqLen, .seed = 77});
  const int64_t total = 3 * sampler.num_samples_per_epoch() + 2;
  std::vector<DataPosition> positions;
  std::vector<std::vector<int32_t>> samples;
  SampleStorage storage(2, kSeqLen);
  Sample sample = storage.sample(0);
  DataPosition position;
  for (int64_t i = 0; i < total; ++i) {
    positions.push_back(position);
    sampler.next(position, sample);
    samples.emplace_back(sample.tokens.begin(), sample.tokens.end());
  }
  const IndexedDataset reopened(made.dataset->prefix(), 257);
  for (int64_t from = 0; from < total; from += 13) {
    const Sampler resumed(reopened, {.seq_len = kSeqLen, .seed = 77});
    DataPosition again = positions[static_cast<size_t>(from)];
    EXPECT_EQ(resumed.advanced({}, from), again);
    Sample other = storage.sample(1);
    for (int64_t i = from; i < total; ++i) {
      resumed.next(again, other);
      ASSERT_TRUE(
          std::equal(other.tokens.begin(), other.tokens.end(), samples[static_cast<size_t>(i)].begin()));
    }
    EXPECT_EQ(again, position);
  }
}

TEST(Sampler, BadInputIsRefusedWithTheNumbers) {
  const Made made({10});
  const auto message = [&](const SamplerOptions& options) {
    return refusal([&] { Sampler(*made.dataset, options); });
  };
  EXPECT_NE(message({.seq_len = 10}).find("10 tokens are too few: one sample of sequence length 10 needs 11"),
            std::string::npos);
  EXPECT_NE(message({.seq_len = 0}).find("sequence length 0"), std::string::npos);
  EXPECT_NE(message({.seq_len = -4}).find("sequence length -4"), std::string::npos);
  EXPECT_NE(message({.seq_len = INT64_MAX}).find("sequence length 9223372036854775807"), std::string::npos);
  EXPECT_EQ(Sampler(*made.dataset, {.seq_len = 9}).num_samples_per_epoch(), 1);

  const Sampler sampler(*made.dataset, {.seq_len = 3});
  SampleStorage storage(1, 3);
  Sample sample = storage.sample(0);
  for (const DataPosition bad : {DataPosition{0, 3}, DataPosition{0, -1}, DataPosition{-1, 0}}) {
    DataPosition position = bad;
    EXPECT_NE(refusal([&] { sampler.next(position, sample); }).find("is impossible: an epoch has 3 samples"),
              std::string::npos);
    EXPECT_EQ(position, bad);
  }
}

TEST(Sampler, AnIdOutsideTheVocabularyStopsTheSample) {
  const Made made({20});
  const IndexedDataset narrow(made.dataset->prefix(), 256);  // the end-of-document id 256 is outside
  const Sampler sampler(narrow, {.seq_len = 19, .shuffle = false});
  SampleStorage storage(1, 19);
  Sample sample = storage.sample(0);
  DataPosition position;
  EXPECT_NE(refusal([&] { sampler.next(position, sample); }).find("token 19 (in document 0) has id 256"),
            std::string::npos);
}

}  // namespace
}  // namespace pleat::data
