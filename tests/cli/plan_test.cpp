// `pleat plan` and `pleat train` judge a configuration by the same rules and in the same words; and what help
// and explanations show can be typed.
#include <gtest/gtest.h>
#include <sched.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <regex>

#include "device/cuda/cuda.h"
#include "support/process.h"
#include "support/small_models.h"

namespace pleat {
namespace {

using testing::Ended;
using Words = std::vector<std::string>;
using namespace nlohmann::literals;

const std::string kSmall = testing::kRunModel + R"(
model.ffn_hidden_size = 16
model.leading_dense_layers = 1
moe.num_experts = 4
train.steps = 2
train.num_microbatches = 4
data.tokenizer = "byte"
)";

class PlanCli : public ::testing::Test {
 protected:
  PlanCli() {
    testing::write_file(config_, kSmall);
    std::string text;
    for (int i = 0; i < 400; ++i) text += fmt::format("line {} of some text\n", i * i);
    testing::write_file(folder_.at("text.txt"), text);
  }

  Ended run(Words arguments) { return testing::run_pleat(folder_.path(), arguments); }
  Ended plan(const Words& more) {
    Words all = {"plan", config_};
    all.insert(all.end(), more.begin(), more.end());
    return run(all);
  }
  Ended train(const Words& more) {
    Words all = {"train", config_,
                 "--set", "data.train=" + folder_.at("text.txt"),
                 "--set", "log.run_dir=" + folder_.at("run")};
    all.insert(all.end(), more.begin(), more.end());
    return run(all);
  }

