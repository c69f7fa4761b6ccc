// Import and export as processes: a full disk, a request to stop. What is left is no run and no model, and the same
// command makes it one.
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>

#include "support/process.h"

namespace pleat {
namespace {

namespace fs = std::filesystem;
using testing::Ended;
using testing::PleatProcess;
using testing::run_pleat;
using testing::run_shell;

class ModelFolders : public ::testing::Test {
 protected:
  std::string at(const std::string& name) const { return folder_.at(name); }
  Ended import(const std::string& to) const {
    return run_pleat(folder_.path(), {"import", model_, "--out", at(to)});
  }
  // Ends a command by SIGINT as soon as it listens; tried again where the command was faster. `undo` makes its output
  // new again.
  Ended interrupted(const std::vector<std::string>& arguments, const std::string& output) const {
    for (int attempt = 0; attempt < 50; ++attempt) {
      fs::remove_all(output);
      PleatProcess process(folder_.path(), arguments);
      while (process.running() && !process.catches(SIGINT)) continue;
      process.send(SIGINT);
      const Ended ended = process.wait();
      if (ended.code != 0 && ended.signal == 0) return ended;
    }
    return {};
  }

  testing::TemporaryFolder folder_;
  const std::string model_ = std::string(PLEAT_SOURCE_DIR) + "/tests/golden/qwen3_moe";
};

TEST_F(ModelFolders, AnImportOnAFullDiskGoesOnLater) {
  const std::string command = fmt::format("pleat import '{}' --out '{}'", model_, at("run"));
  const Ended full = run_shell(folder_.path(), "ulimit -f 16; " + command);
  EXPECT_EQ(full.code, 74) << full.err;
  EXPECT_NE(full.err.find("shard-000000"), std::string::npos) << full.err;
  EXPECT_FALSE(fs::exists(at("run/asked.toml")) || fs::exists(at("run/config.toml")));
  EXPECT_NE(run_pleat(folder_.path(), {"export", at("run"), "--out", at("out")}).code, 0);
  EXPECT_EQ(run_shell(folder_.path(), command).code, 0);
  EXPECT_EQ(run_pleat(folder_.path(), {"export", at("run"), "--out", at("out"), "--check"}).code, 0);
}

TEST_F(ModelFolders, ASignalEndsAnImportCleanly) {
  const Ended ended = interrupted({"import", model_, "--out", at("run")}, at("run"));
  EXPECT_EQ(ended.code, 75);
  EXPECT_NE(ended.err.find("stopped: what was written stays, and the same command goes on with it"),
            std::string::npos)
      << ended.err;
  EXPECT_FALSE(fs::exists(at("run/config.toml")));
  EXPECT_EQ(import("run").code, 0);
  EXPECT_TRUE(fs::exists(at("run/config.toml")));
}

TEST_F(ModelFolders, ASignalEndsAnExportWithoutAModel) {
  ASSERT_EQ(import("run").code, 0);
  const std::vector<std::string> command = {"export", at("run"), "--out", at("out"), "--check"};
  const Ended ended = interrupted(command, at("out"));
  EXPECT_EQ(ended.code, 75);
  EXPECT_NE(ended.err.find("stopped: no model was written"), std::string::npos) << ended.err;
  EXPECT_TRUE(!fs::exists(at("out")) || fs::is_empty(at("out")));
  EXPECT_EQ(run_pleat(folder_.path(), command).code, 0);
}

}  // namespace
}  // namespace pleat
