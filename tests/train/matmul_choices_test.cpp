// Algorithms of dense products as a run keeps them: what is written reads back, what was tampered with is
// named, what belongs to another machine is not used.
#include "train/matmul_choices.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "train/choices_cache.h"

namespace pleat::train {
namespace {

using kernels::MatmulChoice;
using kernels::MatmulKey;
using tensor::Dtype;

SavedChoices example() {
  SavedChoices out;
  out.machine = {"NVIDIA \"H200\"", 130100, 91900};
  MatmulChoice c;
  c.key = {4096, 2048, 1024, false, true, Dtype::BF16, Dtype::BF16, false, true};
  c.what = "linear forward";
  c.algorithm = {0x25, 0xffffffffffffffff, 0, 0x0123456789abcdef, 1, 2, 3, 0x8000000000000000};
  c.workspace = 33554432;
  c.tflops = 612.25;
  out.choices.push_back(c);
  c.key = {4096, 2048, 1024, true, false, Dtype::BF16, Dtype::F32, true, false};
  c.what = "linear wgrad";
  c.tflops = 0;
  out.choices.push_back(c);
  return out;
}

std::string message_of(const std::string& text) {
  try {
    choices_from_json(text, "run/matmul_choices.json");
  } catch (const base::Error& e) {
    return e.what();
  }
  return "(accepted)";
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

TEST(MatmulChoices, WhatIsWrittenReadsBack) {
  const SavedChoices saved = example();
  EXPECT_EQ(choices_from_json(to_json(saved), "here"), saved);
  const SavedChoices none{saved.machine, {}};
  EXPECT_EQ(choices_from_json(to_json(none), "here"), none);
}

TEST(MatmulChoices, OneLineForEachAndTheKeyInPlainSight) {
  const std::string text = to_json(example());
  EXPECT_NE(
      text.find("\n  {\"for\":\"linear forward\",\"m\":4096,\"n\":2048,\"k\":1024,\"layout\":\"NT\",\"in\":"
                "\"bf16\",\"out\":\"bf16\",\"adds\":false,\"bias\":true,"),
      std::string::npos)
      << text;
  EXPECT_EQ(text_of(example().choices[0].key), "4096x2048x1024 NT bf16->bf16 bias");
  EXPECT_EQ(text_of(example().choices[1].key), "4096x2048x1024 TN bf16->f32 add");
}

TEST(MatmulChoices, OrderOfTheFileDoesNotMatter) {
  SavedChoices turned = example();
  std::swap(turned.choices[0], turned.choices[1]);
  EXPECT_EQ(choices_from_json(to_json(turned), "here"), example());
}

TEST(MatmulChoices, BrokenFilesAreNamed) {
  const std::string good = to_json(example());
  struct Case {
    std::string from, to, says;
  };
  for (const Case& c : std::vector<Case>{
           {"pleat matmul choices", "other", "\"format\" is \"other\", needs \"pleat matmul choices\""},
           {"\"version\": 1", "\"version\": 2", "\"version\" is 2, needs an integer of 1 to 1"},
           {"\"cublas\": 130100", "\"cublas\": -1", "\"cublas\" is -1"},
           {"\"cudnn\": 91900", "\"cudnn\": \"x\"", "\"cudnn\" is \"x\""},
           {"\"cudnn\": 91900,", "", "has no \"cudnn\""},
           {"\"cudnn\": 91900", "\"cudnn\": 91900, \"extra\": 1", "\"extra\" is not a known key"},
           {"\"m\":4096", "\"m\":0", "choice 0: \"m\" is 0, needs an integer of 1 to"},
           {"\"m\":4096", "\"m\":1e3", "choice 0: \"m\" is 1000.0"},
           {"\"m\":4096", "\"m\":18446744073709551615", "\"m\" is 18446744073709551615"},
           {"\"layout\":\"NT\"", "\"layout\":\"NX\"", "\"layout\" is \"NX\", needs NN, NT, TN or TT"},
           {"\"in\":\"bf16\"", "\"in\":\"i32\"", "\"in\" is \"i32\", needs bf16 or f32"},
           {"\"adds\":false", "\"adds\":0", "\"adds\" is 0, needs true or false"},
           {"\"tflops\":612.25", "\"tflops\":-1", "\"tflops\" is -1, needs a number from 0 on"},
           {"\"tflops\":612.25", "\"tflops\":\"nan\"", "\"tflops\" is nan"},
           {"0000000000000025", "000000000000002", "needs 128 digits of 0-9a-f"},
           {"0000000000000025", "000000000000002G", "needs 128 digits of 0-9a-f"},
           {"\"choices\": [", "\"choices\": 7, \"x\": [", "\"x\" is not a known key"},
           {"]}", "]", "not valid JSON"}})
    EXPECT_NE(message_of(replaced(good, c.from, c.to)).find(c.says), std::string::npos)
        << c.to << "\n"
        << message_of(replaced(good, c.from, c.to));
  EXPECT_EQ(message_of(good), "(accepted)");
  EXPECT_NE(message_of("[]").find("run/matmul_choices.json: is array, needs an object"), std::string::npos);
  EXPECT_NE(message_of("").find("not valid JSON"), std::string::npos);
  EXPECT_NE(message_of(std::string(200'000, '[')).find("nests deeper than"), std::string::npos);
  EXPECT_NE(message_of(std::string(size_t{9} << 20, ' ')).find("has 9437184 bytes, at most 8388608 are read"),
            std::string::npos);
}

TEST(MatmulChoices, TheSameProductTwiceIsAnError) {
  SavedChoices twice = example();
  twice.choices[1].key = twice.choices[0].key;
  EXPECT_NE(message_of(to_json(twice)).find("choice 1: 4096x2048x1024 NT bf16->bf16 bias is there twice"),
            std::string::npos);
}

TEST(MatmulChoices, TakenOnTheSameMachine) {
  const SavedChoices saved = example();
  const TakenChoices taken = take(saved, saved.machine, "step-40");
  EXPECT_EQ(taken.use, saved.choices);
  EXPECT_EQ(taken.line, "2 algorithms of dense products taken from step-40");
}

TEST(MatmulChoices, AnotherMachineMeasuresAnewAndSaysSo) {
  const SavedChoices saved = example();
  for (const kernels::MatmulMachine& now :
       {kernels::MatmulMachine{"NVIDIA H100", 130100, 91900}, {saved.machine.device, 130200, 91900}}) {
    const TakenChoices taken = take(saved, now, "step-40");
    EXPECT_TRUE(taken.use.empty());
    EXPECT_NE(taken.line.find("measured on NVIDIA \"H200\", cuBLASLt 130100, cuDNN 91900, here is " +
                              now.device + ", cuBLASLt " + std::to_string(now.cublas)),
              std::string::npos)
        << taken.line;
    EXPECT_NE(taken.line.find("bitwise equality with the former run is not claimed"), std::string::npos);
  }
}

TEST(MatmulChoices, AnotherCudnnKeepsTheAlgorithmsButNotTheClaim) {
  const SavedChoices saved = example();
  const TakenChoices taken = take(saved, {saved.machine.device, saved.machine.cublas, 92000}, "step-40");
  EXPECT_EQ(taken.use, saved.choices);
  EXPECT_NE(
      taken.line.find("cuDNN 91900, here is 92000: bitwise equality with the former run is not claimed"),
      std::string::npos);
}

TEST(MatmulChoices, TheFastestThatWorks) {
  using kernels::fastest;
  using Seconds = std::vector<std::optional<double>>;
  EXPECT_EQ(fastest(Seconds{}), std::nullopt);
  EXPECT_EQ(fastest(Seconds{std::nullopt, std::nullopt}), std::nullopt);
  EXPECT_EQ(fastest(Seconds{std::nullopt, 3.0, 2.0, std::nullopt, 2.0, 5.0}), 2u);
}

class ChoicesCache : public ::testing::Test {
 protected:
  ChoicesCache() { std::filesystem::remove_all(folder_); }
  ~ChoicesCache() override { std::filesystem::remove_all(folder_); }
  const std::string folder_ = ::testing::TempDir() + "pleat_choices_cache";
  const std::string path_ = choices_cache_path(folder_, example().machine);
  std::string line_;
};

TEST_F(ChoicesCache, WhatOneRunMeasuredTheNextKnows) {
  EXPECT_TRUE(read_choices_cache(path_, example().machine, line_).choices.empty());
  SavedChoices first = example(), second = example();
  first.choices.pop_back();
  EXPECT_EQ(add_to_choices_cache(path_, first), "");
  EXPECT_EQ(read_choices_cache(path_, first.machine, line_), first);
  second.choices[0].workspace = 1;  // known already: what was kept stays
  EXPECT_EQ(add_to_choices_cache(path_, second), "");
  EXPECT_EQ(read_choices_cache(path_, first.machine, line_), example());
  EXPECT_EQ(line_, "");
}

TEST_F(ChoicesCache, AnotherGpuOrLibraryHasAFileOfItsOwn) {
  kernels::MatmulMachine other = example().machine;
  other.cublas += 1;
  EXPECT_NE(choices_cache_path(folder_, other), path_);
  add_to_choices_cache(path_, example());
  EXPECT_TRUE(read_choices_cache(path_, other, line_).choices.empty());
  EXPECT_NE(line_.find("of another machine"), std::string::npos);
}

TEST_F(ChoicesCache, ABrokenFileIsPassedOverAndReplaced) {
  add_to_choices_cache(path_, example());
  std::ofstream(path_) << "{";
  EXPECT_TRUE(read_choices_cache(path_, example().machine, line_).choices.empty());
  EXPECT_NE(line_.find("passed over"), std::string::npos);
  EXPECT_EQ(add_to_choices_cache(path_, example()), "");
  line_.clear();
  EXPECT_EQ(read_choices_cache(path_, example().machine, line_), example());
}

TEST_F(ChoicesCache, StartsAtTheSameTimeLostEachOthersChoices) {
  constexpr int kStarts = 8, kEach = 10;
  const auto choice = [](int64_t i) {
    kernels::MatmulChoice c = example().choices[0];
    c.key.m = 64 + i;
    return c;
  };
  std::vector<pid_t> children;
  for (int start = 0; start < kStarts; ++start) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      int faults = 0;
      for (int i = 0; i < kEach; ++i)
        faults += !add_to_choices_cache(path_, {example().machine, {choice(start * kEach + i)}}).empty();
      ::_exit(faults);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0) << "choices were not kept";
  }
  EXPECT_EQ(read_choices_cache(path_, example().machine, line_).choices.size(), size_t{kStarts * kEach});
  EXPECT_EQ(line_, "");
}

TEST_F(ChoicesCache, AFolderThatCannotBeWrittenIsNoFault) {
  std::ofstream(folder_ + ".file") << "x";
  const std::string line =
      add_to_choices_cache(choices_cache_path(folder_ + ".file", example().machine), example());
  EXPECT_NE(line.find("are not kept for other runs"), std::string::npos);
  std::filesystem::remove(folder_ + ".file");
}

}  // namespace
}  // namespace pleat::train
