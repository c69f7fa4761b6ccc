// A mixture stopped in the middle goes on as if it had not been, and a checkpoint of another mixture is
// refused by what changed. And: data, tokenizer and model must belong together before a run starts.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include <filesystem>

#include "base/posix_vfs.h"
#include "checkpoint/load.h"
#include "checkpoint/save.h"
#include "resume/resume_support.h"
#include "support/refusal.h"
#include "train/loop.h"
#include "train/run_tokenizer.h"

namespace pleat::train {
namespace {

using pleat::testing::read_file;
using pleat::testing::write_file;
using testing::resolved_config;

constexpr int64_t kMixedSteps = 12;

std::string error_of(const std::function<void()>& action) {
  return pleat::testing::message_of(base::ExitCode::BadInput, action);
}

void expect_all(const std::string& message, const std::vector<std::string>& parts) {
  for (const std::string& part : parts)
    EXPECT_NE(message.find(part), std::string::npos) << "wanted: " << part << "\ngot:    " << message;
}

LoopOptions quiet() {
  LoopOptions options;
  options.quiet = true;
  return options;
}

class MixtureRun : public testing::SavedRuns {
 protected:
  void SetUp() override {
    testing::write_dataset(folder_.at("a"), 18 * 32 + 9, 7);
    testing::write_dataset(folder_.at("b"), 5 * 32 + 3, 8);
    testing::write_dataset(folder_.at("c"), 11 * 32 + 3, 9);
  }

