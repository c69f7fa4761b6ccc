// Whole documents: none is cut, every token of an epoch is seen once, padding counts nowhere, and what stands
// where follows from seed, epoch and position alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "data/byte_tokenizer.h"
#include "data/data_support.h"
#include "data/indexed_writer.h"
#include "data/inspect.h"
#include "data/sampler.h"

namespace pleat::data {
namespace {

// Documents of the given lengths, all of whose tokens are different mod 200; every third token counts.
class WholeSet {
 public:
  explicit WholeSet(const std::vector<int64_t>& lengths, bool mask = true) {
    IndexedDatasetWriter writer(folder_.at("set"),
                                {.vocab_size = 257, .end_of_document = 256, .loss_mask = mask});
    int32_t next = 0;
    for (const int64_t length : lengths) {
      std::vector<int32_t> tokens;
      std::vector<uint8_t> counts;
      for (int64_t i = 0; i + 1 < length; ++i) {
        tokens.push_back(next++ % 200);
        counts.push_back(next % 3 == 0);
      }
      writer.append(tokens, std::span(counts).first(mask ? counts.size() : 0));
      writer.end_document(true);
    }
    DatasetInfo info;
    info.tokenizer = info.tokenizer_kind = "byte";
    info.tokenizer_sha256 = ByteTokenizer().tokenizer_hash();
    info.vocab_size = 257;
    info.end_of_document = 256;
    writer.finish([&](const IndexedDatasetWriter::Counts& c) {
      info.num_documents = c.num_documents;
      info.num_tokens = c.num_tokens;
      if (mask) info.num_loss_tokens = c.num_loss_tokens;
      return to_json(info);
    });
    set_.emplace(folder_.at("set"), 257);
  }
  const IndexedDataset& operator*() const { return *set_; }
  const IndexedDataset* operator->() const { return &*set_; }