  testing::TemporaryFolder folder_;
  const std::string config_ = folder_.at("config.toml");
};

TEST_F(PlanCli, WhatDiedInAKernelIsRefusedByPlanAndTrainInTheSameWords) {
  const std::vector<Words> refused = {
      {"--set", "model.head_dim=512"},
      {"--set", "model.hidden_size=2048"},
      {"--set", "moe.num_experts=8192"},
      {"--set", "device.kind=cuda", "--set", "model.dtype=float64"},
      {"--set", "device.kind=cuda", "--set", "moe.router_dtype=float64"},
      {"--set", "model.dtype=bfloat16"},
      {"--set", "device.kind=cuda", "--set", "moe.num_experts=64", "--set", "moe.num_groups=64", "--set",
       "moe.group_topk=2"},
      {"--ranks", "2", "--set", "device.kind=cuda", "--set", "moe.num_experts=64", "--set", "moe.top_k=33",
       "--set", "parallel.ep=2"},
      {"--set", "device.kind=cuda", "--set", "model.dtype=bfloat16", "--set", "moe.num_experts=416"},
      {"--set", "comm.check=true"},
      {"--set", "parallel.bucket_mib=1"},
      {"--set", "parallel.pipeline_layout=EttttL"},
      {"--ranks", "2", "--set", "device.kind=cuda", "--set", "device.graph=false", "--set", "parallel.ep=2",
       "--set", "parallel.exchange=counted"},
      {"--ranks", "3", "--set", "parallel.tp=2"},
      {"--ranks", "2", "--set", "parallel.pp=2", "--set", "recompute.modules=[\"shared_experts\"]"},
  };
  for (const Words& sets : refused) {
    SCOPED_TRACE(::testing::PrintToString(sets));
    const Ended planned = plan(sets), trained = train(sets);
    EXPECT_EQ(planned.code, 65);
    EXPECT_EQ(trained.code, 65);
    EXPECT_EQ(planned.err, trained.err);
    EXPECT_FALSE(std::filesystem::exists(folder_.at("run/metrics.jsonl")));
  }
}

// GPU ranks that are planned are processes; threads that share one GPU have no graph.
TEST_F(PlanCli, AGraphOfSeveralRanksIsOneOfProcesses) {
  const Words sets = {"--ranks", "2", "--set", "device.kind=cuda", "--set", "device.graph=false"};
  EXPECT_EQ(plan(sets).code, 0) << plan(sets).err;
  const Ended trained = train(sets);
  EXPECT_EQ(trained.code, 65);
  EXPECT_NE(trained.err.find(
                "device.graph = false has no effect here: threads that share a GPU run stage by stage"),
            std::string::npos)
      << trained.err;
}

TEST_F(PlanCli, GpuRanksMeetAsTrainUnderALauncherDoes) {
  const Words experts = {"--ranks",          "2",     "--set",
                         "device.kind=cuda", "--set", "parallel.ep=2",
                         "--json",           "--set", "parallel.dispatcher=allgather"};
  nlohmann::json j = nlohmann::json::parse(plan(experts).out);
  EXPECT_EQ(j.at("meeting"), "device");
  EXPECT_EQ(j.at("host_waits"), 0);
  Words counts = experts;
  counts.back() = "parallel.exchange=counted";
  EXPECT_GT(nlohmann::json::parse(plan(counts).out).at("host_waits"), 0);
  for (const char* way : {"parallel.exchange=windows", "parallel.exchange=padded"}) {
    counts.back() = way;
    EXPECT_EQ(nlohmann::json::parse(plan(counts).out).at("host_waits"), 0) << way;
  }
  const Words on_cpu = {"--ranks", "2", "--json"};
  EXPECT_EQ(nlohmann::json::parse(plan(on_cpu).out).at("meeting"), "host");
  const Words gpus = {"--ranks", "2", "--set", "device.kind=cuda"};
  EXPECT_NE(plan(gpus).out.find("over NCCL: their exchanges are one chain, and no host waits in a step\n"),
            std::string::npos)
      << plan(gpus).out;
}

TEST_F(PlanCli, AFileForSeveralRanksIsPlannedWithoutBeingToldTheirNumber) {
  const Words sets = {"--set", "parallel.pp=2", "--set", "parallel.ep=2", "--set", "comm.check=true"};
  const Ended ended = plan(sets);
  ASSERT_EQ(ended.code, 0) << ended.err;
  EXPECT_TRUE(ended.out.starts_with(
      "--ranks is not given: 4, the fewest that [parallel] can be laid out on\n4 ranks"))
      << ended.out;
  Words json = sets;
  json.push_back("--json");
  EXPECT_EQ(nlohmann::json::parse(plan(json).out).at("ranks"), 4);
}

TEST_F(PlanCli, ExchangesBetweenGpusAreALineOfThePlan) {
  const Words sets = {"--ranks", "2", "--set", "device.kind=cuda", "--set", "parallel.tp=2"};
  const Ended text = plan(sets);
  ASSERT_EQ(text.code, 0) << text.err;
  EXPECT_NE(text.out.find("NCCL, estimated"), std::string::npos) << text.out;
  Words json = sets;
  json.push_back("--json");
  const auto memory = nlohmann::json::parse(plan(json).out).at("pipeline").at(0).at("gpu_memory");
  EXPECT_GT(memory.at("nccl_bytes"), 0);
  EXPECT_GT(memory.at("nccl_groups"), 0);
  EXPECT_EQ(memory.at("total_bytes").get<int64_t>(), memory.at("arena_bytes").get<int64_t>() +
                                                         memory.at("context_bytes").get<int64_t>() +
                                                         memory.at("nccl_bytes").get<int64_t>());
  const Ended cpu = plan({"--ranks", "2", "--set", "parallel.tp=2"});
  EXPECT_EQ(cpu.out.find("NCCL"), std::string::npos) << cpu.out;
}

TEST_F(PlanCli, RanksThatCannotRunHereArePlannedWithANote) {
  const Words sets = {"--ranks", "2048", "--set", "train.num_microbatches=2048"};
  const Ended planned = plan(sets);
  EXPECT_EQ(planned.code, 0);
  EXPECT_EQ(planned.err,
            "note: `pleat train` would refuse this many ranks: 2048 ranks: up to 1024 can run together\n");
  const Ended shared =
      train({"--ranks", "128", "--set", "device.kind=cuda", "--set", "train.num_microbatches=128"});
  EXPECT_EQ(shared.code, 65);
  EXPECT_EQ(shared.err,
            "pleat: --ranks 128 with device.kind = \"cuda\": threads share one GPU, up to 64 of them; "
            "processes have "
            "one each (pleat launch --gpus N)\n");
}

// The first of two pipeline stages has a dense layer only, as DeepSeek-V3's has three.
TEST_F(PlanCli, ExpertRecomputeAndRerunOverADenseStageAreTakenByEveryCommand) {
  const Words layout = {"--ranks", "4",
                        "--set",   "parallel.pp=2",
                        "--set",   "parallel.ep=2",
                        "--set",   "moe.token_budget=1.01",
                        "--set",   "moe.overflow=rerun",
                        "--set",   "recompute.modules=[\"experts\"]"};
  for (const char* command : {"plan", "explain", "simulate", "verify-layout"}) {
    Words words = {command, config_};
    words.insert(words.end(), layout.begin(), layout.end());
    const Ended ended = run(words);
    EXPECT_EQ(ended.code, 0) << command << ": " << ended.err;
  }
  const Ended trained = train(layout);
  EXPECT_EQ(trained.code, 0) << trained.err;
}

// Whether it fits is judged by the larger of the two programs of a step that may run again.
TEST_F(PlanCli, RoomForBothProgramsOfARerunIsJudged) {
  const auto bytes = [&](const char* overflow) {
    const Ended ended =
        run({"simulate", config_, "--ranks", "2", "--machine", "cpu", "--json", "--set", "parallel.ep=2",
             "--set", "moe.token_budget=1.01", "--set", fmt::format("moe.overflow={}", overflow)});
    EXPECT_EQ(ended.code, 0) << ended.err;
    return nlohmann::json::parse(ended.out).at("host").at("bytes").get<int64_t>();
  };
  EXPECT_GT(bytes("rerun"), bytes("drop"));
  const Ended plan = run({"plan", config_, "--ranks", "2", "--machine", "cpu", "--json", "--set",
                          "parallel.ep=2", "--set", "moe.token_budget=1.01", "--set", "moe.overflow=rerun"});
  ASSERT_EQ(plan.code, 0) << plan.err;
  EXPECT_EQ(nlohmann::json::parse(plan.out).at("host").at("bytes"), bytes("rerun"));
}

TEST_F(PlanCli, ALayoutIsVerifiedInThePrecisionOfTheConfiguration) {
  const auto verify = [&](const Words& more) {
    Words words = {"verify-layout", config_,         "--ranks", "4",
                   "--set",         "parallel.tp=2", "--set",   "parallel.ep=2"};
    words.insert(words.end(), more.begin(), more.end());
    return run(words);
  };
  const Words bfloat16 = {"--precision",          "config", "--cpu",           "--set",
                          "model.dtype=bfloat16", "--set",  "device.kind=cuda"};
  const Ended table = verify(bfloat16);
  EXPECT_EQ(table.code, 0) << table.err << table.out;
  for (const char* text :
       {"in bfloat16 (cpu, rounded)", "gradients of experts", "hidden states", "noise", "PASS"})
    EXPECT_NE(table.out.find(text), std::string::npos) << text;
  const auto j = nlohmann::json::parse(verify({"--precision", "config", "--json"}).out);
  EXPECT_EQ(j["pass"], true);
  EXPECT_EQ(j["precision"], "float32");
  EXPECT_EQ(j["device"], "cpu");
  for (const auto& row : j["rows"]) {
    EXPECT_LE(row["difference"], row["bound"]) << row;
    // As the line above the table says it.
    if (row["noise"] > 0) {
      EXPECT_DOUBLE_EQ(row["bound"], j["bound_over_noise"].get<double>() * row["noise"].get<double>() +
                                         row["weights_apart"].get<double>())
          << row;
    }
  }
  EXPECT_GE(j["rows"].size(), 15u);
  Words broken = bfloat16;
  broken.insert(broken.end(), {"--fault", "drop-expert"});
  const Ended found = verify(broken);
  EXPECT_EQ(found.code, 77) << found.err;
  EXPECT_NE(found.out.find("FAIL: gradients of experts differ"), std::string::npos) << found.out;
  EXPECT_EQ(verify({"--cpu"}).err,
            "pleat: --cpu needs --precision config: float64 runs on the CPU in any case\n");
}

TEST_F(PlanCli, WithoutAGpuVerifyLayoutNamesTheComparisonOnTheCpu) {
  if (device::cuda::num_devices() > 0) GTEST_SKIP() << "there is a GPU";
  const Ended e = run({"verify-layout", config_, "--ranks", "2", "--set", "parallel.ep=2", "--precision",
                       "config", "--set", "model.dtype=bfloat16", "--set", "device.kind=cuda"});
  EXPECT_EQ(e.code, 76) << e.err;
  EXPECT_NE(e.err.find("--cpu compares on the CPU"), std::string::npos) << e.err;
}

TEST_F(PlanCli, WithoutAGpuTrainingIsRefusedBeforeDataIsPrepared) {
  if (device::cuda::num_devices() > 0) GTEST_SKIP() << "there is a GPU";
  const Ended e = run({"train", config_, "--set", "device.kind=cuda", "--set",
                       "data.train=" + folder_.at("text.txt"), "--set", "log.run_dir=" + folder_.at("run")});
  EXPECT_NE(e.code, 0);
  EXPECT_NE(e.err.find("device.kind = \"cpu\""), std::string::npos) << e.err;
  EXPECT_FALSE(std::filesystem::exists(folder_.at("run"))) << e.err;
}

TEST_F(PlanCli, TheTimelineOfSeveralRanksSaysWhoseItIs) {
  const std::string folder = folder_.at("run");
  const Ended trained = run({"train", config_, "--ranks", "2", "--quiet", "--set", "parallel.pp=2", "--set",
                             "log.timeline_step=2", "--set", "data.train=" + folder_.at("text.txt"), "--set",
                             "log.run_dir=" + folder});
  ASSERT_EQ(trained.code, 0) << trained.err;
  const std::string of = "rank 0 of 2, pipeline stage 0 of 2";
  for (const auto& stage : nlohmann::json::parse(testing::read_file(folder + "/timeline.json")))
    ASSERT_EQ(stage.at("of"), of);
  const auto trace = nlohmann::json::parse(testing::read_file(folder + "/trace.json"));
  EXPECT_EQ(trace.at("traceEvents").at(0).at("name"), "process_name");
  EXPECT_EQ(trace.at("traceEvents").at(0).at("args").at("name"), of);
  ASSERT_EQ(run({"report", folder, "--out", folder_.at("page.html")}).code, 0);
  EXPECT_NE(testing::read_file(folder_.at("page.html")).find("The step of " + of + " alone."),
            std::string::npos);
}

// What the small copy takes from the configuration and what it changes is what it says.
TEST_F(PlanCli, VerifyLayoutOnceForgotThePipelineLayoutAndTheTokenBudget) {
  const auto verify = [&](Words more) {
    more.insert(more.begin(), {"verify-layout", config_, "--ranks", "2", "--set", "model.num_layers=8"});
    const Ended ended = run(more);
    EXPECT_EQ(ended.code, 0) << ended.err << ended.out;
    return ended.out;
  };
  const auto has = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  EXPECT_TRUE(has(verify({"--set", "parallel.pp=2"}), "model.num_layers: 8 -> 2"));
  // It names every layer, so all eight are there.
  const std::string uneven =
      verify({"--set", "parallel.pp=2", "--set", "parallel.pipeline_layout=Et|tttttttL"});
  EXPECT_FALSE(has(uneven, "model.num_layers:")) << uneven;
  EXPECT_FALSE(has(uneven, "pipeline_layout")) << uneven;
  // A budget that is too small for the copy's few tokens is raised, and one that is run again is met as it is.
  const Words budget = {"--set", "parallel.ep=2", "--set", "moe.token_budget=1.01"};
  EXPECT_TRUE(has(verify(budget), "moe.token_budget: 1.01 -> ")) << verify(budget);
  Words rerun = budget;
  rerun.insert(rerun.end(), {"--set", "moe.overflow=rerun"});
  EXPECT_FALSE(has(verify(rerun), "moe.token_budget: ")) << verify(rerun);
}

TEST_F(PlanCli, InOrderWithoutLanesIsRefusedByPlanAndTrainInTheSameWords) {
  const Words set = {"--set", "device.in_order=true"};
  const Ended planned = plan(set), trained = train(set);
  EXPECT_EQ(planned.code, 65);
  EXPECT_EQ(trained.code, 65);
  EXPECT_EQ(planned.err, trained.err);
  EXPECT_EQ(planned.err.find("pleat: device.in_order = true has no effect here: it applies when"), 0u)
      << planned.err;
  EXPECT_EQ(train({"--set", "device.in_order=true", "--set", "moe.shared_ffn_hidden_size=16"}).code, 0);
}

TEST_F(PlanCli, TheLedgerAddsUp) {
  const Words words = {"explain",       config_, "--ledger",
                       "--ranks",       "4",     "--set",
                       "parallel.pp=2", "--set", "recompute.modules=[\"norm\"]"};
  const Ended table = run(words);
  ASSERT_EQ(table.code, 0) << table.err;
  for (const char* text :
       {"device at the peak", "sent in pp", "as built", "recompute", "message_buffers", "final"})
    EXPECT_NE(table.out.find(text), std::string::npos) << text << "\n" << table.out;
  EXPECT_EQ(table.out.find("pinned"), std::string::npos) << "a column per space in use";
  Words with_json = words;
  with_json.push_back("--json");
  const auto j = nlohmann::json::parse(run(with_json).out);
  ASSERT_EQ(j["rows"].size(), 3u);
  for (const auto& number :
       {"/stages"_json_pointer, "/at_peak/device"_json_pointer, "/arena_bytes/device"_json_pointer,
        "/sent_bytes/pp"_json_pointer, "/step_ns"_json_pointer}) {
    int64_t sum = j["rows"][0].at(number);
    for (size_t i = 1; i < 3; ++i) sum += j["rows"][i]["change"].at(number).get<int64_t>();
    EXPECT_EQ(sum, j["final"].at(number).get<int64_t>()) << number.to_string();
  }
  const auto planned = nlohmann::json::parse(
      plan({"--ranks", "4", "--set", "parallel.pp=2", "--set", "recompute.modules=[\"norm\"]", "--json"})
          .out);
  EXPECT_EQ(j["final"]["arena_bytes"]["device"], planned["pipeline"][0]["arena_bytes"]);
  EXPECT_EQ(j["final"]["at_peak"]["device"], planned["pipeline"][0]["live_peak_bytes"]);
  for (const Words& wrong : {Words{"--json"},
                             {"--ledger", "--grid"},
                             {"--ledger", "--program", "logits"},
                             {"--ledger", "--stage", "3"}}) {
    Words asked = {"explain", config_};
    asked.insert(asked.end(), wrong.begin(), wrong.end());
    EXPECT_EQ(run(asked).code, 65) << wrong.back();
  }
}

TEST_F(PlanCli, ReductionsOfMpiHaveNoEffectOnThreads) {
  const Ended ended = train({"--ranks", "2", "--set", "comm.mpi_native=true"});
  EXPECT_EQ(ended.code, 65);
  EXPECT_NE(ended.err.find("comm.mpi_native = true has no effect here"), std::string::npos) << ended.err;
}

TEST_F(PlanCli, BenchStepTakesARunConfigurationAndAllCores) {
  const Ended ended = run({"bench", "step", config_, "--steps", "1", "--out", folder_.at("result.json")});
  ASSERT_EQ(ended.code, 0) << ended.err;
  const nlohmann::json result = nlohmann::json::parse(testing::read_file(folder_.at("result.json")));
  EXPECT_EQ(result.at("config"), "config");
  cpu_set_t cores;
  ASSERT_EQ(sched_getaffinity(0, sizeof cores, &cores), 0);
  EXPECT_EQ(result.at("threads"), CPU_COUNT(&cores));
  EXPECT_EQ(run({"bench", "step"}).code, 65);
}

TEST_F(PlanCli, BenchStepShowsWhatCodesOfFewBitsCost) {
  const Ended wide = run({"bench", "step", config_, "--steps", "1"});
  EXPECT_EQ(wide.out.find("codes of few bits"), std::string::npos) << wide.out;
  const Ended few = run({"bench", "step", config_, "--steps", "1", "--set", "precision.recipe=fp8"});
  ASSERT_EQ(few.code, 0) << few.err;
  EXPECT_NE(few.out.find("codes of few bits"), std::string::npos) << few.out;
}

// Every file below configs/ or bench/ that a --help shows is there.
TEST_F(PlanCli, HelpNamesOnlyFilesThatExist) {
  const std::regex file(R"(\b(configs|bench|data|docs|tools)/[A-Za-z0-9_./-]+\.(toml|json|md|py))");
  const std::string all = run({"--help"}).out;
  const std::regex word(R"(\n  ([a-z-]+) )");
  int files = 0;
  std::vector<Words> commands = {
      {}, {"bench", "step"}, {"bench", "layer"}, {"data", "tokenize"}, {"data", "inspect"}};
  for (std::sregex_iterator it(all.begin(), all.end(), word), end; it != end; ++it)
    commands.push_back({(*it)[1]});
  EXPECT_GT(commands.size(), 20U);
  for (Words command : commands) {
    command.push_back("--help");
    const std::string help = run(command).out;
    for (std::sregex_iterator it(help.begin(), help.end(), file), end; it != end; ++it) {
      if ((*it)[1] == "data") continue;  // what a user makes
      ++files;
      EXPECT_TRUE(std::filesystem::exists(std::string(PLEAT_SOURCE_DIR) + "/" + it->str())) << it->str();
    }
  }
  EXPECT_GT(files, 5);
}

TEST_F(PlanCli, TheExampleOfAPipelineLayoutIsAccepted) {
  const std::string text = run({"explain-config", "parallel.pipeline_layout"}).out;
  std::smatch found;
  const std::string line = std::regex_replace(text, std::regex("\n"), " ");
  ASSERT_TRUE(std::regex_search(
      line, found, std::regex("As in (\"[^\"]+\") for ([0-9]+) layers with parallel.pp = ([0-9]+)")))
      << text;
  const Ended ended = plan({"--set", "parallel.pipeline_layout=" + found[1].str(), "--set",
                            "model.num_layers=" + found[2].str(), "--set", "parallel.pp=" + found[3].str()});
  EXPECT_EQ(ended.code, 0) << ended.err;
}

}  // namespace
}  // namespace pleat
