// Import and export: nothing is lost on the way, a trained model comes out as one, and what cannot be done is
// refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "exchange/describe.h"
#include "exchange/exchange_support.h"
#include "exchange/export.h"
#include "exchange/import.h"
#include "exchange/probe.h"
#include "model/parameters.h"

namespace pleat::exchange::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::TestWithParam;

std::vector<std::string> short_training(const std::string& data, int steps) {
  return {"data.train=\"" + data + "\"",
          "train.steps=" + std::to_string(steps),
          "train.seq_len=24",
          "train.micro_batch=2",
          "device.threads=2",
          "log.tensorboard=false"};
}

class RoundTrip : public TestWithParam<std::string> {
 protected:
  std::string at(const std::string& name) const { return folder_.path() + "/" + name; }
  void import(const std::vector<std::string>& sets = {}) const {
    import_model({golden_folder(GetParam()), at("run"), sets});
  }
  ExportResult write(const std::string& to, const std::string& dtype = "",
                     int64_t shard = int64_t{1} << 30) const {
    return export_model({at("run"), at(to), dtype, shard, true});
  }
  TemporaryFolder folder_;
};

TEST_P(RoundTrip, IsBitwise) {
  import();
  const ExportResult result = write("out");
  const auto before = tensors_of(golden_folder(GetParam())), after = tensors_of(at("out"));
  EXPECT_EQ(result.num_checked, static_cast<int64_t>(before.size()));
  ASSERT_EQ(before.size(), after.size());
  for (const auto& [name, tensor] : before) {
    ASSERT_TRUE(after.count(name)) << name;
    EXPECT_EQ(after.at(name).first, tensor.first) << name;
    EXPECT_TRUE(after.at(name).second == tensor.second) << name;
  }
  for (const char* file : {"config.json", "generation_config.json"})
    EXPECT_EQ(read_file(at("out/") + file), read_file(golden_folder(GetParam()) + "/" + file));
}

TEST_P(RoundTrip, ShardsHoldTheSame) {
  import();
  EXPECT_GT(write("out", "f32", 40000).num_shards, 2);
  EXPECT_TRUE(fs::exists(at("out/model.safetensors.index.json")));
  EXPECT_EQ(tensors_of(at("out")), tensors_of(golden_folder(GetParam())));
}

TEST_P(RoundTrip, NarrowingHappensOnceAndSparesTheCorrectionBias) {
  import();
  write("narrow", "bf16");
  import_model({at("narrow"), at("run2"), {}});
  export_model({at("run2"), at("again"), "", int64_t{1} << 30, true});
  const auto narrow = tensors_of(at("narrow"));
  EXPECT_EQ(narrow, tensors_of(at("again")));
  for (const auto& [name, tensor] : narrow)
    EXPECT_TRUE(tensor.first.starts_with(name.ends_with("e_score_correction_bias") ? "F32" : "BF16"))
        << name << " " << tensor.first;
  EXPECT_NE(read_file(at("narrow/config.json")).find("\"dtype\": \"bfloat16\""), std::string::npos);
}

TEST_P(RoundTrip, TrainedModelComesOut) {
  import();
  train_run(at("run"), short_training(write_dataset(folder_.path(), 128), 5));
  EXPECT_EQ(write("out").step, 5);
  const auto before = tensors_of(golden_folder(GetParam())), after = tensors_of(at("out"));
  ASSERT_EQ(before.size(), after.size());
  for (const auto& [name, tensor] : before) {
    EXPECT_EQ(after.at(name).first, tensor.first) << name;
    // The correction bias moves only where the run asks for it.
    EXPECT_EQ(after.at(name).second == tensor.second, name.ends_with("e_score_correction_bias")) << name;
  }
  ProbeOptions o;
  o.model_folder = at("out");
  o.tokens_path = golden_folder(GetParam()) + "/golden.safetensors";
  o.out_path = at("probe.safetensors");
  o.threads = 2;
  EXPECT_TRUE(std::isfinite(probe(o).loss));
}

