// asked.toml and config.toml of a run folder: names move with the folder, the record is not judged, and half a
// file is called that.
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "config/run_files.h"
#include "config/schema.h"
#include "support/process.h"
#include "support/refusal.h"

namespace pleat::config {
namespace {

constexpr char kText[] = R"(
[model]
hidden_size = 32
num_heads = 4
[moe]
num_experts = 4
top_k = 2
ffn_hidden_size = 8
[data]
separator = "<eod>"
valid_split = 0.1
)";

class RunFiles : public ::testing::Test {
 protected:
  // Writes the two files as a run does after it has prepared its text.
  Config write(const std::string& run, const std::vector<std::string>& sets = {}) {
    std::vector<std::string> all = {"log.run_dir=" + run, "data.train=" + folder_.at("notes.txt")};
    all.insert(all.end(), sets.begin(), sets.end());
    const Config asked = parse(kText, all);
    Config used = asked;
    used.data.train = run + "/data/train-train";
    used.data.valid = run + "/data/train-validation";
    used.data.valid_split = 0;
    used = resolve(used);
    std::filesystem::create_directories(run);
    testing::write_file(run + "/asked.toml", asked_text(asked));
    testing::write_file(run + "/config.toml", record_text(asked, used, asked_text(asked)));
    return used;
  }

