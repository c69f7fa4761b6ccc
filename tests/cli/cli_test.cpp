// The binary as a user meets it: help, exit codes, messages, and what each sub-command leaves behind.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "base/error.h"
#include "interpret/check/check.h"
#include "interpret/print/print.h"
#include "support/process.h"
#include "support/small_models.h"

namespace pleat {
namespace {

using testing::Ended;
using testing::read_file;
using testing::write_file;

const std::string kModel = testing::kRunModel + R"(
moe.num_experts = 4
moe.shared_ffn_hidden_size = 16
train.steps = 6
)";

// The format of the peers' benchmark.
constexpr char kPeer[] =
    R"({"name": "tiny", "note": "for a test", "arch": "qwen3_moe", "hidden_size": 32, "num_layers": 2,
"num_heads": 4, "num_kv_heads": 2, "head_dim": 8, "qk_norm": "head", "vocab_size": 64, "seq_len": 32, "micro_batch": 2,
"grad_accum": 1, "num_experts": 4, "top_k": 2, "moe_ffn": 16, "shared_ffn": 0,
"router": {"score": "softmax", "norm_topk": true, "scale": 1.0, "fp32": true}, "aux_coef": 0.001, "rope_theta": 10000.0,
"rms_eps": 1e-6, "optimizer": "fp32", "clip": 1.0})";

class Cli : public ::testing::Test {
 protected:
  Cli() { write_file(config_, kModel); }

  Ended run(const std::vector<std::string>& arguments) {
    return testing::run_pleat(folder_.path(), arguments);
  }

  // Must end in code 65 with every one of `words` in its message and nothing on standard output.
  void expect_refused(const std::vector<std::string>& arguments, std::initializer_list<std::string> words) {
    const Ended ended = run(arguments);
    EXPECT_EQ(ended.code, 65) << ::testing::PrintToString(arguments) << ended.err;
    EXPECT_EQ(ended.out, "");
    for (const std::string& word : words)
      EXPECT_NE(ended.err.find(word), std::string::npos) << "no '" << word << "' in: " << ended.err;
  }

  std::string text() {
    std::string out;
    for (int i = 0; i < 120; ++i)
      out += fmt::format("sentence {} is a short one.{}", i, i % 4 == 3 ? "\n\n" : " ");
    return out;
  }

  testing::TemporaryFolder folder_;
  const std::string config_ = folder_.at("model.toml");
};

// The names listed below "Subcommands:".
std::vector<std::string> subcommands_in(const std::string& help) {
  std::vector<std::string> out;
  std::istringstream lines(help.substr(std::min(help.find("Subcommands:\n"), help.size())));
  std::string line;
  std::getline(lines, line);
  while (std::getline(lines, line) && line.starts_with("  "))
    if (line[2] != ' ') out.push_back(line.substr(2, line.find(' ', 2) - 2));
  return out;
}

TEST_F(Cli, EveryHelpEndsInAnExample) {
  std::set<std::string> seen;
  std::vector<std::vector<std::string>> left = {{}};
  while (!left.empty()) {
    std::vector<std::string> words = left.back();
    left.pop_back();
    const std::string name = fmt::format("{}", fmt::join(words, " "));
    seen.insert(name);
    std::vector<std::string> arguments = words;
    arguments.push_back("--help");
    const Ended ended = run(arguments);
    EXPECT_EQ(ended.code, 0) << name;
    const size_t at = ended.out.rfind("Example:\n  pleat " + name);
    ASSERT_NE(at, std::string::npos) << ended.out;
    // Nothing but examples follows.
    std::istringstream lines(ended.out.substr(at + 9));
    for (std::string line; std::getline(lines, line);)
      EXPECT_TRUE(line.empty() || line.starts_with("  pleat " + name)) << ended.out;
    for (const std::string& word : subcommands_in(ended.out)) {
      left.push_back(words);
      left.back().push_back(word);
    }
  }
  for (const char* name :
       {"train",        "plan",       "flops",       "explain",     "explain-config", "report",
        "trace",        "simulate",   "generate",    "eval",        "data tokenize",  "data train-tokenizer",
        "data inspect", "bench step", "bench layer", "bench costs", "bench grouped",  "layout",
        "upcycle",      "completion"})
    EXPECT_TRUE(seen.contains(name)) << name;
  // The hidden switches of tests stay hidden.
  EXPECT_EQ(run({"train", "--help"}).out.find("fault"), std::string::npos);
}

TEST_F(Cli, UnknownWordsAreRefused) {
  expect_refused({"trian"}, {"trian", "train"});
  expect_refused({}, {"sub-command"});
  expect_refused({"data"}, {"sub-command"});
  expect_refused({"plan", config_, "--jsn"}, {"--jsn"});
  expect_refused({"train", config_, "--fast"}, {"--fast"});
  expect_refused({"explain", config_, "--program", "infer"}, {"infer"});
  expect_refused({"bench", "step", "--peer-config", "x.json", "--steps", "0"}, {"--steps"});
  expect_refused({"bench", "layer", "--device", "tpu"}, {"--device", "tpu"});
  expect_refused({"bench", "layer", "--device", "cpu"}, {"--shape"});
  expect_refused({"bench", "layer", "--device", "cpu", "--shape", "64,32"}, {"64,32", "T,D,I,E,K"});
  expect_refused({"bench", "layer", "--device", "cpu", "--shape", "64,32,16,8,2", "--skew", "5"},
                 {"moe.force_load = 5", "at most"});
}

