// A run folder as one thing: copied, moved, forked, used from anywhere; one trainer at a time; nothing lost
// when its checkpoints are damaged; changed settings judged key by key.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>

#include "report/jsonl_log.h"
#include "resume/run_folder_support.h"

namespace pleat::train {
namespace {

// Nothing is waited for or followed, and nothing prepared before.
TEST_F(RunFolder, ALockThatIsNoPlainFileIsRefusedWithOrWithoutLocking) {
  write_file(at("victim"), "precious");
  for (const char* name : {"pipe", "link/checkpoints"}) fs::create_directories(at(name));
  ASSERT_EQ(::mkfifo(at("pipe/LOCK").c_str(), 0644), 0);
  fs::create_symlink(at("victim"), at("link/checkpoints/LOCK"));
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"run.toml"}, std::vector<std::string>{"run.toml", "--no-lock"}}) {
    expect(train(arguments, "log.run_dir=pipe"), 74, {"pipe/LOCK' is a pipe; needed a plain file"});
    expect(train(arguments, "log.run_dir=link"), 74, {"checkpoints/LOCK' is a symbolic link"});
  }
  EXPECT_EQ(read_file(at("victim")), "precious");
}

// The run prepares text with data.separator: its record could not be read again.
TEST_F(RunFolder, ARunThatPreparedItsTextIsResumedMovedAndRead) {
  expect(train({"run.toml"}, "log.run_dir=whole"), 0);
  expect(train({"run.toml", "--stop-after", "3"}, "log.run_dir=stopped"), 75);
  const std::map<std::string, std::string> original = tree(at("stopped"));
  fs::copy(at("stopped"), at("copy"), fs::copy_options::recursive);

  // The copy goes on by itself, from elsewhere, with its text gone.
  fs::rename(at("notes.txt"), at("gone.txt"));
  {
    fs::create_directory(at("elsewhere"));
    const Inside elsewhere(at("elsewhere"));
    expect(pleat({"train", "../copy"}), 0,
           {"resumed from ../copy/checkpoints/step-3", "is not there any more"});
    expect(pleat({"generate", "../copy", "--max-tokens", "4"}), 0,
           {"using step 6", "../copy/checkpoints/step-6"});
    expect(pleat({"report", "../copy"}), 0);
  }
  EXPECT_EQ(state("copy"), state("whole"));
  EXPECT_EQ(tree(at("stopped")), original) << "the copy wrote into the original";
  // The original, renamed, by its record's name.
  fs::rename(at("stopped"), at("renamed"));
  expect(pleat({"train", at("renamed/config.toml")}), 0);
  EXPECT_EQ(state("renamed"), state("whole"));
  EXPECT_FALSE(fs::exists(at("stopped")));
}

