// `pleat convert` as a process: what it prints, what it holds in memory, and what is left when it is killed.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "support/process.h"

namespace pleat {
namespace {

namespace fs = std::filesystem;
using testing::Ended;
using testing::read_file;
using testing::TemporaryFolder;
using testing::write_file;

// A model folder with `depth` FP8 matrices of 2 MiB of codes, all of them zero, which takes no place on a disk that
// knows holes.
void write_fp8_folder(const std::string& folder, int depth) {
  constexpr int64_t kRows = 1024, kColumns = 2048, kScaleBytes = 8 * 16 * 4;
  nlohmann::ordered_json header;
  int64_t end = 0;
  for (int i = 0; i < depth; ++i) {
    const std::string name = fmt::format("layer.{:03}.weight", i);
    header[name] = {
        {"dtype", "F8_E4M3"}, {"shape", {kRows, kColumns}}, {"data_offsets", {end, end + kRows * kColumns}}};
    end += kRows * kColumns;
    header[name + "_scale_inv"] = {
        {"dtype", "F32"}, {"shape", {8, 16}}, {"data_offsets", {end, end + kScaleBytes}}};
    end += kScaleBytes;
  }
  const std::string json = header.dump();
  std::string start;
  for (int i = 0; i < 8; ++i) start += static_cast<char>(json.size() >> 8 * i & 0xFF);
  fs::create_directories(folder);
  write_file(folder + "/model.safetensors", start + json);
  fs::resize_file(folder + "/model.safetensors", static_cast<uintmax_t>(8 + std::ssize(json) + end));
  write_file(folder + "/config.json",
             R"({"model_type": "any", "dtype": "bfloat16", "quantization_config": {"quant_method": "fp8",
                 "weight_block_size": [128, 128]}})");
}

class Convert : public ::testing::Test {
 protected:
  Ended run(const std::vector<std::string>& arguments) {
    return testing::run_pleat(folder_.path(), arguments);
  }
  bool looks_whole(const std::string& out) {
    for (const auto& entry : fs::directory_iterator(folder_.at(out)))
      if (!entry.path().filename().string().starts_with(".pleat-")) return true;
    return false;
  }
  TemporaryFolder folder_;
};

TEST_F(Convert, SaysWhatItDid) {
  const std::string model = PLEAT_SOURCE_DIR "/tests/golden/quantized/gpt_oss_mxfp4";
  const Ended text = run({"convert", model, "--out", folder_.at("a")});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_EQ(text.out, "mxfp4: 4 of 37 tensors dequantized to bfloat16, 285 KiB from 127 KiB, in 1 file\n");
  EXPECT_EQ(text.err, "note: not copied: 'dequantized.json', 'golden.safetensors'\n");
  const Ended json = run({"convert", model, "--out", folder_.at("b"), "--dtype", "float32", "--json"});
  EXPECT_EQ(json.err, "");
  auto said = nlohmann::json::parse(json.out);
  EXPECT_GE(said["seconds"], 0.0);
  said.erase("seconds");
  EXPECT_EQ(said, nlohmann::json({{"out", folder_.at("b")},
                                  {"quantization", "mxfp4"},
                                  {"dtype", "float32"},
                                  {"tensors", 37},
                                  {"dequantized", 4},
                                  {"bytes_read", 129564},
                                  {"bytes_written", 513180},
                                  {"files", 1},
                                  {"notes", {"not copied: 'dequantized.json', 'golden.safetensors'"}}}));
  const Ended plain = run({"convert", folder_.at("a"), "--out", folder_.at("c")});
  EXPECT_EQ(plain.code, 65);
  EXPECT_NE(plain.err.find("the weights are plain, there is nothing to dequantize"), std::string::npos);
}

TEST_F(Convert, AKilledOrFailedOneLeavesNothingThatLooksWhole) {
  int signal = 0;
  // On a busy machine a conversion may end before it is seen to have begun: then a longer one.
  for (int depth = 24; signal == 0 && depth <= 400; depth *= 2) {
    fs::remove_all(folder_.at("out"));
    write_fp8_folder(folder_.at("model"), depth);
    testing::PleatProcess process(folder_.path(),
                                  {"convert", folder_.at("model"), "--out", folder_.at("out")});
    const auto has_begun = [&] { return fs::exists(folder_.at("out")) && !fs::is_empty(folder_.at("out")); };
    while (process.running() && !has_begun()) std::this_thread::sleep_for(std::chrono::microseconds(100));
    process.send(SIGKILL);
    signal = process.wait().signal;
  }
  EXPECT_EQ(signal, SIGKILL);
  EXPECT_FALSE(looks_whole("out"));
  // The shell's limit is below the size of a matrix.
  const Ended failed = testing::run_shell(
      folder_.path(), fmt::format("ulimit -f 6000; pleat convert {} --out {} --dtype float32",
                                  folder_.at("model"), folder_.at("full")));
  EXPECT_EQ(failed.code, 74);
  EXPECT_NE(failed.err.find("File too large"), std::string::npos) << failed.err;
  EXPECT_FALSE(looks_whole("full"));
}

#ifndef PLEAT_SANITIZED  // their own memory grows
TEST_F(Convert, MemoryDoesNotGrowWithTheFolder) {
  int64_t peak[2] = {};
  for (const int depth : {3, 24}) {
    const std::string model = folder_.at(fmt::format("model{}", depth));
    write_fp8_folder(model, depth);
    const Ended ended = run({"convert", model, "--out", model + "-out", "--max-shard-bytes", "33554432"});
    ASSERT_EQ(ended.code, 0) << ended.err;
    peak[depth == 24] = ended.peak_bytes;
  }
  EXPECT_GT(peak[0], 0);
  EXPECT_LT(peak[1] - peak[0], 4 << 20);  // of 42 MiB more codes, 84 MiB more numbers
}
#endif

}  // namespace
}  // namespace pleat