TEST_F(Cli, LayoutShowsEveryRankAndGroup) {
  const Ended table = run({"layout", config_, "--ranks", "4", "--set", "parallel.tp=2"});
  EXPECT_EQ(table.code, 0) << table.err;
  EXPECT_NE(table.out.find("attention  4 ranks = tp 2 x cp 1 x dp 2 x pp 1"), std::string::npos) << table.out;
  EXPECT_NE(table.out.find("dp: 2 groups of 2\n    {0,2} {1,3}"), std::string::npos) << table.out;
  const Ended json_text = run({"layout", config_, "--ranks", "4", "--set", "parallel.tp=2", "--json"});
  EXPECT_EQ(json_text.code, 0) << json_text.err;
  const nlohmann::json layout = nlohmann::json::parse(json_text.out);
  EXPECT_EQ(layout.at("ranks").size(), 4u);
  EXPECT_EQ(layout.at("groups").at("tp"), nlohmann::json::parse("[[0,1],[2,3]]"));
  expect_refused({"layout", config_, "--ranks", "4", "--set", "parallel.tp=3"},
                 {"4 / (3 x 1 x 1)", "tp=2", "tp=1"});
  expect_refused({"layout", config_, "--ranks", "0"}, {"--ranks"});
  // What one rank cannot honour is not ignored.
  expect_refused({"plan", config_, "--ranks", "1", "--set", "parallel.tp=2"}, {"1 rank cannot be laid out"});
}

TEST_F(Cli, SimulateShowsWhatIsHidden) {
  const std::vector<std::string> ring = {"simulate",
                                         config_,
                                         "--ranks",
                                         "4",
                                         "--exchanges",
                                         "--set",
                                         "parallel.cp=4",
                                         "--set",
                                         "parallel.context=ring"};
  const Ended table = run(ring);
  EXPECT_EQ(table.code, 0) << table.err;
  for (const char* word : {"sent by a rank", "hidden", "cp_shift", "cp_return", "ring"})
    EXPECT_NE(table.out.find(word), std::string::npos) << word << table.out;
  std::vector<std::string> as_json = ring;
  as_json.push_back("--json");
  const auto rows = nlohmann::json::parse(run(as_json).out).at("exchanges");
  const auto shift = std::find_if(rows.begin(), rows.end(), [](const auto& r) {
    return r.at("name") == "cp_shift" && r.at("phase") == "fwd";
  });
  ASSERT_NE(shift, rows.end());
  EXPECT_EQ(shift->at("calls"), 2 * 3);                                  // layers, steps between four ranks
  EXPECT_EQ(shift->at("sent_bytes"), 2 * 3 * (64 / 4) * 2 * 2 * 8 * 4);  // rows, k and v, heads, width, float
  EXPECT_GT(shift->at("hidden_ns"), 0);
  expect_refused({"simulate", config_, "--ranks", "1", "--set", "parallel.context=ring"},
                 {"parallel.cp > 1"});
}

TEST_F(Cli, BadConfigurationsAreRefusedByName) {
  for (const char* command : {"train", "plan", "explain", "trace"}) {
    expect_refused({command}, {"config"});
    expect_refused({command, folder_.at("none.toml")}, {"none.toml"});
    expect_refused({command, config_, "--set", "moe.topk=3"}, {"moe.topk", "moe.top_k"});
    expect_refused({command, config_, "--set", "moe.top_k=9"}, {"moe.top_k", "9"});
    expect_refused({command, config_, "--set", "moe.top_k=many"}, {"moe.top_k", "many"});
  }
  write_file(folder_.at("broken.toml"), "[model\n");
  expect_refused({"plan", folder_.at("broken.toml")}, {"broken.toml"});
  write_file(folder_.at("unknown.toml"), kModel + "[optimiser]\nlr = 1\n");
  expect_refused({"plan", folder_.at("unknown.toml")}, {"optimiser", "optimizer"});
  expect_refused({"train", config_}, {"data.train"});
  expect_refused({"train", config_, "--set", "data.train=" + folder_.at("none.txt")}, {"none.txt"});
  expect_refused({"train", config_, "--set", "data.train=" + folder_.at("none")}, {"none.bin"});
}

TEST_F(Cli, PlanAsTableAndAsJson) {
  const std::vector<std::string> asked = {"plan",  config_,
                                          "--set", "recompute.modules=[\"activation\"]",
                                          "--set", "optimizer.moment2_dtype=bfloat16"};
  const Ended table = run(asked);
  ASSERT_EQ(table.code, 0) << table.err;
  std::vector<std::string> asked_json = asked;
  asked_json.push_back("--json");
  const Ended json_text = run(asked_json);
  ASSERT_EQ(json_text.code, 0) << json_text.err;
  const nlohmann::json plan = nlohmann::json::parse(json_text.out);
  const auto number_after = [&](const std::string& words) {
    const size_t at = table.out.find(words);
    EXPECT_NE(at, std::string::npos) << words << " is not in\n" << table.out;
    return std::stoll(table.out.substr(at + words.size()));
  };
  EXPECT_EQ(plan.at("arena_bytes"), number_after("arena (allocated)"));
  EXPECT_EQ(plan.at("live_peak_bytes"), number_after("live at the peak"));
  int64_t sum = 0;
  for (const auto& [owner, bytes] : plan.at("memory_by_owner").items()) {
    EXPECT_EQ(bytes, number_after("\n" + owner + " ")) << owner;
    sum += bytes.get<int64_t>();
  }
  EXPECT_EQ(sum, plan.at("live_peak_bytes"));
  int64_t states = 0;
  for (const nlohmann::json& state : plan.at("optimizer_states")) {
    EXPECT_EQ(state.at("bytes"), number_after(fmt::format("\n  {}, {} ", state.at("name").get<std::string>(),
                                                          state.at("format").get<std::string>())));
    states += state.at("bytes").get<int64_t>();
  }
  EXPECT_EQ(states, plan.at("memory_by_owner").at("optimizer"));
  ASSERT_EQ(plan.at("passes").size(), 2u);
  EXPECT_LE(plan["passes"][1]["live_peak_bytes"], plan["passes"][0]["live_peak_bytes"]);
  EXPECT_EQ(plan["passes"][1]["arena_bytes"], plan["arena_bytes"]);
  expect_refused({"plan", config_, "--set", "recompute.modules=[\"experts\", \"activatoin\"]"},
                 {"activatoin", "activation"});
}