TEST_F(RunFolder, APipeInPlaceOfAFileMadeAStartWaitForEver) {
  expect(train({"run.toml", "--stop-after", "3"}), 75);
  const auto with_pipe = [&](const std::string& name, const std::vector<std::string>& command) {
    SCOPED_TRACE(name + ", " + command[0]);
    fs::remove_all(at("copy"));
    fs::copy(at("first"), at("copy"), fs::copy_options::recursive);
    const std::string file = at("copy/" + name);
    ASSERT_TRUE(fs::is_regular_file(file));
    fs::remove(file);
    ASSERT_EQ(::mkfifo(file.c_str(), 0600), 0);
    PleatProcess process(folder_.path(), command);
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (process.running() && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    process.send(SIGKILL);
    expect(process.wait(), 74, {name + "' is not a regular file"});
  };
  for (const char* name : {"metrics.jsonl", "asked.toml", "data_digests", "data/train.source.json"})
    with_pipe(name, {"train", at("copy")});
  with_pipe("metrics.jsonl", {"report", at("copy")});
  with_pipe("config.toml", {"generate", at("copy"), "--max-tokens", "2"});
  expect(train({"first"}), 0);
  with_pipe("summary.json", {"train", at("copy")});
}

TEST_F(RunFolder, AForkNeverWritesIntoTheOriginal) {
  expect(train({"run.toml"}, "checkpoint.every=1"), 0);
  const std::map<std::string, std::string> original = tree(at("first"));
  expect(train({"first"}, "log.run_dir=fork train.steps=3 checkpoint.every=1"), 0,
         {"a run of its own", "--init first"});
  EXPECT_EQ(summary("fork").at("steps"), 3);
  EXPECT_EQ(tree(at("first")), original);
}

TEST_F(RunFolder, ASecondTrainerIsKeptOut) {
  const std::string data = at("tokens");
  testing::write_dataset(data, 4000, 5);
  write_file(at("long.toml"), testing::run_toml(data, at("long"), 100000));
  const std::vector<std::string> command = {"train", at("long.toml"), "--set", "checkpoint.every=1"};
  fs::create_directory(at("one"));
  PleatProcess first(at("one"), command);
  while (first.running() && !fs::exists(at("long/checkpoints/LATEST")))
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  const std::string record = read_file(at("long/config.toml"));
  const Ended second = pleat(command);
  expect(second, 65, {"another trainer is at work", "pid ", "since "});
  EXPECT_EQ(read_file(at("long/config.toml")), record);
  // Readers are welcome, and what they read stays until they are done.
  for (int i = 0; i < 3; ++i) {
    expect(pleat({"generate", at("long"), "--max-tokens", "2"}), 0, {"using step "});
    expect(pleat({"report", at("long"), "--out", at("page.html")}), 0, {"up to step "});
  }
  EXPECT_TRUE(first.running());
  first.send(SIGKILL);
  first.wait();
  std::vector<std::string> stop = command;
  const std::string log = read_file(at("long/metrics.jsonl"));
  stop.insert(stop.end(), {"--stop-after", std::to_string(std::count(log.begin(), log.end(), '\n') + 2)});
  expect(pleat(stop), 75);
}

TEST_F(RunFolder, WithAllCheckpointsDamagedNothingIsTouched) {
  expect(train({"run.toml"}, "checkpoint.every=3"), 0);
  for (const char* step : {"step-3", "step-6"}) {
    const std::string shard = at(fmt::format("first/checkpoints/{}/MANIFEST", step));
    fs::resize_file(shard, fs::file_size(shard) / 2);
  }
  const std::map<std::string, std::string> before = tree(at("first"));
  const std::vector<std::string> words = {"none that verifies", "step-3", "step-6"};
  expect(train({"run.toml"}, "checkpoint.every=3"), 74, words);
  expect(pleat({"generate", at("first")}), 74, words);
  expect(pleat({"eval", at("first"), "--data", at("notes.txt")}), 74, words);
  expect(pleat({"export", at("first"), "--out", at("hf")}), 74, words);
  EXPECT_EQ(tree(at("first")), before);
  EXPECT_FALSE(fs::exists(at("hf")));
}

TEST_F(RunFolder, AFinishedRunIsAlreadyDone) {
  expect(train({"run.toml"}), 0);
  const std::map<std::string, std::string> before = tree(at("first"));
  expect(train({"run.toml"}), 0, {"already done", "6 steps", state("first")});
  expect(train({"first"}), 0, {"already done"});
  EXPECT_EQ(tree(at("first")), before);
  expect(train({"first"}, "train.steps=7"), 0, {"train.steps: 6 -> 7"});
  EXPECT_EQ(summary("first").at("steps"), 7);
}

TEST_F(RunFolder, ASummaryCoversAllProcesses) {
  expect(train({"run.toml", "--stop-after", "2"}, "checkpoint.every=1"), 75);
  const double first = summary("first").at("wall_seconds");
  expect(train({"run.toml"}, "checkpoint.every=1"), 0);
  const nlohmann::json all = summary("first");
  EXPECT_GT(all.at("wall_seconds"), first);
  EXPECT_EQ(all.at("tokens"), 6 * 2 * 2 * 32);
  const auto log = report::read_log(at("first/metrics.jsonl"));
  ASSERT_EQ(log.size(), 6u);
  double seconds = 0;
  for (size_t i = 0; i < log.size(); ++i) {
    seconds += log[i].step_seconds;
    EXPECT_EQ(log[i].tokens, int64_t(i + 1) * 128);
    EXPECT_GT(log[i].wall_seconds, i == 0 ? 0.0 : log[i - 1].wall_seconds);
  }
  EXPECT_NEAR(all.at("tokens_per_s").get<double>() * seconds, 768, 1);
}

TEST_F(RunFolder, ChangedSettingsAreJudgedKeyByKey) {
  expect(train({"run.toml", "--stop-after", "2"}), 75);
  const std::map<std::string, std::string> before = tree(at("first"));
  expect(train({"run.toml"}, "optimizer.lr=0.02"), 65, {"optimizer.lr: 0.01 -> 0.02", "--allow-change"});
  expect(train({"run.toml"}, "train.steps=5"), 65, {"train.steps: 6 -> 5", "--allow-change"});
  expect(train({"run.toml"}, "moe.aux_coef=[0.1]"), 65, {"moe.aux_coef", "--allow-change"});
  EXPECT_EQ(tree(at("first")), before);
  expect(train({"run.toml", "--allow-change"}, "train.seed=2"), 65, {"train.seed: 1234 -> 2", "--init"});
  expect(train({"run.toml", "--allow-change"}, "model.num_layers=3"), 65, {"model.num_layers: 2 -> 3"});
  expect(train({"run.toml"}, "data.separator=zz"), 65,
         {"data.separator was \"\\n\\n\", now \"zz\"", "--allow-change"});
  expect(train({"run.toml", "--allow-change", "--stop-after", "3"}, "optimizer.lr=0.02"), 75,
         {"changed since it was saved: optimizer.lr: 0.01 -> 0.02"});
  expect(train({"first", "--stop-after", "4"}), 75);  // what was accepted stays
  EXPECT_NE(read_file(at("first/asked.toml")).find("lr = 0.02"), std::string::npos);
  expect(train({"first"}, "train.micro_batch=1"), 0, {"train.micro_batch: 2 -> 1"});
}

TEST_F(RunFolder, OtherDataIsReadFromItsStartWithTheFlag) {
  testing::write_dataset(at("a"), 3000, 1);
  testing::write_dataset(at("b"), 2500, 2);
  write_file(at("d.toml"), testing::run_toml(at("a"), at("d"), 4));
  expect(train({"d.toml", "--stop-after", "2"}), 75);
  expect(train({"d.toml"}, "data.train=" + at("b")), 65, {"--allow-change", "b"});
  expect(train({"d.toml", "--allow-change"}, "data.train=" + at("b")), 0, {"the new data from its start"});
  EXPECT_EQ(summary("d").at("tokens"), 4 * 128);
}

TEST_F(RunFolder, TheBestCheckpointIsKeptAndCanBeUsed) {
  expect(train({"run.toml"}, "checkpoint.every=1 train.eval_every=1 optimizer.lr=0.5 optimizer.min_lr=0.5"),
         0);
  double least = 1e9;
  int64_t best = 0;
  for (const report::StepRecord& r : report::read_log(at("first/metrics.jsonl")))
    if (r.eval && r.step < 6 && r.eval->loss < least) least = r.eval->loss, best = r.step;
  ASSERT_LT(best, 5) << "nothing to see: the best is among the newest";
  EXPECT_TRUE(fs::exists(at(fmt::format("first/checkpoints/step-{}", best))));
  EXPECT_TRUE(read_file(at("first/checkpoints/BEST")).starts_with(fmt::format("step-{} ", best)));
  expect(pleat({"generate", at("first"), "--step", "best", "--max-tokens", "2"}), 0,
         {fmt::format("using step {}", best)});
  expect(pleat({"generate", at("first"), "--step", "5", "--max-tokens", "2"}), 0, {"using step 5"});
  expect(pleat({"generate", at("first"), "--step", "77"}), 65, {"no checkpoint of step 77"});
}

// The last step was evaluated on all of the data and the others on a part, and both were called eval.
TEST_F(RunFolder, TheLastEvaluationIsOfTheSamePartAsTheOthers) {
  // Steps 3 and 6 are saved, all are evaluated, and the first are better: the best of them all is not saved.
  const Ended ended = train({"run.toml"},
                            "checkpoint.every=3 train.eval_every=1 train.eval_batches=1 optimizer.lr=0.5 "
                            "optimizer.min_lr=0.5");
  expect(ended, 0, {"eval: the first 1 of ", "microbatches of the validation data, every 1 step and after"});
  std::map<int64_t, double> losses;
  for (const report::StepRecord& r : report::read_log(at("first/metrics.jsonl")))
    losses[r.step] = r.eval.value().loss;
  ASSERT_EQ(losses.size(), 6u);
  const nlohmann::json all = summary("first");
  const int64_t best = all.at("best_checkpoint_step");
  EXPECT_EQ(best, losses[3] <= losses[6] ? 3 : 6);
  EXPECT_EQ(all.at("best_eval_loss"), losses[best]);
  EXPECT_EQ(read_file(at("first/checkpoints/BEST")), fmt::format("step-{} {}\n", best, losses[best]));
  for (const auto& [step, loss] : losses)
    EXPECT_NE(ended.err.find(fmt::format("  eval {:.4f} (", loss)), std::string::npos) << step << ended.err;
  EXPECT_NE(all.at("validation_loss").get<double>(), losses[6]);
  expect(ended, 0,
         {fmt::format("validation, all of it: loss {:.4f} over {} tokens, {:.4f} bits per byte; byte bigram",
                      all.at("validation_loss").get<double>(), all.at("validation_tokens").get<int64_t>(),
                      all.at("validation_bits_per_byte").get<double>())});
}

// It ran before the last save and no signal ended it: whoever could not wait lost the run.
TEST_F(RunFolder, AStopDuringTheWholeEvaluationComesAfterTheLastSave) {
  write_file(at("long.txt"), testing::made_up_text(3'000'000, 3));
  PleatProcess process(folder_.path(),
                       {"train", at("run.toml"), "--set", "data.train=" + at("long.txt"), "--set",
                        "data.valid_split=0.9", "--set", "log.run_dir=" + at("long")});
  while (process.running() && !fs::exists(at("long/checkpoints/step-6")))
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  process.send(SIGTERM);
  expect(process.wait(), 0, {"asked to stop: every step is trained", "pleat eval"});
  EXPECT_FALSE(summary("long").contains("validation_loss"));
  expect(train({"long"}), 0, {"already done"});
}

TEST_F(RunFolder, StepsBetweenProgressLinesAreObeyedInAFile) {
  const auto steps_shown = [](const std::string& text) {
    std::vector<int> out;
    for (size_t at = 0; (at = text.find("\nstep ", at)) != std::string::npos; ++at)
      out.push_back(std::stoi(text.substr(at + 6)));
    return out;
  };
  const std::string no_eval = " data.valid_split=0";
  EXPECT_EQ(steps_shown(train({"run.toml"}, "log.console_every=1" + no_eval).err),
            (std::vector<int>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(steps_shown(train({"run.toml"}, "log.run_dir=second log.console_every=4" + no_eval).err),
            (std::vector<int>{4, 6}));
}

TEST_F(RunFolder, ADamagedLineOfTheLogStopsNeitherTheReportNorTheRun) {
  expect(train({"run.toml", "--stop-after", "4"}, "checkpoint.every=2"), 75);
  std::string log = read_file(at("first/metrics.jsonl"));
  log[log.find("{\"step\":2")] = '\x01';
  write_file(at("first/metrics.jsonl"), log);
  expect(pleat({"report", at("first")}), 0,
         {"metrics.jsonl:2: not valid JSON", "the report leaves this line out", "up to step 4"});
  EXPECT_NE(read_file(at("first/report.html")).find("A damaged line is left out"), std::string::npos);
  expect(train({"run.toml"}, "checkpoint.every=2"), 0, {"metrics.jsonl.damaged"});
  EXPECT_EQ(report::read_log(at("first/metrics.jsonl")).size(), 5u);
}

TEST_F(RunFolder, ALogIsOnTheDiskBeforeItsCheckpoint) {
  expect(train({"run.toml", "--stop-after", "4"}, "checkpoint.every=2"), 75);
  write_file(at("first/checkpoints/LATEST.tmp-0"), "step-4\n");
  fs::copy(at("first/checkpoints/step-2"), at("first/checkpoints/step-1"), fs::copy_options::recursive);
  expect(train({"run.toml"}, "checkpoint.every=2"), 0);
  for (const char* left : {"LATEST.tmp-0", "step-1"})
    EXPECT_FALSE(fs::exists(at(fmt::format("first/checkpoints/{}", left)))) << left;
  EXPECT_EQ(report::read_log(at("first/metrics.jsonl")).size(), 6u);
}

TEST_F(RunFolder, TheTokenizerIsPartOfTheFolder) {
  expect(pleat({"data", "train-tokenizer", at("notes.txt"), "--vocab-size", "300", "--out", at("tok")}), 0);
  expect(train({"run.toml"}, "data.tokenizer=tok"), 0);
  fs::remove_all(at("tok"));
  fs::rename(at("first"), at("moved"));
  fs::remove(at("notes.txt"));
  expect(pleat({"generate", at("moved"), "--max-tokens", "2"}), 0);
  expect(train({"moved"}, "train.steps=7"), 0);
  EXPECT_NE(read_file(at("moved/asked.toml")).find("tokenizer = \"tokenizer\""), std::string::npos);
}

// Checkpoints outside the folder belong to one run: a copy must not go on in them.
TEST_F(RunFolder, ACopyDoesNotTakeTheCheckpointsOfTheOriginal) {
  expect(train({"run.toml"}, "checkpoint.dir=outside"), 0);
  const std::map<std::string, std::string> before = tree(at("outside"));
  fs::copy(at("first"), at("copy"), fs::copy_options::recursive);
  expect(train({"copy"}, "train.steps=7"), 65, {"outside", "belong to the run in", "checkpoint.dir"});
  EXPECT_EQ(tree(at("outside")), before);
  fs::remove_all(at("copy"));
  fs::rename(at("first"), at("moved"));
  expect(train({"moved"}, "train.steps=7"), 0, {"outside/step-6"});
}

TEST_F(RunFolder, ConversationsFineTuneAModel) {
  expect(train({"run.toml"}), 0);
  std::string lines;
  for (int i = 0; i < 40; ++i)
    lines += fmt::format(
        "{{\"messages\": [{{\"role\": \"user\", \"content\": \"{} and {}\"}}, "
        "{{\"role\": \"assistant\", \"content\": \"{}\"}}]}}\n",
        i, i + 1, 2 * i + 1);
  write_file(at("chat.jsonl"), lines);
  write_file(at("chat.toml"),
             "[optimizer]\nschedule = \"constant\"\n[train]\nsteps = 2\nseq_len = 64\n[data]\n"
             "train = \"chat.jsonl\"\n[chat]\ntemplate = \"plain\"\n[log]\nrun_dir = \"chat\"\n");
  expect(train({"chat.toml", "--init", "first"}), 0, {"using step 6", "starting from the weights"});
  EXPECT_EQ(summary("chat").at("origin").at("step"), 6);
  expect(train({"chat.toml", "--init", "first"}), 0, {"already done"});
  expect(train({"chat.toml", "--init", "first"}, "train.steps=3"), 0, {"goes on", "train.steps: 2 -> 3"});
  expect(pleat({"generate", at("chat"), "--max-tokens", "2"}), 0, {"using step 3"});
}

TEST_F(RunFolder, TheStartIsShort) {
  const Ended brief = train({"run.toml"}, "log.console_every=0");
  expect(brief, 0, {"every setting: first/config.toml"});
  EXPECT_LT(std::count(brief.err.begin(), brief.err.begin() + long(brief.err.find("memory: planned")), '\n'),
            10)
      << brief.err;
  expect(train({"run.toml", "--verbose"}, "log.run_dir=second"), 0, {"asked", "optimizer.lr", "trainable"});
}

}  // namespace
}  // namespace pleat::train
