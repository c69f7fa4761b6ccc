// Which checkpoint is meant: newest, by step, best; held against pruning; nothing touched when all are damaged.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "base/posix_vfs.h"
#include "checkpoint/best.h"
#include "checkpoint/checkpoint_support.h"
#include "checkpoint/choose.h"
#include "checkpoint/damage.h"
#include "checkpoint/directory.h"
#include "checkpoint/retain.h"
#include "support/process.h"

namespace pleat::checkpoint {
namespace {

class Choose : public ::testing::Test {
 protected:
  void save_step(int64_t step, std::optional<double> loss = {}) {
    SaveOptions o = small_options();
    o.keep = 2;
    o.valid_loss = loss;
    const TestState state(step);
    save(vfs_, at(), state.view(), o);
  }
  std::string at() const { return folder_.at("checkpoints"); }
  std::vector<int64_t> kept() { return list_checkpoints(vfs_, at()).steps; }
  void damage(int64_t step) {
    std::filesystem::resize_file(fmt::format("{}/step-{}/MANIFEST", at(), step), 20);
  }
  // With its digest made right.
  void write_as_newer(int64_t step) {
    const std::string path = fmt::format("{}/step-{}/MANIFEST", at(), step);
    std::string text = testing::read_file(path);
    text.resize(text.rfind("sha256 "));
    const std::string from = "\"version\": 2";
    text.replace(text.find(from), from.size(), "\"version\": 9");
    testing::write_file(path, text + "sha256 " + base::to_hex(base::sha256(text)) + "\n");
  }
  int64_t chosen(const std::string& which) { return choose(vfs_, at(), parse_which(which)).loaded.step(); }

  testing::TemporaryFolder folder_;
  base::PosixVfs vfs_;
};

TEST_F(Choose, NewestStepAndBest) {
  save_step(1, 3.0), save_step(2, 1.5), save_step(3, 2.5), save_step(4, 2.0), save_step(5, 1.5);
  EXPECT_EQ(kept(), (std::vector<int64_t>{5, 4, 2})) << "the two newest, and the best beside them";
  EXPECT_EQ(chosen(""), 5);
  EXPECT_EQ(chosen("newest"), 5);
  EXPECT_EQ(chosen("best"), 2) << "of equals the first";
  EXPECT_EQ(chosen("4"), 4);
  EXPECT_EQ(read_best(vfs_, at())->loss, 1.5);
  const std::string message = thrown_by([&] { chosen("3"); }).message;
  EXPECT_NE(message.find("no checkpoint of step 3; kept are 2, 4, 5"), std::string::npos) << message;
  for (const char* wrong : {"x", "-1", "4x", "best "})
    EXPECT_NE(thrown_by([&] { parse_which(wrong); }).message.find("--step"), std::string::npos) << wrong;
  save_step(6, 1.0), save_step(7, 1.2);
  EXPECT_EQ(kept(), (std::vector<int64_t>{7, 6})) << "the best is among the newest";
}

TEST_F(Choose, WithoutEvaluationsThereIsNoBest) {
  save_step(1), save_step(2);
  EXPECT_NE(thrown_by([&] { chosen("best"); }).message.find("names no best checkpoint"), std::string::npos);
  testing::write_file(at() + "/BEST", "step-2 not-a-number\n");
  EXPECT_FALSE(read_best(vfs_, at())) << "a damaged one counts as none";
}

TEST_F(Choose, AnOlderOneIsUsedAndSaidSo) {
  save_step(1), save_step(2);
  damage(2);
  const Chosen c = choose(vfs_, at());
  EXPECT_EQ(c.loaded.step(), 1);
  const std::string remarks = fmt::format("{}", fmt::join(c.remarks(), "\n"));
  for (const char* word : {"step-2 passed over", "using step 1"})
    EXPECT_NE(remarks.find(word), std::string::npos) << remarks;
  EXPECT_EQ(thrown_by([&] { chosen("2"); }).code, base::ExitCode::Storage) << "one asked for is not replaced";
}

TEST_F(Choose, WhatIsNoDamageStopsTheChoice) {
  save_step(1), save_step(2);
  const auto choose_failing = [&](const auto& error) {
    return thrown_by([&] { choose_if_any(vfs_, at(), {}, [&](const Loaded&) { throw error; }); });
  };
  for (const base::ExitCode code :
       {base::ExitCode::Internal, base::ExitCode::Retry, base::ExitCode::Hardware})
    EXPECT_EQ(choose_failing(base::Error(code, "rank 3: std::bad_alloc")).message, "rank 3: std::bad_alloc");
  EXPECT_EQ(choose_failing(NotForUs("rank 3: does not see it")).message, "rank 3: does not see it");
  for (const base::ExitCode code : {base::ExitCode::Storage, base::ExitCode::BadInput})
    EXPECT_NE(choose_failing(base::Error(code, "damaged")).message.find("none that verifies"),
              std::string::npos);
}

TEST_F(Choose, OneOfANewerVersionIsNotPassedOver) {
  save_step(1), save_step(2);
  write_as_newer(2);
  EXPECT_NE(thrown_by([&] { choose(vfs_, at()); }).message.find("written by a newer Pleat"),
            std::string::npos);
  EXPECT_EQ(chosen("1"), 1) << "asked for by its number";
}

TEST_F(Choose, AllDamagedIsAnErrorThatNamesEach) {
  save_step(1), save_step(2);
  damage(1), damage(2);
  const Thrown thrown = thrown_by([&] { choose_if_any(vfs_, at()); });
  EXPECT_EQ(thrown.code, base::ExitCode::Storage);
  for (const char* word : {"none that verifies", "nothing was changed", "step-1", "step-2"})
    EXPECT_NE(thrown.message.find(word), std::string::npos) << thrown.message;
  EXPECT_FALSE(choose_if_any(vfs_, folder_.at("nowhere")));
}

TEST_F(Choose, WhatIsReadIsNotPruned) {
  save_step(1);
  {
    const Chosen reader = choose(vfs_, at());
    ASSERT_TRUE(reader.hold.held());
    save_step(2), save_step(3), save_step(4);
    EXPECT_EQ(kept(), (std::vector<int64_t>{4, 3, 1}));
    reader.loaded.verify();
  }
  save_step(5);
  EXPECT_EQ(kept(), (std::vector<int64_t>{5, 4})) << "pruned once nobody reads it";
}

TEST_F(Choose, LeftoversOfTheLastSaveAreCleaned) {
  save_step(1), save_step(2);
  std::filesystem::copy(at() + "/step-1", at() + "/step-0", std::filesystem::copy_options::recursive);
  testing::write_file(at() + "/LATEST.tmp-0", "step-2\n");
  testing::write_file(at() + "/BEST.tmp-3", "x");
  std::filesystem::create_directory(at() + "/step-9.tmp-1");
  std::vector<std::string> warnings;
  tidy(vfs_, at(), 2, 2, warnings);
  EXPECT_TRUE(warnings.empty());
  EXPECT_EQ(vfs_.list(at()), (std::vector<std::string>{"LATEST", "step-1", "step-2"}));
}

}  // namespace
}  // namespace pleat::checkpoint