TEST_F(Cli, FlopsOfAConfigAndOfAModelFolder) {
  const std::string root = PLEAT_SOURCE_DIR;
  const Ended table = run({"flops", root + "/configs/models/deepseek-v3.toml"});
  EXPECT_EQ(table.code, 0) << table.err;
  for (const char* part : {"11.6 G more in multi-token prediction", "routed_experts", "259.993"})
    EXPECT_NE(table.out.find(part), std::string::npos) << table.out;
  const Ended json =
      run({"flops", root + "/configs/models/qwen3-235b-a22b.toml", "--seq", "131072", "--json"});
  const auto j = nlohmann::json::parse(json.out);
  EXPECT_NEAR(j.at("flops_per_token").at("total").get<double>() / 1e9, 734.7, 0.05);
  EXPECT_NEAR(j.at("parameters").at("total").get<double>() / 1e9, 235, 0.5);
  double sum = 0;
  for (const auto& [name, flops] : j.at("flops_per_token").items())
    sum += name == "total" ? 0 : flops.get<double>();
  EXPECT_DOUBLE_EQ(sum, j.at("flops_per_token").at("total").get<double>());
  EXPECT_EQ(run({"flops", root + "/tests/golden/mixtral"}).code, 0);
  const Ended wrong = run({"flops", root + "/tests"});
  EXPECT_NE(wrong.code, 0);
  EXPECT_NE(wrong.err.find("holds no config.json"), std::string::npos) << wrong.err;
}

TEST_F(Cli, NearestLayoutsAreThoseTheModelCanHave) {
  const std::string tiny = std::string(PLEAT_SOURCE_DIR) + "/configs/tiny.toml";
  const Ended e =
      run({"layout", tiny, "--ranks", "3", "--set", "parallel.tp=2", "--set", "train.seq_len=96"});
  EXPECT_EQ(e.code, 65);
  for (const char* part : {"Nearest settings for 3 ranks:", "tp=1", "train.num_microbatches a multiple of 3"})
    EXPECT_NE(e.err.find(part), std::string::npos) << e.err;
  EXPECT_EQ(e.err.find("\n  tp=3"), std::string::npos) << e.err;
}

TEST_F(Cli, FlopsAreOfTheSequencesOfTheConfiguration) {
  const std::string tiny = std::string(PLEAT_SOURCE_DIR) + "/configs/tiny.toml";
  const auto core = [&](std::vector<std::string> more) {
    std::vector<std::string> all = {"flops", tiny, "--json"};
    all.insert(all.end(), more.begin(), more.end());
    const auto j = nlohmann::json::parse(run(all).out);
    return std::pair(j.at("seq_len").get<int64_t>(),
                     j.at("flops_per_token").at("attention_core").get<double>());
  };
  const auto [length, flops] = core({"--set", "train.seq_len=192"});
  EXPECT_EQ(length, 192);
  EXPECT_EQ(core({"--seq", "384"}).second, 2 * flops);
  const Ended help = run({"flops", "--help"});
  for (const char* part : {"train.seq_len", "else 4096"})
    EXPECT_NE(help.out.find(part), std::string::npos) << help.out;
  // Parts of a small model are no zeros.
  const Ended table = run({"flops", tiny});
  EXPECT_EQ(table.out.find("0.000 "), std::string::npos) << table.out;
}

TEST_F(Cli, ExplainIsAProgramThatParses) {
  for (const char* which : {"train", "evaluate", "logits"}) {
    const Ended ended = run({"explain", config_, "--program", which});
    ASSERT_EQ(ended.code, 0) << ended.err;
    const program::Program program = interpret::parse(ended.out);
    const size_t comment = ended.out.rfind("# ");
    EXPECT_EQ(interpret::print(program), ended.out.substr(0, comment));
    EXPECT_EQ(ended.out.substr(comment),
              fmt::format("# {} stages, {} values, {} host waits per step\n", program.stages.size(),
                          program.values.size(), interpret::check(program).host_waits));
    const Ended brief = run({"explain", config_, "--program", which, "--stages-only"});
    EXPECT_EQ(std::count(brief.out.begin(), brief.out.end(), '\n'),
              std::ptrdiff_t(program.stages.size()) + 1);
  }
}

TEST_F(Cli, ExplainConfig) {
  const Ended key = run({"explain-config", "moe.top_k"});
  EXPECT_EQ(key.code, 0);
  for (const char* word : {"moe.top_k", "default", "2", "moe.num_experts"})
    EXPECT_NE(key.out.find(word), std::string::npos) << key.out;
  const Ended section = run({"explain-config", "optimizer"});
  EXPECT_EQ(section.code, 0);
  EXPECT_NE(section.out.find("warmup_steps"), std::string::npos) << section.out;
  const Ended all = run({"explain-config"});
  EXPECT_EQ(all.code, 0);
  for (const char* word :
       {"model", "moe", "optimizer", "train", "data", "checkpoint", "log", "recompute", "device"})
    EXPECT_NE(all.out.find(word), std::string::npos) << all.out;
  expect_refused({"explain-config", "moe.topk"}, {"moe.topk", "moe.top_k"});
}

