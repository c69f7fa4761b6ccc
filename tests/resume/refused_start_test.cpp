// A start that is refused, or cut short, leaves nothing that hinders the next one or changes what a run has.
#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

#include "data/indexed_writer.h"
#include "resume/run_folder_support.h"
#include "run/origin.h"

namespace pleat::train {
namespace {

class RefusedStart : public RunFolder {
 protected:
  static bool says(const Ended& ended, const std::string& word) {
    return (ended.out + ended.err).find(word) != std::string::npos;
  }
  // Conversations of one question each.
  void write_chat(const std::string& name, int count = 40) {
    std::string lines;
    for (int i = 0; i < count; ++i)
      lines += fmt::format(
          "{{\"messages\": [{{\"role\": \"user\", \"content\": \"{} and {}\"}}, "
          "{{\"role\": \"assistant\", \"content\": \"{}\"}}]}}\n",
          i, i + 1, 2 * i + 1);
    write_file(at(name), lines);
  }
  // A configuration for --init, training on text.
  void write_init_toml(const std::string& more = "") {
    write_file(at("i1.toml"),
               "[optimizer]\nschedule = \"constant\"\n[train]\nsteps = 2\nseq_len = 32\n[data]\ntrain = "
               "\"notes.txt\"\n[log]\nrun_dir = \"i1\"\n" +
                   more);
  }
  // A tokenizer of its own, with a chat template.
  void write_tokenizer(const std::string& jinja) {
    if (!fs::exists(at("tok")))
      expect(pleat({"data", "train-tokenizer", at("notes.txt"), "--vocab-size", "300", "--out", at("tok")}),
             0);
    write_file(at("tok/chat_template.jinja"), jinja);
  }
};

// Without train.eval_every only the last evaluation looked at the validation data, after all the steps.
TEST_F(RefusedStart, TooLittleValidationDataIsToldBeforeTheFirstStep) {
  const Ended refused = train({"run.toml"}, "data.valid_split=0.01 train.micro_batch=4");
  expect(refused, 65,
         {"1 sequence of 32 tokens", "train.micro_batch = 4", "data.valid_split", "data.valid)"});
  expect(train({"run.toml"}, "data.valid_split=0.005"), 65, {"0 sequences of 32 tokens", "data.valid_split"});
  EXPECT_FALSE(fs::exists(at("first/metrics.jsonl")));
}

TEST_F(RefusedStart, AFailedEvaluationKeepsTheTrainedState) {
  testing::write_dataset(at("a"), 3000, 1);
  {
    data::IndexedDatasetWriter writer(at("odd"), {70000, 0});
    std::vector<int32_t> ids(400, 5);
    ids[150] = 69999;
    writer.append(ids), writer.end_document(), writer.finish();
  }
  write_file(at("d.toml"), testing::run_toml(at("a"), at("d"), 3));
  expect(train({"d.toml"}, "data.valid=" + at("odd")), 65, {"outside the vocabulary", "saved step 3"});
  EXPECT_TRUE(fs::exists(at("d/checkpoints/step-3")));
  expect(train({"d"}, "data.valid="), 0, {"resumed from"});
}

// `checkpoints/step-0` and `origin.json` without asked.toml kept the corrected command out.
TEST_F(RefusedStart, AnInitThatWasRefusedDoesNotHinderTheNext) {
  expect(train({"run.toml"}), 0);
  write_init_toml();
  expect(train({"i1.toml", "--init", "first"}, "data.train=nope.jsonl"), 65,
         {"data.train = \"nope.jsonl\" is not there", at("nope.jsonl")});
  EXPECT_FALSE(fs::exists(at("i1")));
  write_chat("chat.jsonl");
  // A template whose tokens the tokenizer lacks; conversations longer than a sequence.
  expect(train({"i1.toml", "--init", "first"}, "data.train=chat.jsonl chat.template=chatml"), 65);
  EXPECT_FALSE(fs::exists(at("i1/checkpoints")));
  expect(train({"i1.toml", "--init", "first"}, "data.train=chat.jsonl chat.template=plain train.seq_len=8"),
         65);
  EXPECT_FALSE(fs::exists(at("i1/checkpoints")));
  EXPECT_FALSE(fs::exists(at("i1/origin.json")));
  const Ended good = train({"i1.toml", "--init", "first"});
  expect(good, 0, {"using step 6", "starting from the weights"});
  EXPECT_FALSE(says(good, "changed since")) << good.err;
  EXPECT_EQ(summary("i1").at("origin").at("step"), 6);
}

// What stops of an --init at each moment leave behind; the old order of writing, too.
TEST_F(RefusedStart, AnInitThatWasKilledBeginsAgain) {
  expect(train({"run.toml"}), 0);
  write_init_toml();
  expect(train({"i1.toml", "--init", "first", "--stop-after", "1"}, "log.run_dir=whole checkpoint.keep=9"),
         75);
  const auto leftover = [&](const std::vector<std::string>& names) {
    fs::remove_all(at("i1"));
    fs::create_directory(at("i1"));
    for (const std::string& name : names)
      fs::copy(at("whole/" + name), at("i1/" + name), fs::copy_options::recursive);
  };
  const std::string random = [&] {
    expect(train({"run.toml"}, "log.run_dir=i2 train.steps=3"), 0);
    return state("i2");
  }();
  leftover({"data", "LOCK", "origin.json"});
  expect(train({"i1.toml", "--init", "first"}), 0, {"starting from the weights"});
  const std::string done = state("i1");
  leftover({"data", "LOCK", "origin.json", "asked.toml", "config.toml"});
  expect(train({"i1"}), 65, {"was to start from the weights of", "--init"});
  expect(train({"i1", "--init", "first"}), 0);
  EXPECT_EQ(state("i1"), done);
  leftover({"data", "LOCK", "origin.json", "checkpoints"});
  for (const char* name : {"LATEST", "step-1"}) fs::remove_all(at(fmt::format("i1/checkpoints/{}", name)));
  expect(train({"i1.toml", "--init", "first"}), 0, {"starting from the weights"});
  EXPECT_EQ(state("i1"), done);
  leftover({"data", "LOCK", "origin.json"});
  fs::create_directory(at("i1/checkpoints"));
  expect(train({"run.toml"}, "log.run_dir=i1 train.steps=3"), 0);
  EXPECT_EQ(state("i1"), random);
  EXPECT_FALSE(summary("i1").contains("origin"));
}

TEST_F(RefusedStart, AKillAtAnyMomentLeavesAFolderThatGoesOn) {
  expect(train({"run.toml"}), 0);
  write_init_toml();
  const Inside here(folder_.path());
  const std::vector<std::string> command = {"train", "i1.toml", "--init", "first"};
  fs::create_directory(at("one"));
  for (const int delay : {5, 15, 30, 50, 75, 100}) {
    PleatProcess killed(at("one"), command);
    std::this_thread::sleep_for(std::chrono::milliseconds(delay));
    killed.send(SIGKILL);
    killed.wait();
  }
  expect(pleat(command), 0);
  EXPECT_EQ(summary("i1").at("origin").at("step"), 6);
}

// The first, refused start had copied the tokenizer, and later ones read the copy.
TEST_F(RefusedStart, ATokenizerThatWasMendedIsReadAgain) {
  write_chat("chat.jsonl");
  const std::string sets =
      "data.tokenizer=tok data.train=chat.jsonl chat.template=tokenizer data.valid_split=0 data.separator= "
      "train.seq_len=128";
  write_tokenizer("{% for m in messages %}{{ m.content ");
  expect(train({"run.toml"}, sets), 65, {"tok"});
  EXPECT_FALSE(fs::exists(at("first")));
  const auto jinja = [](const std::string& word) {
    return "{% for m in messages %}" + word +
           " {{ m.role }}: {% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration "
           "%}{% "
           "else %}{{ m.content }}{% endif %}\n{% endfor %}";
  };
  write_tokenizer(jinja("one"));
  expect(train({"run.toml", "--stop-after", "2"}, sets + " optimizer.lr=0"), 65);
  expect(train({"run.toml", "--stop-after", "2"}, sets), 75);
  EXPECT_NE(read_file(at("first/tokenizer/chat_template.jinja")).find("one"), std::string::npos);
  // Trained: the copy is the run's.
  write_tokenizer(jinja("two"));
  expect(train({"run.toml", "--stop-after", "3"}, sets), 75, {"note: tokenizer tok has changed since"});
  EXPECT_NE(read_file(at("first/tokenizer/chat_template.jinja")).find("one"), std::string::npos);
  // Refused with the flag: nothing of the run changed.
  const std::map<std::string, std::string> before = tree(at("first/tokenizer"));
  expect(train({"run.toml", "--allow-change"}, sets + " train.seed=5"), 65);
  EXPECT_EQ(tree(at("first/tokenizer")), before);
  expect(pleat({"generate", at("first"), "--max-tokens", "2"}), 0);
  expect(train({"run.toml", "--allow-change"}, sets), 0, {"the new data from its start"});
  EXPECT_NE(read_file(at("first/tokenizer-2/chat_template.jinja")).find("two"), std::string::npos);
  EXPECT_NE(read_file(at("first/asked.toml")).find("tokenizer = \"tokenizer-2\""), std::string::npos);
}

TEST_F(RefusedStart, AnEditedTokenizerIsUsedWhileNothingIsTrained) {
  write_tokenizer("one");
  fs::create_directory(at("one"));
  {  // accepted and stopped before anything was saved
    const Inside here(folder_.path());
    PleatProcess run(at("one"),
                     {"train", "run.toml", "--set", "data.tokenizer=tok", "--set", "train.steps=100000"});
    while (run.running() && !fs::exists(at("first/config.toml")))
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    run.send(SIGKILL);
    run.wait();
  }
  ASSERT_FALSE(fs::exists(at("first/checkpoints/LATEST")));
  write_tokenizer("two");
  expect(train({"first"}, "train.steps=3"), 0);
  const std::string asked = read_file(at("first/asked.toml"));
  const size_t begin = asked.find("tokenizer = \"") + 13;
  const std::string copy = asked.substr(begin, asked.find('"', begin) - begin);
  EXPECT_EQ(read_file(at("first/" + copy + "/chat_template.jinja")), "two") << copy;
}

// data/ held other.txt while asked.toml named notes.txt, and eval scored the wrong text.
TEST_F(RefusedStart, ARefusedChangeOfDataLeavesTheRunsData) {
  expect(train({"run.toml"}), 0);
  write_file(at("other.txt"), testing::made_up_text(5000, 4));
  const std::map<std::string, std::string> before = tree(at("first/data"));
  const Ended scored = pleat({"eval", at("first")});
  expect(train({"first", "--allow-change"}, "train.steps=9 data.train=other.txt data.valid_split=0.01"), 65,
         {"the validation data holds"});
  for (const auto& [path, digest] : before) EXPECT_EQ(tree(at("first/data"))[path], digest) << path;
  EXPECT_EQ(pleat({"eval", at("first")}).out, scored.out);
  expect(train({"first"}, "train.steps=7"), 0, {"train.steps: 6 -> 7"});
  // Accepted, it is another place; what checkpoints name stays until they are gone.
  expect(train({"first", "--allow-change"}, "train.steps=8 data.train=other.txt"), 0,
         {"data.train: ", "other.txt", "the new data from its start"});
  EXPECT_NE(read_file(at("first/config.toml")).find("train = \"data/train-2-train\""), std::string::npos);
  for (const auto& [path, digest] : before) EXPECT_EQ(tree(at("first/data"))[path], digest) << path;
  expect(pleat({"eval", at("first"), "--step", "7"}), 0, {"data/train-validation"});
  expect(pleat({"eval", at("first")}), 0, {"data/train-2-validation"});
}

TEST_F(RefusedStart, OtherDataIsToldByItsName) {
  expect(train({"run.toml", "--stop-after", "2"}), 75);
  expect(train({"first"}, "data.train=other.txt"), 65,
         {"data.train was notes.txt, now other.txt, which is not there", at("other.txt"), "--allow-change"});
  write_file(at("other.txt"), testing::made_up_text(5000, 4));
  const Ended there = train({"first"}, "data.train=other.txt");
  expect(there, 65, {"data.train was notes.txt, now other.txt\n", "--allow-change"});
  EXPECT_FALSE(says(there, "[chat]")) << there.err;
}

TEST_F(RefusedStart, OnlyWhatWasAskedOtherwiseIsListed) {
  expect(train({"run.toml"}), 0);
  const Ended more = train({"first"}, "train.steps=7");
  expect(more, 0, {"changed since it was saved: train.steps: 6 -> 7"});
  EXPECT_FALSE(says(more, "log.timeline_step")) << more.err;
  EXPECT_FALSE(says(more, "optimizer.decay_steps")) << more.err;
  write_init_toml();
  const Ended init = train({"i1.toml", "--init", "first"});
  expect(init, 0);
  EXPECT_FALSE(says(init, "changed since")) << init.err;
  write_file(at("plain.toml"),
             "[model]\nhidden_size = 32\nnum_layers = 2\nnum_heads = 2\n[moe]\nnum_experts = 4\ntop_k = 2\n"
             "ffn_hidden_size = 16\n[optimizer]\nschedule = \"constant\"\n[train]\nsteps = 1\nseq_len = 32\n"
             "[data]\ntrain = \"notes.txt\"\n[log]\nrun_dir = \"plain\"\n");
  expect(train({"plain.toml"}), 0);
  expect(pleat({"export", at("plain"), "--out", at("hf")}), 0);
  expect(pleat({"import", at("hf"), "--out", at("tuned")}), 0);
  const Ended tuned =
      train({"tuned"}, "train.steps=1 train.seq_len=32 data.train=notes.txt data.valid_split=0.1");
  expect(tuned, 0, {"starting from the weights"});
  EXPECT_FALSE(says(tuned, "changed since")) << tuned.err;
}

TEST_F(RefusedStart, WhatIsNotThereIsCalledThat) {
  expect(pleat({"generate", at("nope")}), 65, {"nope' does not exist"});
  expect(train({"run.toml", "--init", "nope"}), 65, {"--init 'nope' does not exist", at("nope")});
  fs::create_directory(at("elsewhere"));
  {
    const Inside elsewhere(at("elsewhere"));
    expect(pleat({"train", "../run.toml"}), 65, {"data.train = \"notes.txt\"", at("elsewhere/notes.txt")});
    EXPECT_TRUE(fs::is_empty(at("elsewhere")));
  }
  expect(train({"run.toml"}, "log.run_dir=notes.txt"), 65,
         {"log.run_dir = \"notes.txt\" is a file", "folder"});
  expect(train({"run.toml"}, "log.run_dir=notes.txt/x"), 74, {"log.run_dir = \"notes.txt/x\""});
  std::string plain = testing::run_toml("notes.txt", "first", 6);
  plain += "data.valid_split = 0.2\n";
  write_file(at("run.toml"), plain);
  expect(train({"run.toml"}, "data.train=elsewhere"), 65, {"data.train = \"elsewhere\" is a folder", ".txt"});
  expect(train({"run.toml"}, "data.train=elsewhere data.valid_split=0"), 65, {"is a folder"});
  expect(train({"run.toml"}, "data.train=nowhere"), 65, {"data.train = \"nowhere\" is not there"});
  EXPECT_FALSE(fs::exists(at("first")));
}

}  // namespace
}  // namespace pleat::train