  testing::TemporaryFolder folder_;
};

TEST_F(RunFiles, ARecordWithASeparatorIsReadAgain) {
  const Config used = write(folder_.at("run"));
  EXPECT_EQ(read_record(folder_.at("run")), used);
  EXPECT_EQ(parse_record(to_toml(used)), used) << "what a checkpoint holds";
  EXPECT_EQ(load(folder_.at("run")).data.train, folder_.at("notes.txt"));
}

TEST_F(RunFiles, NamesMoveWithTheFolder) {
  write(folder_.at("run"), {"data.tokenizer=llama3:" + folder_.at("run/tokenizer/t.model")});
  const std::string text = testing::read_file(folder_.at("run/config.toml"));
  EXPECT_EQ(text.find(folder_.at("run")), std::string::npos) << text;
  std::filesystem::rename(folder_.at("run"), folder_.at("moved"));
  const Config c = read_record(folder_.at("moved"));
  EXPECT_EQ(c.log.run_dir, folder_.at("moved"));
  EXPECT_EQ(c.checkpoint.dir, folder_.at("moved/checkpoints"));
  EXPECT_EQ(c.data.train, folder_.at("moved/data/train-train"));
  EXPECT_EQ(c.data.tokenizer, "llama3:" + folder_.at("moved/tokenizer/t.model"));
  const Config asked = load(folder_.at("moved") + "/config.toml");
  EXPECT_EQ(asked.log.run_dir, folder_.at("moved"));
  EXPECT_EQ(asked.data.train, folder_.at("notes.txt"));
}

TEST_F(RunFiles, DerivedKeysOfARecordDoNotResistASet) {
  write(folder_.at("run"));
  const Config c = load(folder_.at("run/config.toml"),
                        {"data.valid=" + folder_.at("other"), "data.valid_split=", "train.steps=7"});
  EXPECT_EQ(c.train.steps, 7);
  EXPECT_EQ(resolve(c).optimizer.decay_steps, 7) << "derived again";
}

TEST_F(RunFiles, AForkHasCheckpointsOfItsOwn) {
  write(folder_.at("run"), {"checkpoint.dir=" + folder_.at("run/mine")});
  EXPECT_EQ(load(folder_.at("run")).checkpoint.dir, folder_.at("run/mine"));
  const Config fork = load(folder_.at("run"), {"log.run_dir=" + folder_.at("fork")});
  EXPECT_EQ(resolve(fork).checkpoint.dir, folder_.at("fork/checkpoints"));
  ASSERT_EQ(fork.notes.size(), 2u);
  EXPECT_NE(fork.notes.back().find("--init " + folder_.at("run")), std::string::npos) << fork.notes.back();
}

TEST_F(RunFiles, AnEmptyOrHalfWrittenFileIsCalledThat) {
  write(folder_.at("run"));
  const std::string path = folder_.at("run/config.toml"), whole = testing::read_file(path);
  testing::write_file(path, "");
  EXPECT_NE(testing::message_of([&] { read_record(folder_.at("run")); }).find("is empty"), std::string::npos);
  testing::write_file(path, whole.substr(0, whole.size() / 2));
  EXPECT_NE(testing::message_of([&] { read_record(folder_.at("run")); }).find("not whole"),
            std::string::npos);
  load(folder_.at("run"));  // what was asked is whole
  const std::string asked = testing::read_file(folder_.at("run/asked.toml"));
  testing::write_file(folder_.at("run/asked.toml"), asked.substr(0, asked.size() - 3));
  EXPECT_NE(testing::message_of([&] { load(folder_.at("run")); }).find("not whole"), std::string::npos);
  std::filesystem::create_directory(folder_.at("empty"));
  EXPECT_NE(testing::message_of([&] { load(folder_.at("empty")); }).find("no run folder"), std::string::npos);
}

// asked.toml said one thing, config.toml another, when a run was stopped between writing the two.
TEST_F(RunFiles, AStopBetweenTheTwoFilesLeavesThemTogether) {
  const std::string run = folder_.at("run");
  const auto texts = [&](int64_t steps) {
    const Config asked = parse(kText, {"log.run_dir=" + run, "data.train=" + folder_.at("notes.txt"),
                                       fmt::format("train.steps={}", steps)});
    return std::pair(asked_text(asked), record_text(asked, resolve(asked), asked_text(asked)));
  };
  const auto [asked_7, record_7] = texts(7);
  const auto [asked_9, record_9] = texts(9);
  std::filesystem::create_directories(run);
  const auto both = [&] { return std::pair(load(run).train.steps, read_record(run).train.steps); };
  testing::write_file(run + "/asked.toml", asked_7);
  testing::write_file(run + "/config.toml", record_7);
  // The steps of write_run_files, one by one.
  testing::write_file(run + "/config.toml.next", record_9.substr(0, record_9.size() / 2));
  EXPECT_EQ(both(), std::pair(int64_t{7}, int64_t{7}));
  testing::write_file(run + "/config.toml.next", record_9);
  EXPECT_EQ(both(), std::pair(int64_t{7}, int64_t{7}));
  testing::write_file(run + "/asked.toml", asked_9);
  EXPECT_EQ(both(), std::pair(int64_t{9}, int64_t{9}));
  std::filesystem::rename(run + "/config.toml.next", run + "/config.toml");
  EXPECT_EQ(both(), std::pair(int64_t{9}, int64_t{9}));
  const Config asked = parse(kText, {"log.run_dir=" + run, "data.train=" + folder_.at("notes.txt")});
  write_run_files(asked, asked, resolve(asked));
  EXPECT_EQ(both(), std::pair(asked.train.steps, asked.train.steps));
  EXPECT_FALSE(std::filesystem::exists(run + "/config.toml.next"));
}

TEST(ResumeRules, EveryKeyHasOneAndItIsExplained) {
  std::set<OnResume> seen;
  for (const Key& key : schema()) {
    ASSERT_TRUE(key.resume) << key.path;
    seen.insert(*key.resume);
    EXPECT_NE(explain(key.path).find(fmt::format("resume    {}", text_of(*key.resume))), std::string::npos)
        << key.path;
  }
  EXPECT_EQ(seen.size(), 6u) << "a rule nobody has";
  const auto rule = [](const char* path) { return *find_key(path)->resume; };
  EXPECT_EQ(rule("model.hidden_size"), OnResume::SameModel);
  EXPECT_EQ(rule("moe.top_k"), OnResume::SameModel);
  EXPECT_EQ(rule("moe.aux_coef"), OnResume::WithFlag);
  EXPECT_EQ(rule("optimizer.lr"), OnResume::WithFlag);
  EXPECT_EQ(rule("train.steps"), OnResume::MayGrow);
  EXPECT_EQ(rule("train.seed"), OnResume::Never);
  EXPECT_EQ(rule("data.train"), OnResume::SameTokens);
  EXPECT_EQ(rule("chat.template"), OnResume::SameTokens);
  EXPECT_EQ(rule("train.micro_batch"), OnResume::Free);
  EXPECT_EQ(rule("parallel.tp"), OnResume::Free);
}

}  // namespace
}  // namespace pleat::config