TEST_F(Cli, DataTokenizeAndInspect) {
  write_file(folder_.at("lines.jsonl"), "{\"body\": \"first \\u0007 one\"}\n{\"body\": \"second\"}\n");
  const Ended made = run({"data", "tokenize", folder_.at("lines.jsonl"), "--tokenizer", "byte", "--out",
                          folder_.at("set"), "--key", "body"});
  ASSERT_EQ(made.code, 0) << made.err;
  EXPECT_NE(made.out.find("2 documents, 19 tokens"), std::string::npos) << made.out;
  const Ended shown = run({"data", "inspect", folder_.at("set"), "--documents", "2", "--tokens", "11"});
  ASSERT_EQ(shown.code, 0) << shown.err;
  EXPECT_NE(shown.out.find("2 documents, 2 sequences, 19 tokens"), std::string::npos) << shown.out;
  EXPECT_NE(shown.out.find("first \\x07 one"), std::string::npos)
      << "control characters are shown, not sent: " << shown.out;
  EXPECT_NE(shown.out.find("document 1: 7 tokens from 12\n  \"second<|endoftext|>\"\n"), std::string::npos)
      << shown.out;
  const Ended sample = run({"data", "inspect", folder_.at("set"), "--seq-len", "18", "--samples", "1"});
  EXPECT_NE(sample.out.find("2 documents, 17 of 18 labels count"), std::string::npos)
      << sample.out << sample.err;
  EXPECT_NE(sample.out.find("12..12      -    \"s\""), std::string::npos) << sample.out;
  EXPECT_NE(sample.out.find("13..18     loss  \"econd<|endoftext|>\""), std::string::npos) << sample.out;

  write_file(folder_.at("text.txt"), text());
  const Ended split = run({"data", "tokenize", folder_.at("text.txt"), "--tokenizer", "byte", "--out",
                           folder_.at("both"), "--split", "0.8", "--separator", "\\n\\n", "--json"});
  ASSERT_EQ(split.code, 0) << split.err;
  const nlohmann::json result = nlohmann::json::parse(split.out);
  EXPECT_EQ(result.at("vocab_size"), 257);
  EXPECT_EQ(result.at("train").at("prefix"), folder_.at("both-train"));
  EXPECT_EQ(
      result.at("train").at("documents").get<int>() + result.at("validation").at("documents").get<int>(),
      31);  // thirty, one of them cut in two
  const Ended inspected =
      run({"data", "inspect", folder_.at("both-validation"), "--json", "--seq-len", "16"});
  ASSERT_EQ(inspected.code, 0) << inspected.err;
  const nlohmann::json seen = nlohmann::json::parse(inspected.out);
  ASSERT_EQ(seen.at("samples").size(), 3u);
  for (const char* key : {"tokens", "labels", "loss_mask", "positions", "doc_start"})
    EXPECT_EQ(seen.at("samples")[0].at(key).size(), 16u) << key;

  const std::string bad = folder_.at("bad");
  expect_refused(
      {"data", "tokenize", folder_.at("lines.jsonl"), "--tokenizer", "byte", "--out", bad, "--key", "title"},
      {"title"});
  expect_refused(
      {"data", "tokenize", folder_.at("text.txt"), "--tokenizer", "byte", "--out", bad, "--split", "1.5"},
      {"1.5"});
  expect_refused(
      {"data", "tokenize", folder_.at("text.txt"), "--tokenizer", folder_.at("none"), "--out", bad},
      {"none"});
  expect_refused(
      {"data", "tokenize", folder_.at("text.txt"), "--tokenizer", "byte", "--out", bad, "--eod", "<|nope|>"},
      {"<|nope|>"});
  expect_refused({"data", "tokenize", folder_.at("lines.jsonl"), "--tokenizer", "byte", "--out", bad,
                  "--chat", "chatml"},
                 {"chatml", "<|im_start|>", "byte"});
  expect_refused(
      {"data", "tokenize", folder_.at("lines.jsonl"), "--tokenizer", "byte", "--out", bad, "--chat", "plain"},
      {"lines.jsonl:1", "messages"});
  expect_refused({"data", "tokenize", folder_.at("lines.jsonl"), "--tokenizer", "byte", "--out", bad,
                  "--chat-begin", "x"},
                 {"--chat custom"});
  EXPECT_FALSE(std::filesystem::exists(folder_.at("bad.bin")));
  std::filesystem::remove(folder_.at("both-train.json"));
  expect_refused({"data", "inspect", folder_.at("both-train")}, {"--tokenizer"});
  EXPECT_EQ(run({"data", "inspect", folder_.at("both-train"), "--tokenizer", "byte"}).code, 0);
  std::filesystem::resize_file(folder_.at("set.idx"), 20);
  expect_refused({"data", "inspect", folder_.at("set")}, {"set.idx"});
}

