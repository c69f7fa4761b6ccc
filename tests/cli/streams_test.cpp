// Trouble around the process: streams that are full, closed or left, limits of the shell, signals, terminals.
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "support/process.h"

namespace pleat {
namespace {

using testing::Ended;
using testing::read_file;
using testing::write_file;

class Streams : public ::testing::Test {
 protected:
  Streams() {
    std::string text;
    for (int i = 0; i < 120; ++i) text += fmt::format("sentence {} is a short one.\n", i);
    write_file(folder_.at("text.txt"), text);
    write_file(folder_.at("model.toml"), fmt::format(R"(
[model]
hidden_size = 32
num_layers = 1
num_heads = 2
[moe]
num_experts = 4
top_k = 2
ffn_hidden_size = 16
[train]
steps = 6
micro_batch = 2
seq_len = 32
[data]
train = "{}"
[device]
threads = 1
)",
                                                     folder_.at("text.txt")));
  }

  Ended shell(const std::string& line) {
    return testing::run_shell(folder_.path(), fmt::format("cd '{}'; {}", folder_.path(), line));
  }

  // `pleat train` of the model above into the folder `run`.
  std::string train(const std::string& run, const std::string& more = "") const {
    return fmt::format("pleat train model.toml --set log.run_dir={} {}", run, more);
  }

  // All six steps are in the log, and nothing but them.
  void expect_complete(const std::string& run) {
    const std::string log = read_file(folder_.at(run + "/metrics.jsonl"));
    EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 6) << run;
    for (size_t at = 0; at < log.size(); at = log.find('\n', at) + 1) EXPECT_EQ(log[at], '{') << log;
    EXPECT_NE(read_file(folder_.at(run + "/summary.json")).find("\"exit_code\": 0"), std::string::npos);
    EXPECT_TRUE(std::filesystem::exists(folder_.at(run + "/checkpoints/LATEST")));
  }

  testing::TemporaryFolder folder_;
};

TEST_F(Streams, AFullStandardErrorDoesNotStopARun) {
  const Ended ended = shell(train("full") + " 2>/dev/full");
  EXPECT_EQ(ended.code, 0) << ended.err;
  expect_complete("full");
}

TEST_F(Streams, AClosedStandardErrorDoesNotStopARunAndGetsNoFile) {
  const Ended ended = shell(train("closed") + " 2>&-");
  EXPECT_EQ(ended.code, 0) << ended.err;
  expect_complete("closed");
  const Ended all = shell(train("none") + " 0<&- 1>&- 2>&-");
  EXPECT_EQ(all.code, 0) << all.err;
  expect_complete("none");
}

TEST_F(Streams, AReaderThatLeavesStandardErrorDoesNotStopARun) {
  const Ended ended = shell("{ " + train("left") + " 2>&1 >/dev/null; echo $? > code; } | head -1");
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_EQ(read_file(folder_.at("code")), "0\n");
  expect_complete("left");
}

TEST_F(Streams, AStandardOutputThatTakesNothingEndsWithStorage) {
  for (const char* command :
       {"plan model.toml", "plan model.toml --json", "flops model.toml", "explain model.toml",
        "explain-config", "layout model.toml --ranks 1", "simulate model.toml --ranks 1", "--help",
        "plan --help", "data tokenize text.txt --tokenizer byte --out set",
        "verify-layout model.toml --ranks 1"}) {
    const Ended full = shell(fmt::format("pleat {} > /dev/full", command));
    EXPECT_EQ(full.code, 74) << command << full.err;
    EXPECT_NE(full.err.find("standard output: No space left on device"), std::string::npos) << full.err;
  }
  const Ended closed = shell("pleat plan model.toml >&-");
  EXPECT_EQ(closed.code, 74) << closed.err;
  EXPECT_NE(closed.err.find("standard output"), std::string::npos) << closed.err;
  // A reader that has seen enough is no fault to talk about, but the output is not whole.
  const Ended left =
      shell("{ pleat explain model.toml --set train.num_microbatches=64; echo $? > code; } | head -1");
  EXPECT_EQ(left.err, "");
  EXPECT_EQ(read_file(folder_.at("code")), "74\n");
}

TEST_F(Streams, ALimitOnFileSizeEndsWithStorageAndTheRunGoesOnLater) {
  const Ended limited = shell("ulimit -f 40; " + train("limited"));
  EXPECT_EQ(limited.code, 74) << limited.err;
  EXPECT_NE(limited.err.find("File too large"), std::string::npos) << limited.err;
  EXPECT_EQ(shell(train("limited")).code, 0);
  expect_complete("limited");
}

