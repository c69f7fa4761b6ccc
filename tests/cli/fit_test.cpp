// `pleat fit` as people and scripts use it: what it says fits does, what it writes is taken, what the user set stays.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "config/config.h"
#include "support/process.h"

namespace pleat {
namespace {

using nlohmann::json;
using testing::Ended;
using Words = std::vector<std::string>;

constexpr int kDoesNotFit = 76;

const std::string kStep = R"(
model.dtype = "bfloat16"
model.vocab_size = 8000
model.hidden_size = 1024
model.num_layers = 4
model.num_heads = 8
moe.num_experts = 8
moe.top_k = 2
moe.ffn_hidden_size = 512
train.seq_len = 512
train.num_microbatches = 8
device.kind = "cuda"
)";

// Processor time of all child processes that have ended.
double seconds_of_children() {
  rusage used{};
  getrusage(RUSAGE_CHILDREN, &used);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

class FitCli : public ::testing::Test {
 protected:
  FitCli() { testing::write_file(config_, kStep); }
  Ended run(const Words& words) { return testing::run_pleat(folder_.path(), words); }
  Ended fit(const Words& more) {
    Words all = {"fit", config_, "--machine", "h200"};
    all.insert(all.end(), more.begin(), more.end());
    return run(all);
  }

  testing::TemporaryFolder folder_;
  const std::string config_ = folder_.at("step.toml"), out_ = folder_.at("fitted.toml");
};

// Both streams in one file: the error is no part of a line of the page.
TEST_F(FitCli, AnErrorComesBehindWhatWasPrinted) {
  const Ended ended = testing::run_shell(
      folder_.path(), "pleat fit " + config_ + " --machine h200 --device-memory 1GiB 2>&1");
  EXPECT_EQ(ended.code, kDoesNotFit);
  const size_t line = ended.out.rfind('\n', ended.out.size() - 2) + 1;
  EXPECT_EQ(ended.out.substr(line).find("pleat: on machine 'h200' the step does not fit"), 0u) << ended.out;
}

TEST_F(FitCli, WhatItWritesIsWhatItSaidAndPlansWithinTheLimit) {
  const Ended said = fit({"--device-memory", "1.6GiB", "--write", out_, "--json"});
  ASSERT_EQ(said.code, 0) << said.err;
  const json answer = json::parse(said.out);
  EXPECT_TRUE(answer["complete"]);
  EXPECT_FALSE(answer["plain"]["fits"]);
  const json& best = answer["rows"][0];
  EXPECT_LE(best["device_bytes"], answer["device_limit_bytes"]);
  EXPECT_LT(best["device_over_bytes"], 0);
  const Ended planned = run({"plan", out_, "--machine", "h200", "--device-memory", "1.6GiB", "--json"});
  ASSERT_EQ(planned.code, 0) << planned.err;
  const json plan = json::parse(planned.out);
  EXPECT_TRUE(plan["fits"]);
  EXPECT_EQ(plan["gpu_memory"]["total_bytes"], best["device_bytes"]);
  const Ended simulated =
      run({"simulate", out_, "--ranks", "1", "--machine", "h200", "--device-memory", "1.6GiB", "--json"});
  ASSERT_EQ(simulated.code, 0) << simulated.err;
  EXPECT_NEAR(json::parse(simulated.out)["step_ms"].get<double>(), best["step_ms"].get<double>(), 1e-6);
  // Nothing but the chosen keys differs.
  const config::Config before = config::load(config_), after = config::load(out_);
  std::vector<std::string> keys;
  for (const auto& [key, value] : best["keys"].items()) keys.push_back(key + ": ");
  const std::vector<std::string> differences = config::differences(before, after);
  EXPECT_EQ(differences.size(), keys.size());
  for (const std::string& d : differences)
    EXPECT_TRUE(std::any_of(keys.begin(), keys.end(), [&](const std::string& k) { return d.starts_with(k); }))
        << d;
  // Its first lines say what was chosen and what for.
  const std::string text = testing::read_file(out_);
  EXPECT_TRUE(text.starts_with("# Written by `pleat fit` for 1 rank on machine 'h200': 1.60 GiB"));
  for (const json& choice : best["choices"])
    EXPECT_NE(text.find(choice["cost"].get<std::string>()), std::string::npos);
  // Asked again, everything that was chosen is kept.
  const Ended again = run({"fit", out_, "--machine", "h200", "--device-memory", "1.6GiB", "--json"});
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_TRUE(json::parse(again.out)["plain"]["fits"]);
}

TEST_F(FitCli, AFileThatIsThereIsNotWrittenOver) {
  testing::write_file(out_, "mine");
  const Ended refused = fit({"--write", out_});
  EXPECT_EQ(refused.code, 65);
  EXPECT_NE(refused.err.find("--force"), std::string::npos) << refused.err;
  EXPECT_EQ(testing::read_file(out_), "mine");
  EXPECT_EQ(fit({"--write", out_, "--force"}).code, 0);
  EXPECT_EQ(config::load(out_).model.num_layers, 4);
  EXPECT_EQ(fit({"--force"}).code, 65);
}

TEST_F(FitCli, WhereNothingFitsItSaysWhatWouldAndWritesNothing) {
  const Ended said = fit({"--device-memory", "0.9GiB", "--write", out_});
  EXPECT_EQ(said.code, kDoesNotFit);
  EXPECT_FALSE(std::filesystem::exists(out_));
  EXPECT_NE(said.out.find("nothing fits; nearest to it:"), std::string::npos) << said.out;
  EXPECT_NE(said.out.find("largest owners of a rank"), std::string::npos) << said.out;
  EXPECT_NE(said.out.find("- with model.num_layers = "), std::string::npos) << said.out;
  EXPECT_NE(said.err.find("nothing was written"), std::string::npos) << said.err;
  const Ended as_json = fit({"--device-memory", "0.9GiB", "--json"});
  EXPECT_EQ(as_json.code, kDoesNotFit);
  const json answer = json::parse(as_json.out);
  EXPECT_FALSE(answer["fits"]);
  EXPECT_TRUE(answer["rows"].empty());
  EXPECT_GT(answer["nearest"][0]["device_over_bytes"], 0);
}

TEST_F(FitCli, WhatTheUserSetIsKeptAndSaid) {
  const Words set = {"--set", "recompute.modules=[\"norm\"]", "--device-memory", "3GiB"};
  const Ended kept = fit(set);
  ASSERT_EQ(kept.code, 0) << kept.err;
  EXPECT_NE(kept.out.find("kept, since you set it: recompute.modules; --free KEY lets one go"),
            std::string::npos)
      << kept.out;
  EXPECT_EQ(kept.out.find("recompute experts"), std::string::npos);
  Words free = set;
  free.insert(free.end(), {"--free", "recompute.modules", "--json"});
  const Ended freed = fit(free);
  ASSERT_EQ(freed.code, 0) << freed.err;
  EXPECT_TRUE(json::parse(freed.out)["kept"].empty());
}

TEST_F(FitCli, BadQuestionsAreRefusedWithWhatIsNeeded) {
  const auto refused = [&](const Words& words, const std::string& with) {
    const Ended ended = fit(words);
    EXPECT_EQ(ended.code, 65) << ended.out;
    EXPECT_NE(ended.err.find(with), std::string::npos) << ended.err;
  };
  refused({"--device-memory", "138"}, "the unit is missing");
  refused({"--host-memory", "lots"}, "--host-memory \"lots\": no number");
  refused({"--free", "model.num_layers"}, "no choice of a fit sets it");
  refused({"--set", "device.kind=cpu", "--set", "model.dtype=float32"}, "machine 'h200' has GPUs");
  const Ended none = run({"fit", config_, "--machine", "cpu"});
  EXPECT_EQ(none.code, 65);
  EXPECT_NE(none.err.find("machine 'cpu' has no GPUs"), std::string::npos) << none.err;
  const Ended plan = run({"plan", config_, "--device-memory", "1GiB"});
  EXPECT_EQ(plan.code, 65);
  EXPECT_NE(plan.err.find("need --machine"), std::string::npos) << plan.err;
  const Ended cpu = run({"fit", config_, "--machine", "cpu", "--set", "device.kind=cpu", "--set",
                         "model.dtype=float32", "--device-memory", "1GiB"});
  EXPECT_EQ(cpu.code, 65);
  EXPECT_NE(cpu.err.find("needed is --host-memory"), std::string::npos) << cpu.err;
}

TEST_F(FitCli, RanksOfACpuShareTheMemoryOfTheirNode) {
  const Ended said = run({"fit", config_, "--machine", "cpu", "--set", "device.kind=cpu", "--set",
                          "model.dtype=float32", "--host-memory", "1.2GiB", "--json"});
  ASSERT_EQ(said.code, 0) << said.err << said.out;
  const json answer = json::parse(said.out);
  EXPECT_FALSE(answer["plain"]["fits"]);
  EXPECT_LE(answer["rows"][0]["host_bytes"], answer["host_limit_bytes"]);
  EXPECT_FALSE(answer.contains("device_limit_bytes"));
}

// The steps of docs/measurements.md and a whole model, each with much memory and with less. Seconds of processor time, which
// depend little on what else a machine does.
TEST_F(FitCli, TenQuestionsAboutRealModelsAreAnsweredInSecondsAndTheirRowsFit) {
  struct Case {
    std::string config;
    Words sets;
    bool fits_79;  // GiB; all of them fit 138
  };
  const Words whole = {"--set", "device.kind=cuda",   "--set", "model.dtype=bfloat16",
                       "--set", "train.seq_len=4096", "--set", "train.num_microbatches=4"};
  const std::string root = PLEAT_SOURCE_DIR "/configs/";
  int num_written = 0;
  for (const Case& c : {Case{"steps/mixtral-slice", {}, true}, Case{"steps/deepseek-v3-slice", {}, true},
                        Case{"steps/qwen3-30b-a3b-slice", {}, true}, Case{"steps/olmoe-1b-7b", {}, true},
                        Case{"models/qwen3-30b-a3b", whole, false}})
    for (const char* memory : {"138GiB", "79GiB"}) {
      SCOPED_TRACE(c.config + " on " + memory);
      const bool fits = c.fits_79 || std::string_view(memory) == "138GiB";
      const std::string out = folder_.at(fmt::format("fitted{}.toml", num_written));
      const Words limits = {"--machine",     "h200",   "--device-memory", memory,
                            "--host-memory", "110GiB", "--json"};
      Words words = {"fit", root + c.config + ".toml", "--write", out};
      words.insert(words.end(), c.sets.begin(), c.sets.end());
      words.insert(words.end(), limits.begin(), limits.end());
      const double start = seconds_of_children();
      const Ended said = run(words);
      EXPECT_LT(seconds_of_children() - start, 30);
      EXPECT_EQ(said.code, fits ? 0 : kDoesNotFit) << said.err;
      const json answer = json::parse(said.out);
      EXPECT_EQ(answer["fits"], fits);
      for (const json& row : answer["rows"]) {
        EXPECT_TRUE(row["trains"].get<bool>());
        EXPECT_LE(row["device_bytes"], answer["device_limit_bytes"]);
        EXPECT_LE(row["host_bytes"], answer["host_limit_bytes"]);
      }
      // What cannot be trained is told apart and written nowhere.
      for (const json& row : answer["not_yet"]["rows"]) EXPECT_FALSE(row["trains"].get<bool>());
      EXPECT_EQ(std::filesystem::exists(out), fits);
      if (!fits) continue;
      ++num_written;
      Words again = {"plan", out};
      again.insert(again.end(), limits.begin(), limits.end());
      const Ended planned = run(again);
      ASSERT_EQ(planned.code, 0) << planned.err;
      const json plan = json::parse(planned.out);
      EXPECT_EQ(plan["gpu_memory"]["total_bytes"], answer["rows"][0]["device_bytes"]);
      EXPECT_EQ(plan["host"]["bytes"], answer["rows"][0]["host_bytes"]);
      EXPECT_EQ(plan["host"]["staging_bytes"], answer["rows"][0]["staging_bytes"]);
    }
  EXPECT_EQ(num_written, 9);
}

TEST_F(FitCli, WhatTrainRefusesHasNoAnswer) {
  const Ended asked = fit({"--set", "precision.recipe=mxfp8", "--write", out_});
  EXPECT_EQ(asked.code, 65);
  EXPECT_NE(
      asked.err.find("`train` takes none of the choices on device.kind = \"cuda\", and nothing was written: "
                     "precision.recipe"),
      std::string::npos)
      << asked.err;
  EXPECT_FALSE(std::filesystem::exists(out_));
}

// On a CPU states in eight bits train, and so they are chosen, written and planned to the byte.
TEST_F(FitCli, StatesInEightBitsAreWrittenWhereTheyTrain) {
  const Words on_cpu = {"--machine", "cpu", "--json"};
  const Words cpu = {"--set", "device.kind=cpu",     "--set", "model.dtype=float32",
                     "--set", "train.micro_batch=1", "--set", "recompute.modules=[]"};
  Words coded = {
      "plan", config_, "--set", "optimizer.moment1_dtype=block8", "--set", "optimizer.moment2_dtype=block8"};
  Words asked = {"fit", config_, "--write", out_};
  for (Words* words : {&coded, &asked}) {
    words->insert(words->end(), cpu.begin(), cpu.end());
    words->insert(words->end(), on_cpu.begin(), on_cpu.end());
  }
  const Ended small = run(coded);
  ASSERT_EQ(small.code, 0) << small.err;
  const int64_t bytes = json::parse(small.out)["host"]["bytes"];
  asked.insert(asked.end(), {"--host-memory", fmt::format("{}B", bytes)});
  const Ended said = run(asked);
  ASSERT_EQ(said.code, 0) << said.err << said.out;
  const json best = json::parse(said.out)["rows"][0];
  EXPECT_EQ(best["keys"]["optimizer.moment1_dtype"], "\"block8\"");
  const Ended planned = run({"plan", out_, "--machine", "cpu", "--json"});
  ASSERT_EQ(planned.code, 0) << planned.err;
  EXPECT_EQ(json::parse(planned.out)["host"]["bytes"], best["host_bytes"]);
}

}  // namespace
}  // namespace pleat