// From text to a tokenizer, a dataset of conversations, and a run on it.
TEST_F(Cli, TrainTokenizerThenTrainOnChat) {
  std::string words, chat;
  for (int i = 0; i < 40; ++i) {
    words += text();
    chat += fmt::format(
        "{{\"messages\": [{{\"role\": \"user\", \"content\": \"say {}\"}}, {{\"role\": \"assistant\", "
        "\"content\": \"sentence {} is a short one.\"}}]}}\n",
        i, i);
  }
  write_file(folder_.at("words.txt"), words);
  write_file(folder_.at("chat.jsonl"), chat);
  const Ended tokenizer = run({"data", "train-tokenizer", folder_.at("words.txt"), "--vocab-size", "300",
                               "--out", folder_.at("tok/tokenizer.json"), "--special", "<|im_start|>",
                               "--special", "<|im_end|>", "--pattern", "llama3", "--json"});
  ASSERT_EQ(tokenizer.code, 0) << tokenizer.err;
  EXPECT_EQ(nlohmann::json::parse(tokenizer.out).at("vocab_size"), 300);
  expect_refused({"data", "train-tokenizer", folder_.at("words.txt"), "--vocab-size", "100", "--out",
                  folder_.at("small")},
                 {"100", "257"});
  expect_refused({"data", "train-tokenizer", folder_.at("words.txt"), "--vocab-size", "300", "--out",
                  folder_.at("small.json")},
                 {"tokenizer.json"});

  std::vector<std::string> command = {"train", config_,
                                      "--set", "data.train=" + folder_.at("chat.jsonl"),
                                      "--set", "data.tokenizer=" + folder_.at("tok"),
                                      "--set", "chat.template=chatml",
                                      "--set", "log.run_dir=" + folder_.at("run")};
  // A conversation that is longer than a sequence is not cut in silence.
  expect_refused(command, {"40 of 40 documents are longer than a sequence of 32 tokens",
                           "conversations in OpenAI form", "train.seq_len", "data.packing"});
  command.insert(command.end(), {"--set", "train.seq_len=96"});
  const Ended trained = run(command);
  ASSERT_EQ(trained.code, 0) << trained.err;
  for (const char* word : {"40 whole documents in ", "% filled"})
    EXPECT_NE(trained.err.find(word), std::string::npos) << word << "\n" << trained.err;
  const Ended shown =
      run({"data", "inspect", folder_.at("run/data/train"), "--seq-len", "96", "--samples", "1"});
  for (const char* word : {"loss mask", "40 whole documents in ", "places filled"})
    EXPECT_NE(shown.out.find(word), std::string::npos) << word << "\n" << shown.out << shown.err;

  const Ended documents = run({"data", "inspect", folder_.at("run/data/train"), "--documents", "1"});
  EXPECT_NE(documents.out.find(" -    \"<|im_start|>user"), std::string::npos) << documents.out;
  EXPECT_NE(documents.out.find("loss  \"sentence 0 is a short one."), std::string::npos) << documents.out;

  // The same data under another tokenizer, or a model with fewer ids, is refused by name.
  const auto with = [&](const std::string& set) {
    return std::vector<std::string>{"train", config_,
                                    "--set", "data.train=" + folder_.at("run/data/train"),
                                    "--set", "log.run_dir=" + folder_.at("other"),
                                    "--set", set};
  };
  expect_refused(with("train.steps=2"),
                 {"run/data/train", "data.tokenizer", "byte", folder_.at("run/tokenizer")});
  std::vector<std::string> few = command;
  few.insert(few.end(), {"--set", "model.vocab_size=299"});
  expect_refused(few, {"data.tokenizer", "300", "299"});
}

TEST_F(Cli, AParquetFileIsNoTrainingData) {
  write_file(folder_.at("table.parquet"), "PAR1" + std::string(100, '\0') + "PAR1");
  expect_refused({"train", config_, "--set", "data.train=" + folder_.at("table.parquet")},
                 {"a Parquet file", "pyarrow", "table.jsonl"});
  expect_refused(
      {"data", "tokenize", folder_.at("table.parquet"), "--tokenizer", "byte", "--out", folder_.at("t")},
      {"a Parquet file"});
  write_file(folder_.at("notes.md"), "some text");
  expect_refused({"train", config_, "--set", "data.train=" + folder_.at("notes.md")},
                 {"notes.md", "rename it"});
}

