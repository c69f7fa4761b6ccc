// Writer and reader of .bin/.idx together, on real files.
#include "data/indexed_dataset.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "base/error.h"
#include "data/data_support.h"
#include "data/indexed_writer.h"

namespace pleat::data {
namespace {

using Tokens = std::vector<int32_t>;

Tokens read_all(const IndexedDataset& dataset) {
  Tokens out(static_cast<size_t>(dataset.num_tokens()));
  dataset.read(0, out);
  return out;
}

TEST(IndexedDataset, RoundTripInBothTokenTypes) {
  for (const int64_t vocab : {int64_t{300}, int64_t{65499}, int64_t{65500}, int64_t{200000}}) {
    TemporaryFolder folder;
    const std::string prefix = folder.at("d");
    const int32_t last = static_cast<int32_t>(vocab) - 1;
    IndexedDatasetWriter writer(prefix, {.vocab_size = vocab, .end_of_document = 7});
    writer.append(Tokens{1, 2, last});
    writer.append(Tokens{3});
    writer.end_document();
    writer.append(Tokens{5, 7});  // already ends in the end-of-document token: none is added
    writer.end_document();
    writer.append(Tokens{0});
    writer.end_document();
    const auto counts = writer.finish();
    EXPECT_EQ(counts.num_documents, 3);
    EXPECT_EQ(counts.num_sequences, 3);
    EXPECT_EQ(counts.num_tokens, 9);
    EXPECT_EQ(folder.names(), (std::vector<std::string>{"d.bin", "d.idx"}));

    const IndexedDataset dataset(prefix, vocab);
    EXPECT_EQ(dataset.token_type(), vocab < 65500 ? TokenType::U16 : TokenType::I32);
    EXPECT_EQ(read_all(dataset), (Tokens{1, 2, last, 3, 7, 5, 7, 0, 7}));
    EXPECT_EQ(dataset.num_documents(), 3);
    EXPECT_EQ(dataset.document_begin(1), 5);
    EXPECT_EQ(dataset.document_begin(2), 7);
    EXPECT_EQ(dataset.document_begin(3), 9);
    // The exact bytes another Megatron reader expects.
    EXPECT_EQ(read_file(prefix + ".idx"), RawIndex::of({{5}, {2}, {2}}, dataset.token_type()).bytes());
  }
}

TEST(IndexedDataset, LongDocumentsBecomeSeveralSequences) {
  TemporaryFolder folder;
  IndexedDatasetWriter writer(folder.at("d"),
                              {.vocab_size = 100, .end_of_document = 99, .max_sequence_tokens = 4});
  writer.append(Tokens{1, 2, 3, 4, 5, 6, 7, 8});
  writer.end_document();
  writer.append(Tokens{9, 10, 11});
  writer.end_document();
  EXPECT_EQ(writer.finish().num_sequences, 4);
  const IndexedDataset dataset(folder.at("d"), 100);
  EXPECT_EQ(read_all(dataset), (Tokens{1, 2, 3, 4, 5, 6, 7, 8, 99, 9, 10, 11, 99}));
  EXPECT_EQ(dataset.num_documents(), 2);
  EXPECT_EQ(dataset.document_begin(1), 9);
  EXPECT_EQ(read_file(folder.at("d.idx")), RawIndex::of({{4, 4, 1}, {4}}, TokenType::U16).bytes());
}

TEST(IndexedDataset, ManyDocumentsThroughTheScratchFiles) {
  TemporaryFolder folder;
  IndexedDatasetWriter writer(folder.at("d"), {.vocab_size = 1000, .end_of_document = 999});
  Tokens expected;
  std::vector<int64_t> begins;
  TestRandom random(3);
  for (int d = 0; d < 150000; ++d) {
    Tokens document(1 + random.below(3));
    for (int32_t& t : document) t = static_cast<int32_t>(random.below(999));
    begins.push_back(static_cast<int64_t>(expected.size()));
    expected.insert(expected.end(), document.begin(), document.end());
    expected.push_back(999);
    writer.append(document);
    writer.end_document();
  }
  writer.finish();
  const IndexedDataset dataset(folder.at("d"), 1000);
  EXPECT_EQ(read_all(dataset), expected);
  ASSERT_EQ(dataset.num_documents(), 150000);
  for (size_t d = 0; d < begins.size(); ++d)
    ASSERT_EQ(dataset.document_begin(static_cast<int64_t>(d)), begins[d]);
}

TEST(IndexedDataset, ReadsEveryTokenType) {
  TemporaryFolder folder;
  const auto check = [&]<class T>(T, TokenType type) {
    const std::vector<T> ids = {1, 100, 0, 127};
    const RawIndex raw = RawIndex::of({{1}, {3}}, type);
    write_file(folder.at("t.idx"), raw.bytes());
    write_file(folder.at("t.bin"), {reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(T)});
    const IndexedDataset dataset(folder.at("t"), 128);
    EXPECT_EQ(read_all(dataset), (Tokens{1, 100, 0, 127})) << token_type_name(type);
  };
  check(uint8_t{}, TokenType::U8);
  check(int8_t{}, TokenType::I8);
  check(int16_t{}, TokenType::I16);
  check(int32_t{}, TokenType::I32);
  check(int64_t{}, TokenType::I64);
  check(uint16_t{}, TokenType::U16);
}

TEST(IndexedDataset, IdsOutsideTheVocabularyAreRefusedWhenRead) {
  TemporaryFolder folder;
  const auto check = [&]<class T>(T bad, TokenType type, const std::string& shown) {
    const std::vector<T> ids = {1, 2, bad, 3};
    const RawIndex raw = RawIndex::of({{1}, {3}}, type);
    write_file(folder.at("t.idx"), raw.bytes());
    write_file(folder.at("t.bin"), {reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(T)});
    const IndexedDataset dataset(folder.at("t"), 100);
    Tokens two(2);
    dataset.read(0, two);
    EXPECT_EQ(two, (Tokens{1, 2}));
    expect_in("token 2 (in document 1) has id " + shown + ", outside the vocabulary of 100",
              refusal([&] { read_all(dataset); }));
  };
  check(uint16_t{100}, TokenType::U16, "100");
  check(int32_t{-1}, TokenType::I32, "-1");
  check(int64_t{1} << 32, TokenType::I64, "4294967296");
  check(int8_t{-128}, TokenType::I8, "-128");
}

TEST(IndexedDataset, BadArgumentsAndFilesAreRefused) {
  TemporaryFolder folder;
  expect_in("a.bin: cannot open for reading", refusal([&] { IndexedDataset(folder.at("a"), 10); }));
  write_file(folder.at("a.bin"), "");
  expect_in("a.idx: cannot open for reading", refusal([&] { IndexedDataset(folder.at("a"), 10); }));
  std::filesystem::create_directory(folder.at("a.idx"));
  expect_in("a.idx: not a regular file", refusal([&] { IndexedDataset(folder.at("a"), 10); }));
  std::filesystem::remove(folder.at("a.idx"));
  ASSERT_EQ(::mkfifo(folder.at("a.idx").c_str(), 0600), 0);
  expect_in("a.idx: not a regular file", refusal([&] { IndexedDataset(folder.at("a"), 10); }));
  std::filesystem::remove(folder.at("a.idx"));
  write_file(folder.at("a.idx"), "");
  expect_in("a.idx: truncated header: 0 bytes", refusal([&] { IndexedDataset(folder.at("a"), 10); }));

  const RawIndex raw = RawIndex::of({{4}}, TokenType::U16);
  write_file(folder.at("b.idx"), raw.bytes());
  write_file(folder.at("b.bin"), std::string(8, '\0'));
  expect_in("vocabulary size 0", refusal([&] { IndexedDataset(folder.at("b"), 0); }));
  const IndexedDataset dataset(folder.at("b"), 10);
  Tokens out(3);
  expect_in("tokens [2, 2 + 3) asked for, but there are 4", refusal([&] { dataset.read(2, out); }));
  expect_in("asked for", refusal([&] { dataset.read(-1, out); }));
  expect_in("asked for", refusal([&] { dataset.read(INT64_MAX, out); }));

  write_file(folder.at("b.bin"), std::string(6, '\0'));
  expect_in("outside the .bin of 6 bytes", refusal([&] { IndexedDataset(folder.at("b"), 10); }));
  write_file(folder.at("b.bin"), std::string(9, '\0'));
  expect_in("the .bin has 9 bytes", refusal([&] { IndexedDataset(folder.at("b"), 10); }));
}

TEST(IndexedDataset, AFileThatShrinksIsAnErrorAndNoSignal) {
  TemporaryFolder folder;
  const RawIndex raw = RawIndex::of({{8192}}, TokenType::U16);
  write_file(folder.at("b.idx"), raw.bytes());
  write_file(folder.at("b.bin"), std::string(16384, '\0'));
  const IndexedDataset dataset(folder.at("b"), 10);
  Tokens out(10);
  dataset.read(8000, out);
  ASSERT_EQ(::truncate(folder.at("b.bin").c_str(), 100), 0);
  expect_in("shrank from 16384 to 100 bytes", refusal([&] { dataset.read(8000, out); }));
}

TEST(IndexedWriter, RefusesBadInputAndLeavesNothingBehind) {
  TemporaryFolder folder;
  expect_in("vocabulary size 0", refusal([&] { IndexedDatasetWriter(folder.at("d"), {.vocab_size = 0}); }));
  expect_in("end-of-document id 10 lies outside the vocabulary of 10", refusal([&] {
              IndexedDatasetWriter(folder.at("d"), {.vocab_size = 10, .end_of_document = 10});
            }));
  {
    IndexedDatasetWriter writer(folder.at("d"), {.vocab_size = 10, .end_of_document = 0});
    expect_in("document 0 is empty", refusal([&] { writer.end_document(); }));
    expect_in("token id 10 in document 0 lies outside the vocabulary of 10",
              refusal([&] { writer.append(Tokens{10}); }));
    expect_in("token id -1", refusal([&] { writer.append(Tokens{-1}); }));
    EXPECT_EQ(folder.names().size(), 2u);  // the two temporary files; scratch space has no name
  }
  EXPECT_TRUE(folder.names().empty());
  expect_in("cannot create", refusal([&] {
              IndexedDatasetWriter(folder.at("no/such/d"), {.vocab_size = 10, .end_of_document = 0});
            }));
}

TEST(IndexedWriter, ReplacesAPairWhileTheOldOneIsMapped) {
  TemporaryFolder folder;
  const auto write = [&](int32_t id) {
    IndexedDatasetWriter writer(folder.at("d"), {.vocab_size = 100, .end_of_document = 99});
    writer.append(Tokens(1000, id));
    writer.end_document();
    writer.finish();
  };
  write(1);
  const IndexedDataset old(folder.at("d"), 100);
  write(2);
  EXPECT_EQ(read_all(old)[500], 1);
  EXPECT_EQ(read_all(IndexedDataset(folder.at("d"), 100))[500], 2);
}

}  // namespace
}  // namespace pleat::data
