#include "data/fingerprint.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "data/data_support.h"
#include "data/indexed_writer.h"

namespace pleat::data {
namespace {

std::string dataset_in(const TemporaryFolder& folder) {
  IndexedDatasetWriter writer(folder.at("d"), {.vocab_size = 300, .end_of_document = 7});
  for (int32_t document = 0; document < 20; ++document) {
    writer.append(std::vector<int32_t>(15, document + 10));
    writer.end_document();
  }
  writer.finish();
  return folder.at("d");
}

TEST(Fingerprint, EveryByteOfEveryFileCounts) {
  const TemporaryFolder folder;
  const std::string prefix = dataset_in(folder);
  const std::string before = fingerprint(IndexedDataset(prefix, 1000), 1);
  EXPECT_EQ(before.size(), 64u);
  EXPECT_EQ(fingerprint(IndexedDataset(prefix, 1000), 3), before);
  const std::string bytes = read_file(prefix + ".bin");
  for (const size_t at : {size_t{0}, bytes.size() / 3, bytes.size() - 2}) {
    std::string changed = bytes;
    changed[at] = static_cast<char>(changed[at] ^ 1);
    write_file(prefix + ".bin", changed);
    EXPECT_NE(fingerprint(IndexedDataset(prefix, 1000), 1), before) << at;
  }
}

TEST(Fingerprint, AChangedFileIsReadAgainAndAnotherIsNot) {
  const TemporaryFolder folder;
  const std::string prefix = dataset_in(folder), cache = folder.at("digests");
  const std::string before = cached_fingerprint(IndexedDataset(prefix, 1000), 1, cache);
  // What the cache says is believed while the files are as they were.
  const std::string line = read_file(cache);
  ASSERT_TRUE(line.starts_with(before + " "));
  const std::string other(64, 'a');
  write_file(cache, other + line.substr(64));
  EXPECT_EQ(cached_fingerprint(IndexedDataset(prefix, 1000), 1, cache), other);
  // Changed in place with the old time put back: the time of the change gives it away.
  struct stat info {};
  ASSERT_EQ(::stat((prefix + ".bin").c_str(), &info), 0);
  std::fstream bin(prefix + ".bin", std::ios::binary | std::ios::in | std::ios::out);
  bin.seekp(100);
  bin.put(1);
  bin.close();
  const timespec times[2] = {info.st_atim, info.st_mtim};
  ASSERT_EQ(::utimensat(AT_FDCWD, (prefix + ".bin").c_str(), times, 0), 0);
  const std::string after = cached_fingerprint(IndexedDataset(prefix, 1000), 1, cache);
  EXPECT_NE(after, other);
  EXPECT_NE(after, before);
}

TEST(Fingerprint, NoCacheIsNoFault) {
  const TemporaryFolder folder;
  const std::string prefix = dataset_in(folder);
  const std::string made = fingerprint(IndexedDataset(prefix, 1000), 2);
  EXPECT_EQ(cached_fingerprint(IndexedDataset(prefix, 1000), 1, folder.at("no/digests")), made);
  write_file(folder.at("digests"), "nonsense\n\n" + std::string(200, 'x'));
  EXPECT_EQ(cached_fingerprint(IndexedDataset(prefix, 1000), 1, folder.at("digests")), made);
}

}  // namespace
}  // namespace pleat::data