TEST_F(Cli, TrainReportGenerate) {
  write_file(folder_.at("text.txt"), text());
  const std::string run_dir = folder_.at("run");
  const std::vector<std::string> command = {"train", config_,
                                            "--set", "data.train=" + folder_.at("text.txt"),
                                            "--set", "data.valid_split=0.2",
                                            "--set", "log.run_dir=" + run_dir};
  const Ended trained = run(command);
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_EQ(trained.out, "");
  for (const char* word :
       {"parameters", "every setting", "planned", "measured", "bits per byte", "state sha256"})
    EXPECT_NE(trained.err.find(word), std::string::npos) << word << "\n" << trained.err;
  const nlohmann::json summary = nlohmann::json::parse(read_file(run_dir + "/summary.json"));
  EXPECT_EQ(summary.at("steps"), 6);
  EXPECT_EQ(summary.at("exit_code"), 0);
  EXPECT_EQ(summary.at("state_sha256").get<std::string>().size(), 64u);
  EXPECT_LE(summary.at("measured_peak_bytes"), summary.at("planned_peak_bytes"));
  EXPECT_TRUE(nlohmann::json::accept(read_file(run_dir + "/trace.json")));

  std::vector<std::string> quiet = command;
  quiet.push_back("--quiet");
  const Ended again = run(quiet);
  EXPECT_EQ(again.code, 0);
  EXPECT_EQ(again.out + again.err, "") << "a finished run has nothing to do, and quiet means quiet";

  const Ended report = run({"report", run_dir});
  ASSERT_EQ(report.code, 0) << report.err;
  EXPECT_EQ(report.out, run_dir + "/report.html\n");
  const std::string page = read_file(run_dir + "/report.html");
  EXPECT_NE(page.find("<svg"), std::string::npos);
  EXPECT_NE(page.find("</html>"), std::string::npos);
  EXPECT_EQ(page.find("src=\"http"), std::string::npos) << "the page must need nothing from outside";
  expect_refused({"report", folder_.at("no-run")}, {"no-run"});

  const auto generate = [&](const std::string& seed, const std::string& temperature) {
    const Ended ended = run({"generate", run_dir, "--prompt", "sentence ", "--max-tokens", "12", "--seed",
                             seed, "--temperature", temperature});
    EXPECT_EQ(ended.code, 0) << ended.err;
    EXPECT_TRUE(ended.out.starts_with("sentence ")) << ended.out;
    return ended.out;
  };
  EXPECT_EQ(generate("1", "1"), generate("1", "1"));
  EXPECT_NE(generate("1", "1"), generate("2", "1"));
  EXPECT_EQ(generate("1", "0"), generate("2", "0"));
  expect_refused({"generate", run_dir, "--prompt", ""}, {"prompt"});
  expect_refused({"generate", run_dir, "--temperature", "-1"}, {"temperature"});
  expect_refused({"generate", run_dir, "--top-k", "-1"}, {"top-k"});
  expect_refused({"generate", run_dir, "--top-p", "0"}, {"top-p"});
  expect_refused({"generate", run_dir, "--top-p", "1.5"}, {"top-p"});
  expect_refused({"generate", folder_.at("no-run")}, {"no-run"});

  // Several prompts, with and without the cache, together and one by one: the same text.
  write_file(folder_.at("prompts.txt"), "sentence \n\nThe \n");
  const auto several = [&](std::vector<std::string> more) {
    std::vector<std::string> command = {"generate",     run_dir,
                                        "--prompts",    folder_.at("prompts.txt"),
                                        "--prompt",     "a",
                                        "--max-tokens", "9",
                                        "--json",       "--ignore-end",
                                        "--seed",       "4"};
    command.insert(command.end(), more.begin(), more.end());
    const Ended ended = run(command);
    EXPECT_EQ(ended.code, 0) << ended.err;
    EXPECT_NE(ended.err.find("tokens/s"), std::string::npos) << ended.err;
    std::vector<nlohmann::json> lines;
    std::istringstream in(ended.out);
    for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
    return lines;
  };
  const std::vector<nlohmann::json> together = several({});
  ASSERT_EQ(together.size(), 3u);
  EXPECT_EQ(together[0].at("prompt"), "a");
  EXPECT_EQ(together[1].at("prompt"), "sentence ");
  EXPECT_EQ(together[2].at("tokens").size(), 9u);
  EXPECT_EQ(together[2].at("finish"), "length");
  EXPECT_EQ(several({"--batch", "1"}), together);
  EXPECT_EQ(several({"--no-cache"}), together);
  const Ended headed = run({"generate", run_dir, "--prompt", "a", "--prompt", "b", "--max-tokens", "3"});
  EXPECT_NE(headed.out.find("=== prompt 2 ===\nb"), std::string::npos) << headed.out;
  const Ended ids =
      run({"generate", run_dir, "--ids", "--prompt", "65, 66", "--max-tokens", "3", "--ignore-end"});
  EXPECT_TRUE(ids.out.starts_with("65, 66 ")) << ids.out;
  expect_refused({"generate", run_dir, "--ids", "--prompt", "65 x"}, {"65 x"});
  expect_refused({"generate", run_dir, "--ids", "--prompt", "999"}, {"999", "257"});
  expect_refused({"generate", run_dir, "--prompt", "a", "--max-tokens", "1000"},
                 {"train.seq_len", "--context"});
  EXPECT_EQ(run({"generate", run_dir, "--prompt", "a", "--max-tokens", "100", "--context", "200"}).code, 0);

  // Perplexity of the same text, as a file and as a dataset.
  const auto perplexity = [&](const std::string& data) {
    const Ended ended = run({"eval", run_dir, "--data", data, "--json", "--quiet"});
    EXPECT_EQ(ended.code, 0) << ended.err;
    EXPECT_EQ(ended.err, "");
    return nlohmann::json::parse(ended.out);
  };
  const nlohmann::json of_file = perplexity(folder_.at("text.txt"));
  EXPECT_EQ(run({"data", "tokenize", folder_.at("text.txt"), "--tokenizer", "byte", "--out",
                 folder_.at("eval-set")})
                .code,
            0);
  const nlohmann::json of_set = perplexity(folder_.at("eval-set"));
  EXPECT_EQ(of_file.at("tokens"), text().size()) << "all but the first, and the end";
  EXPECT_EQ(of_file.at("bytes"), text().size() - 1);
  EXPECT_EQ(of_file.at("nats_per_token"), of_set.at("nats_per_token"));
  EXPECT_NEAR(of_file.at("bits_per_byte").get<double>() * std::log(2.0) * double(text().size() - 1),
              of_file.at("nats_per_token").get<double>() * double(text().size()), 1e-6);
  expect_refused({"eval", run_dir, "--data", folder_.at("nothing")}, {"nothing"});
  const Ended own = run({"eval", run_dir, "--quiet"});
  EXPECT_NE(own.out.find("train-validation"), std::string::npos) << "the run's own: " << own.out << own.err;
  expect_refused({"eval", std::string(PLEAT_SOURCE_DIR) + "/tests/golden/llama"}, {"--data", "--requests"});
  expect_refused({"eval", run_dir, "--data", folder_.at("text.txt"), "--stride", "9999"}, {"9999"});

  write_file(
      folder_.at("requests.jsonl"),
      "{\"context\": \"sen\", \"continuation\": \"tence\", \"id\": 3}\n{\"arguments\": [\"\", \"x\"]}\n");
  const Ended scored = run(
      {"eval", run_dir, "--requests", folder_.at("requests.jsonl"), "--out", folder_.at("answers.jsonl")});
  ASSERT_EQ(scored.code, 0) << scored.err;
  std::istringstream answers(read_file(folder_.at("answers.jsonl")));
  std::string line;
  ASSERT_TRUE(std::getline(answers, line));
  const nlohmann::json answer = nlohmann::json::parse(line);
  EXPECT_EQ(answer.at("id"), 3);
  EXPECT_EQ(answer.at("num_tokens"), 5);
  EXPECT_LT(answer.at("loglikelihood").get<double>(), 0);
  EXPECT_TRUE(answer.at("is_greedy").is_boolean());
  ASSERT_TRUE(std::getline(answers, line));
  EXPECT_EQ(nlohmann::json::parse(line).at("num_tokens"), 1);
  write_file(folder_.at("bad.jsonl"), "{\"context\": \"sen\"}\n");
  expect_refused({"eval", run_dir, "--requests", folder_.at("bad.jsonl"), "--out", folder_.at("x")},
                 {"bad.jsonl:1"});
}

