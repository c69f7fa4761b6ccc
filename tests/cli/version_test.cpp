// What the binary says of itself.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <regex>

#include "support/process.h"

namespace pleat {
namespace {

TEST(Version, SaysVersionCommitAndBackEnds) {
  const testing::TemporaryFolder folder;
  const testing::Ended ended = testing::run_pleat(folder.path(), {"--version"});
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_EQ(ended.err, "");
  EXPECT_TRUE(ended.out.starts_with("pleat ")) << ended.out;
  for (const char* word : {"\ncommit ", "\nBLAS ", "\nCUDA ", "\nMPI ", "\nNCCL ", "OpenBLAS"})
    EXPECT_NE(ended.out.find(word), std::string::npos) << word << " is not in\n" << ended.out;
}

TEST(Version, IsTheOneOfTheProjectAndTheChangelog) {
  const testing::TemporaryFolder folder;
  const testing::Ended ended = testing::run_pleat(folder.path(), {"--version", "--json"});
  ASSERT_EQ(ended.code, 0) << ended.err;
  const nlohmann::json said = nlohmann::json::parse(ended.out);
  const std::string version = said.at("version");
  EXPECT_TRUE(std::regex_match(version, std::regex(R"(\d+\.\d+\.\d+)"))) << version;
  // The newest heading of the changelog is this version, or what comes after it.
  const std::string changes = testing::read_file(PLEAT_SOURCE_DIR "/CHANGELOG.md");
  const std::string first = changes.substr(changes.find("\n## ["));
  EXPECT_TRUE(first.starts_with("\n## [" + version + "]") || first.starts_with("\n## [Unreleased]"))
      << first.substr(0, 40);
  const std::string commit = said.at("commit");
  EXPECT_TRUE(commit == "not known" ||
              std::regex_match(commit, std::regex("[0-9a-f]{12}( with local changes)?")))
      << commit;
  EXPECT_EQ(testing::run_pleat(folder.path(), {"--json"}).code, 65);
}

}  // namespace
}  // namespace pleat
