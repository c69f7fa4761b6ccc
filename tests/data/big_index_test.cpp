// A dataset far larger than what may be held: 10^9 tokens in 2 million documents, as a sparse file.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <limits>
#include <map>

#include "base/error.h"
#include "data/data_support.h"
#include "data/indexed_dataset.h"
#include "data/sampler.h"

namespace pleat::data {
namespace {

#ifdef PLEAT_SANITIZED
constexpr bool kSanitized = true;  // shadow memory is anonymous too, so the figure means nothing
#else
constexpr bool kSanitized = false;
#endif

int64_t anonymous_kib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("RssAnon:")) return std::stoll(line.substr(8));
  ADD_FAILURE() << "no RssAnon in /proc/self/status";
  return 0;
}

// A file of zeros of this size that takes no room, with some values planted.
template <class T>
void write_sparse(const std::string& path, int64_t bytes, const std::map<int64_t, T>& values) {
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  ASSERT_GE(file, 0);
  ASSERT_EQ(::ftruncate(file, bytes), 0);
  for (const auto& [at, value] : values)
    ASSERT_EQ(::pwrite(file, &value, sizeof(T), at * static_cast<int64_t>(sizeof(T))),
              static_cast<ssize_t>(sizeof(T)));
  ::close(file);
}

// Document d has 400 + (d mod 201) tokens: 500 on average.
void write_big_index(const std::string& path, int64_t num_documents, int64_t* num_tokens) {
  std::ofstream out(path, std::ios::binary);
  RawIndex header;
  header.num_sequences = static_cast<uint64_t>(num_documents);
  header.num_boundaries = header.num_sequences + 1;
  const std::string start = header.bytes();
  out.write(start.data(), static_cast<std::streamsize>(start.size()));
  const auto put = [&](auto value) { out.write(reinterpret_cast<const char*>(&value), sizeof(value)); };
  const auto length = [](int64_t d) { return static_cast<int32_t>(400 + d % 201); };
  for (int64_t d = 0; d < num_documents; ++d) put(length(d));
  int64_t token = 0;
  for (int64_t d = 0; d < num_documents; ++d) {
    put(token * 2);
    token += length(d);
  }
  for (int64_t d = 0; d <= num_documents; ++d) put(d);
  ASSERT_TRUE(out.flush());
  *num_tokens = token;
}

TEST(BigIndex, AMillionRandomReadsOfABillionTokensInLittleMemory) {
  TemporaryFolder folder;
  int64_t num_tokens = 0;
  constexpr int64_t kNumDocuments = 2'000'100;
  write_big_index(folder.at("big.idx"), kNumDocuments, &num_tokens);
  ASSERT_GT(num_tokens, 1'000'000'000);
  std::map<int64_t, uint16_t> planted;
  TestRandom random(1);
  for (int i = 0; i < 1000; ++i)
    planted[static_cast<int64_t>(random.below(static_cast<uint64_t>(num_tokens)))] =
        static_cast<uint16_t>(1 + random.below(65000));
  write_sparse(folder.at("big.bin"), num_tokens * 2, planted);

  const int64_t before = anonymous_kib();
  const IndexedDataset dataset(folder.at("big"), 65536);
  ASSERT_EQ(dataset.num_tokens(), num_tokens);
  ASSERT_EQ(dataset.num_documents(), kNumDocuments);
  const auto planted_at = planted.begin();
  auto next_planted = planted_at;
  int64_t num_wrong = 0, sum = 0;
  constexpr int kNumReads = 1'000'000;
  // Every other read is of a planted token, the rest go anywhere.
  for (int i = 0; i < kNumReads; ++i) {
    int64_t at;
    if (i % 2 == 0) {
      at = next_planted->first;
      if (++next_planted == planted.end()) next_planted = planted_at;
    } else {
      at = static_cast<int64_t>(random.below(static_cast<uint64_t>(num_tokens)));
    }
    int32_t token = -1;
    dataset.read(at, std::span(&token, 1));
    const auto found = planted.find(at);
    num_wrong += token != (found == planted.end() ? 0 : found->second);
    // The document by arithmetic: 201 documents repeat with 100,500 tokens.
    const int64_t d = dataset.document_of(at);
    const int64_t in_round = d % 201;
    const int64_t begin = d / 201 * 100'500 + in_round * 400 + in_round * (in_round - 1) / 2;
    num_wrong += dataset.document_begin(d) != begin || at < begin || at >= begin + 400 + in_round;
    sum += token;
  }
  EXPECT_EQ(num_wrong, 0);
  EXPECT_GT(sum, 0);

  const Sampler sampler(dataset, {.seq_len = 512, .seed = 5});
  SampleStorage storage(1, 512);
  Sample sample = storage.sample(0);
  DataPosition position;
  for (int i = 0; i < 1000; ++i) sampler.next(position, sample);
  if (!kSanitized) {
    EXPECT_LT(anonymous_kib() - before, 64 * 1024);
  }
}

TEST(BigIndex, TokensAcross2To31And2To32Bytes) {
  TemporaryFolder folder;
  // Three sequences of 2^31 - 1 int32 tokens in two documents: 24 GiB of nothing.
  const int32_t most = std::numeric_limits<int32_t>::max();
  const RawIndex raw = RawIndex::of({{most}, {most, most}}, TokenType::I32);
  write_file(folder.at("w.idx"), raw.bytes());
  std::map<int64_t, int32_t> planted;
  const int64_t spots[] = {(int64_t{1} << 29) - 1, int64_t{1} << 29,       (int64_t{1} << 30) - 1,
                           int64_t{1} << 30,       (int64_t{1} << 31) - 1, int64_t{1} << 31,
                           (int64_t{1} << 32) - 1, int64_t{1} << 32,       raw.bin_bytes() / 4 - 1};
  for (const int64_t spot : spots) planted[spot] = static_cast<int32_t>(planted.size() + 1);
  write_sparse(folder.at("w.bin"), raw.bin_bytes(), planted);
  const IndexedDataset dataset(folder.at("w"), 1000);
  EXPECT_EQ(dataset.num_tokens(), 3 * int64_t{most});
  EXPECT_EQ(dataset.document_begin(1), most);
  for (const auto& [at, id] : planted) {
    int32_t window[2] = {-1, -1};
    dataset.read(at - 1, window);
    EXPECT_EQ(window[1], id) << at;
    EXPECT_EQ(dataset.document_of(at), at < most ? 0 : 1);
  }
  const int64_t seq_len = 1 << 12;
  const Sampler sampler(dataset, {.seq_len = seq_len, .shuffle = false});
  SampleStorage storage(1, seq_len);
  Sample sample = storage.sample(0);
  // The window of tokens [2^32 - 4096, 2^32]: its last label is the planted token at 2^32.
  sampler.read({0, (int64_t{1} << 32) / seq_len - 1}, sample);
  EXPECT_EQ(sample.labels.back(), planted[int64_t{1} << 32]);
  EXPECT_EQ(sample.tokens.back(), planted[(int64_t{1} << 32) - 1]);
}

}  // namespace
}  // namespace pleat::data