TEST_F(Cli, Storage) {
  write_file(folder_.at("text.txt"), text());
  write_file(folder_.at("file"), "not a folder");
  const Ended ended = run({"train", config_, "--quiet", "--set", "data.train=" + folder_.at("text.txt"),
                           "--set", "log.run_dir=" + folder_.at("file/run")});
  EXPECT_EQ(ended.code, 74) << ended.err;
  EXPECT_NE(ended.err.find("file/run"), std::string::npos) << ended.err;
  EXPECT_EQ(run({"trace", config_, "--steps", "1", "--out", folder_.at("file/trace.json")}).code, 74);
}

TEST_F(Cli, TraceWritesATimeline) {
  const Ended ended = run({"trace", config_, "--steps", "1", "--out", folder_.at("trace.json"), "--svg",
                           folder_.at("trace.svg")});
  ASSERT_EQ(ended.code, 0) << ended.err;
  const nlohmann::json trace = nlohmann::json::parse(read_file(folder_.at("trace.json")));
  const nlohmann::json& events = trace.is_array() ? trace : trace.at("traceEvents");
  EXPECT_NE(ended.out.find(" stages in "), std::string::npos) << ended.out;
  size_t spans = 0;
  for (const nlohmann::json& event : events) {
    if (event.at("ph") != "X") continue;
    ++spans;
    EXPECT_GE(event.at("dur").get<double>(), 0);
    EXPECT_FALSE(event.at("name").get<std::string>().empty());
  }
  const program::Program program = interpret::parse(run({"explain", config_}).out);
  EXPECT_EQ(spans, program.stages.size());
  EXPECT_NE(read_file(folder_.at("trace.svg")).find("</svg>"), std::string::npos);
}

TEST_F(Cli, DoctorExercisesThreadRanks) {
  const Ended text = run({"doctor", "--ranks", "3", "--bytes", "4096"});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_NE(text.out.find("world of 3  all_to_all_v"), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("PASS"), std::string::npos) << text.out;
  const Ended ended = run({"doctor", "--ranks", "4", "--bytes", "4096", "--json"});
  EXPECT_EQ(ended.code, 0) << ended.err;
  const auto result = nlohmann::json::parse(ended.out);
  EXPECT_EQ(result.at("ranks"), 4);
  EXPECT_EQ(result.at("pass"), true);
  EXPECT_EQ(result.at("groups").size(), 2U);
  EXPECT_GT(result.at("machine").at("gemm_f32_gflops"), 0.1);
  EXPECT_EQ(result.at("groups").at(0).at("over"), "threads");
  expect_refused({"doctor", "--bytes", "6"}, {"6 bytes"});
  ::setenv("RANK", "2", 1);
  expect_refused({"doctor"}, {"RANK=2", "WORLD_SIZE"});
  ::setenv("WORLD_SIZE", "2", 1);
  expect_refused({"doctor"}, {"RANK=2 with WORLD_SIZE=2"});
  ::unsetenv("RANK");
  ::unsetenv("WORLD_SIZE");
}

TEST_F(Cli, DoctorExercisesTheGroupsOfALayout) {
  const Ended ended = run({"doctor", config_, "--ranks", "4", "--bytes", "4096", "--json", "--set",
                           "parallel.tp=2", "--set", "parallel.pp=2"});
  ASSERT_EQ(ended.code, 0) << ended.err;
  const auto result = nlohmann::json::parse(ended.out);
  std::map<std::string, int> sizes;
  for (const auto& group : result.at("groups")) {
    sizes[group.at("name")] = group.at("size");
    EXPECT_TRUE(group.contains("same_ranks_as"));
    EXPECT_EQ(group.at("operations").size(), 12U);
  }
  EXPECT_EQ(sizes.at("pp"), 2);
  EXPECT_EQ(sizes.at("world"), 4);
  const auto has_tp = [](const auto& entry) { return entry.first.starts_with("tp"); };
  EXPECT_TRUE(std::any_of(sizes.begin(), sizes.end(), has_tp)) << ended.out;
  expect_refused({"doctor", config_, "--ranks", "3", "--set", "parallel.tp=2"}, {"3 ranks"});
}

// The layout can be looked at, but nobody learns only from `train` that it cannot be trained.
TEST_F(Cli, LayoutAndDoctorSayWhatPlanWouldRefuse) {
  struct Case {
    std::vector<std::string> sets;
    std::string said;
  };
  const Case cases[] = {
      {{"parallel.ep=2", "train.num_microbatches=3"},
       "train.num_microbatches = 3, the number of the whole step"},
      {{"parallel.pp=2", "parallel.vpp=2", "model.num_layers=4", "train.num_microbatches=6"},
       "3 microbatches per replica with parallel.vpp = 2: needed a multiple of parallel.pp = 2"}};
  for (const Case& c : cases) {
    std::vector<std::string> words = {"plan", config_, "--ranks", "4"};
    for (const std::string& set : c.sets) words.insert(words.end(), {"--set", set});
    expect_refused(words, {c.said});
    for (const char* command : {"layout", "doctor"}) {
      words[0] = command;
      const Ended ended = run(words);
      EXPECT_EQ(ended.code, 0) << ended.err;
      EXPECT_NE(ended.err.find("note: `pleat plan` and `pleat train` would refuse this"), std::string::npos);
      EXPECT_NE(ended.err.find(c.said), std::string::npos) << command << ": " << ended.err;
    }
  }
  const Ended fits =
      run({"layout", config_, "--ranks", "4", "--set", "parallel.ep=2", "--set", "train.num_microbatches=4"});
  EXPECT_EQ(fits.err, "");
}