// Sanitizers need the address space and the stack themselves.
#ifndef PLEAT_SANITIZED
TEST_F(Streams, TooLittleAddressSpaceEndsWithAMessageInsteadOfHanging) {
  for (const char* kilobytes : {"150000", "180000", "230000"}) {
    const Ended ended =
        shell(fmt::format("ulimit -v {}; exec timeout -s KILL 60 '{}' train model.toml --set "
                          "log.run_dir=little",
                          kilobytes, PLEAT_BINARY));
    // What is planned is refused ahead; libraries and what is beside the plan may run out on their own.
    const bool refused = ended.err.find("the step does not fit: a rank needs ") != std::string::npos;
    EXPECT_EQ(ended.code, refused ? 76 : 70) << kilobytes << ended.err;
    EXPECT_TRUE(refused || ended.err.find("out of memory") != std::string::npos) << kilobytes << ended.err;
  }
}

TEST_F(Streams, ASmallStackIsEnough) {
  const Ended ended = shell("ulimit -s 256; " + train("stack"));
  EXPECT_EQ(ended.code, 0) << ended.err;
  expect_complete("stack");
}
#endif

// Waits until the log of a run has lines, then sends the signal.
void send_in_the_middle(testing::PleatProcess& process, const std::string& log, int signal) {
  while (process.running() && testing::read_by_now(log).empty())
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  process.send(signal);
}

TEST_F(Streams, AHangUpSavesAndTheSameCommandGoesOn) {
  const std::vector<std::string> command = {
      "train", folder_.at("model.toml"), "--set", "log.run_dir=" + folder_.at("hang"),
      "--set", "train.steps=100000",     "--set", "optimizer.decay_steps=100000"};
  testing::PleatProcess process(folder_.path(), command);
  send_in_the_middle(process, folder_.at("hang/metrics.jsonl"), SIGHUP);
  const Ended ended = process.wait();
  EXPECT_EQ(ended.code, 75) << ended.signal << ended.err;
  EXPECT_NE(ended.err.find("asked to stop: saved step"), std::string::npos) << ended.err;
  EXPECT_TRUE(std::filesystem::exists(folder_.at("hang/checkpoints/LATEST")));
}

TEST_F(Streams, UnderNohupAHangUpIsIgnored) {
  const Ended ended = shell("trap '' HUP; " + train("nohup") + " --set train.steps=300 & " +
                            "while [ ! -s nohup/metrics.jsonl ]; do sleep 0.01; done; "
                            "kill -HUP $(pgrep -P $!) 2>/dev/null || kill -HUP $!; wait $!");
  EXPECT_EQ(ended.code, 0) << ended.err;
}

TEST_F(Streams, ForeignTextDrivesNoTerminal) {
  // An escape sequence in the name of a file, as an error shows it.
  const Ended error = shell("pleat plan $'no\\e[31m\\xc2\\x9b2Jfile.toml'");
  EXPECT_EQ(error.code, 65);
  EXPECT_EQ(error.err.find('\x1b'), std::string::npos) << error.err;
  EXPECT_EQ(error.err.find("\xc2\x9b"), std::string::npos) << error.err;
  const Ended option = shell("pleat plan model.toml --json $'\\e]0;title\\a'");
  EXPECT_EQ(option.code, 65);
  EXPECT_EQ(option.err.find('\x1b'), std::string::npos) << option.err;
  // Generated text: every byte into a pipe, none that steers into a terminal.
  ASSERT_EQ(shell(train("talk", "--quiet")).code, 0);
  const std::string generate = fmt::format(
      "'{}' generate talk --prompt $'red \\e[31m' --max-tokens 120 --context 200 --seed 1", PLEAT_BINARY);
  const Ended pipe = shell(generate);
  EXPECT_EQ(pipe.code, 0) << pipe.err;
  EXPECT_TRUE(pipe.out.starts_with("red \x1b[31m")) << pipe.out;
  write_file(folder_.at("generate.sh"), generate);
  const Ended terminal = shell("script -qec 'bash generate.sh 2>/dev/null' typescript < /dev/null");
  EXPECT_EQ(terminal.code, 0) << terminal.err;
  EXPECT_NE(terminal.out.find("red \\x1b[31m"), std::string::npos) << terminal.out;
  for (const char c : terminal.out)
    EXPECT_TRUE(static_cast<unsigned char>(c) >= 0x20 || c == '\n' || c == '\r' || c == '\t') << int(c);
}

TEST_F(Streams, EvalWritesNoCarriageReturnsIntoPipes) {
  ASSERT_EQ(shell(train("scored", "--quiet")).code, 0);
  const Ended ended = shell("pleat eval scored --data text.txt");
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_EQ(ended.err.find('\r'), std::string::npos) << ended.err;
  EXPECT_EQ(ended.out.find('\r'), std::string::npos) << ended.out;
}

}  // namespace
}  // namespace pleat
