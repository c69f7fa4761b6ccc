#include "base/make_folders.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>

#include "base/vfs.h"
#include "support/files.h"

namespace pleat::base {
namespace {

TEST(MakeFolders, MakesAllThatIsMissing) {
  const testing::TemporaryFolder folder;
  EXPECT_TRUE(make_folders(folder.at("a/b/c")));
  EXPECT_TRUE(std::filesystem::is_directory(folder.at("a/b/c")));
  EXPECT_FALSE(make_folders(folder.at("a/b/c")));
  EXPECT_TRUE(make_folders(folder.at("a/d/"))) << "a slash at the end";
  EXPECT_TRUE(std::filesystem::is_directory(folder.at("a/d")));
}

TEST(MakeFolders, AFileInTheWayIsNamed) {
  const testing::TemporaryFolder folder;
  testing::write_file(folder.at("file"), "x");
  try {
    make_folders(folder.at("file/inside"));
    FAIL();
  } catch (const VfsError& error) {
    EXPECT_NE(std::string(error.what()).find(folder.at("file")), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace pleat::base