  config::Config mixture(const std::string& names, const std::string& weights,
                         std::vector<std::string> more = {}) {
    std::string list;
    for (const char name : names)
      list += fmt::format("{}\"{}\"", list.empty() ? "" : ",", folder_.at(std::string(1, name)));
    more.insert(more.begin(), {"data.train=", "data.sources=[" + list + "]", "data.weights=" + weights});
    return resolved_config(folder_, kMixedSteps, more);
  }
};

TEST_F(MixtureRun, StoppedAnywhereItGoesOnWithTheSameBits) {
  const config::Config config = mixture("abc", "[5, 3, 1.5]");
  Trainer undisturbed(config);
  const std::vector<std::string> expected = digests(undisturbed, kMixedSteps);
  const data::MixturePosition end = undisturbed.run_state().data;
  ASSERT_EQ(undisturbed.train_data().num_taken(end), kMixedSteps * 4);
  ASSERT_GT(end.sources[1].epoch, 1) << "a source of its own epochs";
  for (const int64_t stop : {1, 5, 8}) {
    Trainer first(config);
    digests(first, stop);
    const checkpoint::Loaded loaded = saved(first.state());
    for (size_t i = 0; i < 3; ++i) {
      const data::DataPosition& p = first.run_state().data.sources[i];
      EXPECT_EQ(loaded.integer(fmt::format("data.{}.epoch", i)), p.epoch);
      EXPECT_EQ(loaded.integer(fmt::format("data.{}.next_sample", i)), p.next_sample);
      EXPECT_EQ(loaded.integer(fmt::format("data.{}.taken", i)),
                first.train_data().taken(first.run_state().data, i));
    }
    // The same ratios in other numbers are the same mixture.
    Trainer second(mixture("abc", "[10, 6, 3]"));
    second.restore(loaded);
    EXPECT_EQ(second.run_state().data, first.run_state().data);
    EXPECT_EQ(digests(second, kMixedSteps - stop),
              std::vector<std::string>(expected.begin() + stop, expected.end()));
  }
}

TEST_F(MixtureRun, AnotherMixtureIsRefusedByWhatChanged) {
  Trainer trainer(mixture("ab", "[3, 1]"));
  digests(trainer, 3);
  const checkpoint::Loaded loaded = saved(trainer.state());
  const auto refusal = [&](const config::Config& config) {
    Trainer other(config);
    const std::string before = other.state_sha256();
    const std::string message = error_of([&] { other.restore(loaded); });
    EXPECT_EQ(other.state_sha256(), before);
    return message;
  };
  expect_all(refusal(mixture("ab", "[2, 1]")),
             {"another mixture", "source 0 with weight 0.75", "weight 0.666"});
  expect_all(refusal(mixture("ac", "[3, 1]")), {"another mixture", "source 1 with weight 0.25", "tokens"});
  EXPECT_EQ(refusal(mixture("ac", "[3, 1]")).find("source 0"), std::string::npos) << "source 0 is the same";
  expect_all(refusal(mixture("abc", "[3, 1, 1]")), {"2 sources then, 3 now"});
  expect_all(refusal(resolved_config(folder_, kMixedSteps, {"data.train=" + folder_.at("a")})),
             {"2 sources then, 1 now"});

  checkpoint::StateView broken = trainer.state();
  broken.integers["data.1.taken"] += 1;
  Trainer same(mixture("ab", "[3, 1]"));
  expect_all(error_of([&] { same.restore(saved(broken)); }), {"data.1.taken"});
  broken = trainer.state();
  broken.integers["data.1.next_sample"] = 5;
  expect_all(error_of([&] { same.restore(saved(broken)); }), {"impossible"});
}

TEST_F(MixtureRun, TheSummaryTellsWhatEachSourceGave) {
  config::Config config = mixture("ab", "[3, 1]", {"train.steps=4", "log.run_dir=" + folder_.at("out")});
  const LoopResult result = run_training(config, quiet());
  ASSERT_EQ(result.code, base::ExitCode::Done);
  const nlohmann::json sources = nlohmann::json::parse(read_file(result.summary_path)).at("sources");
  ASSERT_EQ(sources.size(), 2u);
  EXPECT_EQ(sources[0].at("tokens"), 12 * 32);
  EXPECT_EQ(sources[1].at("tokens"), 4 * 32);
  EXPECT_EQ(sources[1].at("weight"), 0.25);
  EXPECT_DOUBLE_EQ(sources[1].at("epochs").get<double>(), 4.0 / 5);
}

class TokenizerOfARun : public ::testing::Test {
 protected:
  const std::string qwen_ = std::string(PLEAT_SOURCE_DIR) + "/tests/data/tokenizer_data/qwen.json";
  config::Config config(const std::vector<std::string>& sets) {
    std::vector<std::string> all = {"log.run_dir=" + folder_.at("run"), "data.train=" + folder_.at("t.txt"),
                                    "data.tokenizer=" + qwen_, "data.end_of_document=<|endoftext|>"};
    all.insert(all.end(), sets.begin(), sets.end());
    return config::parse(testing::run_toml("x", "y", 4), all);
  }
  void SetUp() override { write_file(folder_.at("t.txt"), testing::made_up_text(4000, 1)); }
  testing::TemporaryFolder folder_;
};

TEST_F(TokenizerOfARun, GivesTheModelItsVocabulary) {
  const config::Config prepared = with_prepared_data(config({}), {.quiet = true});
  const auto tokenizer = open_run_tokenizer(prepared);
  EXPECT_EQ(prepared.model.vocab_size, tokenizer->vocab_size());
  EXPECT_EQ(tokenizer->end_of_document(), *tokenizer->id_of("<|endoftext|>"));
  EXPECT_EQ(prepared.data.train, folder_.at("run/data/train"));
  const LoopResult result = run_training(config({}), quiet());
  EXPECT_EQ(result.code, base::ExitCode::Done);
  EXPECT_TRUE(nlohmann::json::parse(read_file(result.summary_path)).contains("sample"));
  // Prepared again only when something it depends on changes.
  const auto made = std::filesystem::last_write_time(folder_.at("run/data/train.idx"));
  with_prepared_data(config({}), {.quiet = true});
  EXPECT_EQ(std::filesystem::last_write_time(folder_.at("run/data/train.idx")), made);
  // Beside what the run was trained on.
  EXPECT_EQ(with_prepared_data(config({"data.end_of_document=5"}), {.quiet = true}).data.train,
            folder_.at("run/data/train-2"));
  EXPECT_EQ(std::filesystem::last_write_time(folder_.at("run/data/train.idx")), made);
}

TEST_F(TokenizerOfARun, MismatchesAreNamed) {
  const int64_t ids = open_run_tokenizer(config({}))->vocab_size();
  expect_all(error_of([&] { with_prepared_data(config({"model.vocab_size=300"}), {.quiet = true}); }),
             {"data.tokenizer", qwen_, std::to_string(ids) + " ids", "model.vocab_size = 300"});
  const std::string prefix = with_prepared_data(config({}), {.quiet = true}).data.train;
  expect_all(error_of([&] {
               with_prepared_data(
                   config({"data.train=" + prefix, "data.tokenizer=byte", "data.end_of_document="}),
                   {.quiet = true});
             }),
             {"data.train", prefix, qwen_, "data.tokenizer = \"byte\""});
  expect_all(error_of([&] {
               with_prepared_data(
                   config({"data.train=", "data.sources=[\"" + prefix + "\"]", "data.weights=[1]",
                           "data.tokenizer=byte", "data.end_of_document="}),
                   {.quiet = true});
             }),
             {"data.sources", prefix, qwen_});
  // The byte tokenizer is the default: data of nobody knows whom is not held against it.
  std::filesystem::remove(prefix + ".json");
  with_prepared_data(config({"data.train=" + prefix, "data.tokenizer=byte",
                             "data.end_of_document=", "model.vocab_size=" + std::to_string(ids)}),
                     {.quiet = true});
}

}  // namespace
}  // namespace pleat::train