 private:
  TemporaryFolder folder_;
  std::optional<IndexedDataset> set_;
};

std::vector<int64_t> some_lengths(size_t count, int64_t longest) {
  TestRandom random(11);
  std::vector<int64_t> out;
  for (size_t i = 0; i < count; ++i)
    out.push_back(2 + static_cast<int64_t>(random.below(static_cast<uint64_t>(longest - 1))));
  return out;
}

Sampler whole_sampler(const WholeSet& set, int64_t seq_len, uint64_t seed = 5, bool shuffle = true,
                      Packing packing = Packing::Whole) {
  return Sampler(*set, {.seq_len = seq_len, .seed = seed, .shuffle = shuffle, .packing = packing});
}

TEST(WholeDocuments, NoneIsCutAndEveryTokenOfAnEpochIsSeenOnce) {
  const int64_t length = 48;
  const std::vector<int64_t> lengths = some_lengths(300, length);
  const WholeSet set(lengths);
  const Sampler sampler = whole_sampler(set, length);
  SampleStorage storage(1, length);
  Sample s = storage.sample(0);
  for (const int64_t epoch : {0, 3}) {
    std::multiset<std::vector<int32_t>> seen, wanted;
    DataPosition position{epoch, 0};
    int64_t tokens = 0, padding = 0;
    for (int64_t i = 0; i < sampler.num_samples_per_epoch(); ++i) {
      sampler.next(position, s);
      for (size_t at = 0; at < s.tokens.size();) {
        size_t end = at;
        while (end < s.tokens.size() && s.doc_start[end] == static_cast<int32_t>(at)) ++end;
        for (size_t j = at; j < end; ++j) EXPECT_EQ(s.positions[j], static_cast<int32_t>(j - at));
        if (s.valid[at]) {
          EXPECT_EQ(std::count(s.valid.begin() + long(at), s.valid.begin() + long(end), 1), long(end - at));
          seen.insert(std::vector(s.tokens.begin() + long(at), s.tokens.begin() + long(end)));
          for (size_t j = at; j + 1 < end; ++j) EXPECT_EQ(s.labels[j], s.tokens[j + 1]);
          EXPECT_EQ(s.loss_mask[end - 1], 0);
          tokens += static_cast<int64_t>(end - at);
        } else {
          EXPECT_EQ(end, s.tokens.size()) << "padding stands at the end";
          for (size_t j = at; j < end; ++j) {
            EXPECT_EQ(s.valid[j] + s.loss_mask[j], 0);
            EXPECT_EQ(s.tokens[j], s.tokens[(j - at) % at]);
          }
          padding += static_cast<int64_t>(end - at);
        }
        at = end;
      }
    }
    EXPECT_EQ(position, (DataPosition{epoch + 1, 0}));
    for (int64_t d = 0; d < set->num_documents(); ++d) {
      std::vector<int32_t> document(static_cast<size_t>(lengths[static_cast<size_t>(d)]));
      set->read(set->document_begin(d), document);
      wanted.insert(document);
    }
    EXPECT_EQ(seen, wanted);
    EXPECT_EQ(tokens, set->num_tokens());
    EXPECT_EQ(sampler.num_tokens_per_epoch(), tokens);
    EXPECT_EQ(tokens + padding, sampler.num_samples_per_epoch() * length);
    EXPECT_LT(padding * 10, tokens) << "first-fit fills most of it";
  }
}

TEST(WholeDocuments, TheMaskIsThatOfTheLabels) {
  const WholeSet set({5, 4}), all({5, 4}, false);
  SampleStorage storage(1, 12);
  Sample s = storage.sample(0);
  whole_sampler(set, 12, 0, false).read({}, s);
  std::vector<uint8_t> mask(9);
  set->read_loss_mask(0, mask);
  const std::vector<uint8_t> wanted = {mask[1], mask[2], mask[3], mask[4], 0, mask[6],
                                       mask[7], mask[8], 0,       0,       0, 0};
  EXPECT_TRUE(std::equal(wanted.begin(), wanted.end(), s.loss_mask.begin()));
  whole_sampler(all, 12, 0, false).read({}, s);
  const std::vector<uint8_t> every = {1, 1, 1, 1, 0, 1, 1, 1, 0, 0, 0, 0};
  EXPECT_TRUE(std::equal(every.begin(), every.end(), s.loss_mask.begin()));
}

// The rule by the letter: look at every open sequence in turn.
TEST(WholeDocuments, FirstFitByALoop) {
  const int64_t length = 40;
  const std::vector<int64_t> lengths = some_lengths(500, length);
  const WholeSet set(lengths);
  for (const int64_t group : {int64_t{1} << 20, int64_t{64}, int64_t{1}}) {
    std::vector<std::vector<uint32_t>> wanted;
    std::vector<int64_t> room;
    size_t first_open = 0;
    for (size_t d = 0; d < lengths.size(); ++d) {
      if (d % static_cast<size_t>(group) == 0) first_open = wanted.size();
      size_t at = first_open;
      while (at < wanted.size() && room[at] < lengths[d]) ++at;
      if (at == wanted.size()) wanted.emplace_back(), room.push_back(length);
      wanted[at].push_back(static_cast<uint32_t>(d));
      room[at] -= lengths[d];
    }
    const WholeDocuments whole(*set, {.seq_len = length, .shuffle = false, .group_documents = group});
    ASSERT_EQ(whole.num_sequences(), static_cast<int64_t>(wanted.size())) << group;
    for (size_t i = 0; i < wanted.size(); ++i) {
      const auto got = whole.documents(static_cast<int64_t>(i));
      EXPECT_EQ(std::vector(got.begin(), got.end()), wanted[i]) << group;
    }
  }
}

TEST(WholeDocuments, APositionIsAllThereIs) {
  const int64_t length = 32;
  const WholeSet set(some_lengths(200, length));
  const Sampler one = whole_sampler(set, length), again = whole_sampler(set, length),
                other = whole_sampler(set, length, 6);
  SampleStorage storage(3, length);
  Sample a = storage.sample(0), b = storage.sample(1), c = storage.sample(2);
  DataPosition position;
  std::map<std::vector<int32_t>, int> orders;
  int64_t different = 0;
  for (int64_t i = 0; i < 2 * one.num_samples_per_epoch() + 5; ++i) {
    const DataPosition jumped = again.advanced({}, i);
    EXPECT_EQ(jumped, position);
    again.read(jumped, b);
    other.read(other.advanced({}, i % other.num_samples_per_epoch()), c);
    one.next(position, a);
    EXPECT_TRUE(std::equal(a.tokens.begin(), a.tokens.end(), b.tokens.begin()));
    EXPECT_TRUE(std::equal(a.valid.begin(), a.valid.end(), b.valid.begin()));
    different += !std::equal(a.tokens.begin(), a.tokens.end(), c.tokens.begin());
    ++orders[std::vector(a.tokens.begin(), a.tokens.end())];
  }
  EXPECT_GT(different, one.num_samples_per_epoch()) << "another seed, another order";
  EXPECT_EQ(static_cast<int64_t>(orders.size()), one.num_samples_per_epoch())
      << "epochs hold the same samples";
  EXPECT_NE(one.window_at({0, 0}) + one.window_at({0, 1}) * 1000,
            one.window_at({1, 0}) + one.window_at({1, 1}) * 1000);
  expect_in("is impossible", refusal([&] { one.window_at({0, one.num_samples_per_epoch()}); }));
}

TEST(WholeDocuments, LongOnesAreNeverCutInSilence) {
  const WholeSet set({5, 40, 7, 33, 2});
  EXPECT_EQ(
      refusal([&] { whole_sampler(set, 32); }),
      set->prefix() +
          ": 2 of 5 documents are longer than a sequence of 32 tokens; the longest, document 1, has 40. "
          "train.seq_len = 40 has room for all; data.packing = \"whole_drop\" leaves them out, "
          "\"stream\" cuts them");
  const Sampler sampler = whole_sampler(set, 32, 0, false, Packing::WholeDrop);
  const WholeDocuments& whole = *sampler.whole_documents();
  EXPECT_EQ(whole.num_dropped(), 2);
  EXPECT_EQ(whole.num_dropped_tokens(), 73);
  EXPECT_EQ(whole.num_tokens(), 14);
  EXPECT_EQ(sampler.num_samples_per_epoch(), 1);
  EXPECT_EQ(
      whole.text(),
      "3 whole documents in 1 sequence, 43.8 % filled; 2 left out as longer than a sequence (73 tokens)");
  expect_in("data.packing = \"stream\" cuts them", refusal([&] {
              whole_sampler(WholeSet({9, 9}), 4, 0, false, Packing::WholeDrop);
            }));
  EXPECT_EQ(whole_sampler(set, 40).whole_documents()->num_dropped(), 0) << "as long as a sequence fits";
  expect_in("isolate_documents", refusal([&] {
              Sampler(*set, {.seq_len = 64, .isolate_documents = false, .packing = Packing::Whole});
            }));
  expect_in("known are stream, whole and whole_drop", refusal([] { packing_of("cut"); }));
}

TEST(WholeDocuments, InspectedAsTheyAreTrained) {
  const WholeSet set({5, 4, 6});
  const Sampler sampler = whole_sampler(set, 12, 0, false);
  const InspectedSample s = inspect_sample(*set, sampler, ByteTokenizer(), {0, 0});
  EXPECT_EQ(s.num_documents, 2);
  EXPECT_EQ(s.num_padding, 3);
  int64_t tokens = 0, loss = 0;
  for (const SampleRun& run : s.runs) {
    tokens += run.end - run.begin;
    loss += run.counts ? run.end - run.begin : 0;
    EXPECT_EQ(run.position, s.sample.positions[static_cast<size_t>(run.begin)]);
  }
  EXPECT_EQ(tokens, 9);
  EXPECT_EQ(loss, s.num_loss_tokens);
  EXPECT_EQ(s.num_loss_tokens, std::count(s.sample.loss_mask.begin(), s.sample.loss_mask.end(), 1));
}

}  // namespace
}  // namespace pleat::data