// What a run starts from is what was imported: with all but the norms frozen, everything else comes out
// untouched.
TEST_P(RoundTrip, TrainingStartsFromTheImportedWeights) {
  import();
  std::vector<std::string> sets = short_training(write_dataset(folder_.path(), 128), 2), frozen;
  for (const model::Parameter& p :
       model::make_parameters(config::resolve(config::load(at("run/config.toml"))))) {
    const std::string name = fmt::format("\"{}\"", model::name_of(p.parameter_class));
    if (p.tied_to.empty() && name != "\"norm\"" &&
        std::find(frozen.begin(), frozen.end(), name) == frozen.end())
      frozen.push_back(name);
  }
  sets.push_back(fmt::format("optimizer.freeze=[{}]", fmt::join(frozen, ", ")));
  train_run(at("run"), sets);
  write("out");
  const auto after = tensors_of(at("out"));
  for (const auto& [name, tensor] : tensors_of(golden_folder(GetParam()))) {
    const bool norm = name.find("norm") != std::string::npos;
    EXPECT_EQ(after.at(name).second == tensor.second, !norm) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, RoundTrip, ::testing::ValuesIn(golden_families()),
                         [](const auto& info) { return info.param; });

struct Refused : ::testing::Test {
  std::string at(const std::string& name) const { return folder_.path() + "/" + name; }
  TemporaryFolder folder_;
};

#define EXPECT_SAYS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

TEST_F(Refused, FoldersThatHoldSomething) {
  import_model({golden_folder("llama"), at("run"), {}});
  EXPECT_SAYS(message_of([&] {
                import_model({golden_folder("llama"), at("run"), {}});
              }),
              "an import needs a new or empty folder");
  EXPECT_SAYS(message_of([&] {
                export_model({at("run"), at("run"), "", 1 << 30, false});
              }),
              "an export needs a new or empty folder");
}

// It was refused for data.jsonl_key, which nobody had set.
TEST_F(Refused, NotATextToTrainOnThatIsSetInAnImport) {
  for (const char* family : {"llama", "mixtral"}) {
    const std::string run = at(family);
    import_model({golden_folder(family), run, {"data.train=notes.txt", "data.tokenizer=tokens.json"}});
    const std::string asked = read_file(run + "/asked.toml");
    EXPECT_SAYS(asked, "notes.txt");
    EXPECT_EQ(asked.find("jsonl_key"), std::string::npos) << asked;
    EXPECT_TRUE(config::load(run, {}).data.train.ends_with("/notes.txt"));
  }
  EXPECT_SAYS(message_of([&] {
                import_model({golden_folder("llama"),
                              at("b"),
                              {"data.train=a.txt", "data.tokenizer=t.json", "data.jsonl_key=body"}});
              }),
              "data.jsonl_key");
}

// Checkpoints outside the run's folder are its own from the beginning.
TEST_F(Refused, CheckpointsOfAnotherRunForAnImport) {
  const std::string outside = at("outside");
  import_model({golden_folder("llama"), at("a"), {"checkpoint.dir=" + outside}});
  EXPECT_SAYS(message_of([&] {
                import_model({golden_folder("llama"), at("b"), {"checkpoint.dir=" + outside}});
              }),
              "belong to the run in");
  EXPECT_SAYS(message_of([&] {
                import_model({golden_folder("llama"), at("b"), {"checkpoint.dir=" + at("a/more")}});
              }),
              "lies in the folder of another run");
  EXPECT_FALSE(fs::exists(at("b")));
}

TEST_F(Refused, NothingIsWrittenForABrokenModel) {
  fs::create_directories(at("model"));
  fs::copy_file(golden_folder("llama") + "/config.json", at("model/config.json"));
  EXPECT_NE(message_of([&] { import_model({at("model"), at("run"), {}}); }), "");
  fs::copy_file(golden_folder("qwen3") + "/model.safetensors", at("model/model.safetensors"));
  EXPECT_SAYS(message_of([&] {
                import_model({at("model"), at("run"), {}});
              }),
              "does not fit its config.json");
  EXPECT_FALSE(fs::exists(at("run")));
}

TEST_F(Refused, RunsWithoutACheckpointAndUnknownTypes) {
  import_model({golden_folder("llama"), at("run"), {}});
  EXPECT_SAYS(message_of([&] {
                export_model({at("run"), at("out"), "f8", 1 << 30, false});
              }),
              "needed bf16, f16 or f32");
  fs::remove_all(at("run/checkpoints"));
  EXPECT_SAYS(message_of([&] {
                export_model({at("run"), at("out"), "", 1 << 30, false});
              }),
              "holds no checkpoint");
  EXPECT_FALSE(fs::exists(at("out")));
}

TEST_F(Refused, ASourceThatDescribesAnotherModel) {
  import_model({golden_folder("qwen3_moe"), at("run"), {"model.rope_theta=777.0"}});
  EXPECT_SAYS(message_of([&] {
                export_model({at("run"), at("out"), "", 1 << 30, false});
              }),
              "model.rope_theta");
}

TEST_F(Refused, OtherDataAfterTheFirstStep) {
  import_model({golden_folder("llama"), at("run"), {}});
  train_run(at("run"), short_training(write_dataset(folder_.path(), 128), 2));
  fs::create_directories(at("other"));
  EXPECT_SAYS(message_of([&] { train_run(at("run"), short_training(write_dataset(at("other"), 100), 3)); }),
              "was saved while training on");
}

std::string scratch_config(const std::string& moe, const std::string& model = "") {
  return "[model]\nvocab_size = 128\nhidden_size = 32\nnum_layers = 2\nnum_heads = 4\nnum_kv_heads = 2\n" +
         model + "[moe]\n" + moe;
}

TEST(Describe, ChoosesAFamilyThatFits) {
  const auto family_of = [](const std::string& text) {
    return std::string(describe(config::resolve(config::parse(text))).model.family->model_type);
  };
  const std::string experts = "num_experts = 8\nffn_hidden_size = 24\n";
  EXPECT_EQ(family_of(scratch_config("", "ffn_hidden_size = 48\n")), "llama");
  EXPECT_EQ(family_of(scratch_config("", "ffn_hidden_size = 48\nqk_norm = true\n")), "qwen3");
  EXPECT_EQ(family_of(scratch_config(experts)), "mixtral");
  EXPECT_EQ(family_of(scratch_config(experts, "qk_norm = true\n")), "qwen3_moe");
  EXPECT_EQ(
      family_of(scratch_config(experts, "qk_norm = true\nleading_dense_layers = 1\nffn_hidden_size = 40\n")),
      "qwen3_moe");
  EXPECT_EQ(
      family_of(scratch_config(experts + "pre_softmax = true\nrenormalize = false\n", "qk_norm = true\n")),
      "qwen3_moe");
  EXPECT_EQ(family_of(scratch_config(experts, "qk_norm = true\nqk_norm_full = true\n")), "olmoe");
  EXPECT_EQ(family_of(scratch_config(experts + "shared_ffn_hidden_size = 16\nshared_gate = true\n",
                                     "qkv_bias = true\n")),
            "qwen2_moe");
}

TEST(Describe, SaysWhatCannotBeExpressed) {
  const auto complaint = [](const std::string& moe) {
    return message_of([&] {
      describe(
          config::resolve(config::parse(scratch_config("num_experts = 8\nffn_hidden_size = 24\n" + moe))));
    });
  };
  EXPECT_SAYS(complaint("score = \"sigmoid\"\n"), "moe.score: \"softmax\" -> \"sigmoid\"");
  EXPECT_SAYS(complaint("score = \"sigmoid\"\nload_balancing = [\"bias\"]\naux_coef = []\n"),
              "moe.load_balancing: has no \"bias\"");
  EXPECT_SAYS(complaint("scaling_factor = 2.5\nscore = \"sigmoid\"\n"), "moe.scaling_factor");
}

TEST(Describe, ScratchRunExports) {
  TemporaryFolder folder;
  const std::string run = folder.path() + "/run", data = write_dataset(folder.path(), 128);
  fs::create_directories(run);
  std::ofstream(run + "/config.toml")
      << scratch_config("num_experts = 8\nffn_hidden_size = 24\n", "qk_norm = true\n") +
             "[log]\nrun_dir = \"" + run + "\"\n";
  train_run(run, short_training(data, 2));
  const ExportResult result = export_model({run, folder.path() + "/out", "", int64_t{1} << 30, true});
  EXPECT_EQ(result.model_type, "qwen3_moe");
  EXPECT_EQ(result.dtype, "f32");
  import_model({folder.path() + "/out", folder.path() + "/again", {}});
}

}  // namespace
}  // namespace pleat::exchange::testing