TEST_F(Cli, BenchStepPrintsAResult) {
  write_file(folder_.at("tiny.json"), kPeer);
  const std::vector<std::string> command = {
      "bench",     "step", "--peer-config", folder_.at("tiny.json"),  "--steps", "2",
      "--threads", "1",    "--out",         folder_.at("result.json")};
  const Ended ended = run(command);
  ASSERT_EQ(ended.code, 0) << ended.err;
  const size_t at = ended.out.rfind("RESULT ");
  ASSERT_NE(at, std::string::npos) << ended.out;
  const nlohmann::json result = nlohmann::json::parse(ended.out.substr(at + 7));
  EXPECT_EQ(result.at("peer"), "pleat");
  EXPECT_EQ(result.at("config"), "tiny");
  EXPECT_EQ(result.at("ok"), true);
  EXPECT_EQ(result.at("threads"), 1);
  EXPECT_GT(result.at("ms_per_step").get<double>(), 0);
  EXPECT_NEAR(result.at("tokens_per_s").get<double>(), 64 / result.at("ms_per_step").get<double>() * 1e3,
              1e-6 * result.at("tokens_per_s").get<double>());
  EXPECT_NEAR(result.at("loss").get<double>(), std::log(64.0), 0.5);
  EXPECT_GT(result.at("rss_growth_MB").get<double>(), 0);
  EXPECT_EQ(nlohmann::json::parse(read_file(folder_.at("result.json"))), result);
  // The same tokens and weights for any number of threads.
  std::vector<std::string> threads = command;
  threads[7] = "2";
  const Ended two = run(threads);
  EXPECT_EQ(nlohmann::json::parse(two.out.substr(two.out.rfind("RESULT ") + 7)).at("loss"),
            result.at("loss"));

  // At experts / top_k every token chooses the loaded expert.
  std::vector<std::string> skewed = command;
  skewed.insert(skewed.end(), {"--skew", "2"});
  const Ended forced = run(skewed);
  ASSERT_EQ(forced.code, 0) << forced.err;
  EXPECT_NE(forced.out.find("max/mean 2.000, forced to 2"), std::string::npos) << forced.out;
  const nlohmann::json loaded = nlohmann::json::parse(forced.out.substr(forced.out.rfind("RESULT ") + 7));
  EXPECT_EQ(loaded.at("load_max_over_mean"), 2.0);
  EXPECT_EQ(loaded.at("skew"), 2.0);
  EXPECT_LT(result.at("load_max_over_mean").get<double>(), 2.0);
  EXPECT_FALSE(result.at("operations").empty());
  std::vector<std::string> drawn = command;
  drawn.insert(drawn.end(), {"--svg", folder_.at("step.svg")});
  ASSERT_EQ(run(drawn).code, 0);
  EXPECT_NE(read_file(folder_.at("step.svg")).find("tiny: one training step"), std::string::npos);

  write_file(folder_.at("broken.json"), "{\"hidden_size\": 32");
  expect_refused({"bench", "step", "--peer-config", folder_.at("broken.json")}, {"broken.json"});
  write_file(folder_.at("part.json"), "{\"hidden_size\": 32}");
  expect_refused({"bench", "step", "--peer-config", folder_.at("part.json")}, {"vocab_size"});
  expect_refused({"bench", "step", "--peer-config", folder_.at("none.json")}, {"none.json"});
}

TEST_F(Cli, BenchLayerMeasuresOneLayer) {
  const std::vector<std::string> command = {
      "bench",     "layer", "--device",  "cpu", "--shape", "256,32,16,8,2",
      "--repeats", "2",     "--threads", "1",   "--out",   folder_.at("layer.json")};
  const Ended table = run(command);
  ASSERT_EQ(table.code, 0) << table.err;
  for (const char* word : {"CPU, float32", "the router decides", "forward + backward ms", "wgrad expert_up"})
    EXPECT_NE(table.out.find(word), std::string::npos) << word << "\n" << table.out;
  const nlohmann::json written = nlohmann::json::parse(read_file(folder_.at("layer.json")));
  const nlohmann::json& layer = written.at("layers").at(0);
  EXPECT_EQ(layer.at("T"), 256);
  EXPECT_GT(layer.at("fwd_tf").get<double>(), 0);
  EXPECT_NEAR(layer.at("fb_tf").get<double>() * layer.at("fb_ms").get<double>(),
              18.0 * 256 * 2 * 32 * 16 / 1e9, 1e-12);
  std::vector<std::string> skewed = command;
  skewed.insert(skewed.end(), {"--skew", "4", "--json"});
  const Ended json = run(skewed);
  ASSERT_EQ(json.code, 0) << json.err;
  EXPECT_EQ(nlohmann::json::parse(json.out).at("layers").at(0).at("load_max_over_mean"), 4.0);
}

TEST_F(Cli, PlanOfAGpuSaysWhatLiesOutsideTheArena) {
  const std::vector<std::string> command = {"plan", config_, "--set", "device.kind=\"cuda\""};
  const Ended table = run(command);
  ASSERT_EQ(table.code, 0) << table.err;
  for (const char* word : {"all of the GPU's memory", "GPU memory: arena", "CUDA's own context"})
    EXPECT_NE(table.out.find(word), std::string::npos) << word << "\n" << table.out;
  std::vector<std::string> as_json = command;
  as_json.push_back("--json");
  const nlohmann::json plan = nlohmann::json::parse(run(as_json).out);
  const nlohmann::json& gpu = plan.at("gpu_memory");
  EXPECT_EQ(gpu.at("arena_bytes"), plan.at("arena_bytes"));
  EXPECT_EQ(gpu.at("total_bytes").get<int64_t>(),
            gpu.at("arena_bytes").get<int64_t>() + gpu.at("context_bytes").get<int64_t>());
  EXPECT_FALSE(nlohmann::json::parse(run({"plan", config_, "--json"}).out).contains("gpu_memory"));
}

}  // namespace
}  // namespace pleat
