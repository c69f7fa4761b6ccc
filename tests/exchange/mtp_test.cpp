// DeepSeek-V3 checkpoints that carry layers of multi-token prediction: read, trained, written back, left out.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "exchange/exchange_support.h"
#include "exchange/export.h"
#include "exchange/import.h"
#include "exchange/probe.h"
#include "report/jsonl_log.h"
#include "safetensors/file.h"
#include "safetensors/model_folder.h"
#include "safetensors/writer.h"

namespace pleat::exchange::testing {
namespace {

namespace fs = std::filesystem;
using safetensors::ElementType;

struct Numbers {
  std::vector<int64_t> shape;
  std::vector<float> numbers;
};
using NumbersByName = std::map<std::string, Numbers>;

NumbersByName golden_tensors() {
  const safetensors::ModelFolder folder = safetensors::ModelFolder::open(golden_folder("deepseek_v3"));
  NumbersByName out;
  for (const std::string_view name : folder.names()) {
    const safetensors::TensorInfo& info = folder.at(name);
    Numbers& t = out[std::string(name)];
    t.shape = info.shape;
    t.numbers.resize(static_cast<size_t>(info.num_elements()));
    folder.read(name, std::as_writable_bytes(std::span(t.numbers)));
  }
  return out;
}

Numbers noise(std::vector<int64_t> shape, uint32_t state) {
  Numbers t{std::move(shape), {}};
  int64_t n = 1;
  for (int64_t d : t.shape) n *= d;
  for (int64_t i = 0; i < n; ++i) {
    state = state * 1664525u + 1013904223u;
    t.numbers.push_back(static_cast<float>(state >> 8) / (1 << 24) - 0.5f);
  }
  return t;
}

// The golden model of three layers with `num_layers` more behind it, as published files hold them.
NumbersByName with_mtp(int num_layers) {
  NumbersByName all = golden_tensors(), out = all;
  for (int k = 0; k < num_layers; ++k) {
    const std::string at = fmt::format("model.layers.{}.", 3 + k);
    for (const auto& [name, tensor] : all)
      if (name.starts_with("model.layers.2."))
        out[at + name.substr(15)] = noise(tensor.shape, 7u + static_cast<uint32_t>(out.size()));
    out[at + "enorm.weight"] = noise({32}, 1u);
    out[at + "hnorm.weight"] = noise({32}, 2u);
    out[at + "eh_proj.weight"] = noise({32, 64}, 3u);
    out[at + "shared_head.norm.weight"] = noise({32}, 4u);
    out[at + "shared_head.head.weight"] = all.at("lm_head.weight");
    out[at + "embed_tokens.weight"] = all.at("model.embed_tokens.weight");
  }
  return out;
}

void write_model(const std::string& folder, const NumbersByName& tensors, int declared) {
  fs::create_directories(folder);
  std::string json = read_file(golden_folder("deepseek_v3") + "/config.json");
  const std::string key = "\"num_nextn_predict_layers\": 1";
  json.replace(json.find(key), key.size(), fmt::format("\"num_nextn_predict_layers\": {}", declared));
  std::ofstream(folder + "/config.json") << json;
  std::vector<safetensors::TensorSpec> specs;
  for (const auto& [name, t] : tensors) specs.push_back({name, ElementType::F32, t.shape});
  safetensors::Writer writer(folder + "/model.safetensors", specs);
  for (const auto& [name, t] : tensors) writer.append(name, std::as_bytes(std::span(t.numbers)));
  writer.finish();
}

struct MtpExchange : ::testing::Test {
  std::string at(const std::string& name) const { return folder_.path() + "/" + name; }
  ExportResult write(const std::string& run, const std::string& to, bool without = false) {
    return export_model({at(run), at(to), "", int64_t{1} << 30, true, without});
  }
  std::vector<std::string> training(int steps) {
    return {"data.train=\"" + write_dataset(folder_.path(), 128) + "\"",
            "train.steps=" + std::to_string(steps),
            "train.seq_len=24",
            "train.micro_batch=2",
            "device.threads=2",
            "log.tensorboard=false"};
  }
  std::string complaint(const NumbersByName& tensors, int declared,
                        const std::vector<std::string>& sets = {}) {
    fs::remove_all(at("bad"));
    write_model(at("bad"), tensors, declared);
    return message_of([&] { import_model({at("bad"), at("bad-run"), sets}); });
  }
  TemporaryFolder folder_;
};

#define EXPECT_SAYS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

}  // namespace

TEST_F(MtpExchange, RoundTripIsBitwise) {
  for (int layers : {1, 2}) {
    const std::string n = std::to_string(layers);
    write_model(at("model" + n), with_mtp(layers), layers);
    const ImportResult r = import_model({at("model" + n), at("run" + n), {}});
    EXPECT_TRUE(r.notes.empty()) << fmt::format("{}", fmt::join(r.notes, "\n"));
    write("run" + n, "out" + n);
    EXPECT_EQ(tensors_of(at("model" + n)), tensors_of(at("out" + n)));
  }
}

TEST_F(MtpExchange, CopiesMayBeAbsentAndAreWritten) {
  NumbersByName tensors = with_mtp(1);
  tensors.erase("model.layers.3.embed_tokens.weight");
  tensors.erase("model.layers.3.shared_head.head.weight");
  write_model(at("model"), tensors, 1);
  import_model({at("model"), at("run"), {}});
  write("run", "out");
  write_model(at("whole"), with_mtp(1), 1);
  EXPECT_EQ(tensors_of(at("out")), tensors_of(at("whole")));
}

TEST_F(MtpExchange, TrainsThemAndWritesThemBack) {
  write_model(at("model"), with_mtp(1), 1);
  import_model({at("model"), at("run"), {"moe.bias_update_rate=0.001"}});
  train_run(at("run"), training(3));
  const auto log = report::read_log(at("run/metrics.jsonl"));
  ASSERT_EQ(log.size(), 3u);
  for (const report::StepRecord& r : log) {
    ASSERT_EQ(r.mtp_loss.size(), 1u);
    EXPECT_GT(r.mtp_loss[0], 1);
    EXPECT_LT(r.mtp_loss[0], 20);
  }
  EXPECT_NE(log[0].mtp_loss[0], log[2].mtp_loss[0]);
  write("run", "out");
  const auto before = tensors_of(at("model")), after = tensors_of(at("out"));
  ASSERT_EQ(before.size(), after.size());
  for (const auto& [name, tensor] : before)
    EXPECT_NE(after.at(name).second, tensor.second) << name << " did not change";
  EXPECT_EQ(after.at("model.layers.3.embed_tokens.weight"), after.at("model.embed_tokens.weight"));
  EXPECT_EQ(after.at("model.layers.3.shared_head.head.weight"), after.at("lm_head.weight"));

  write("run", "plain", true);
  const auto plain = tensors_of(at("plain"));
  EXPECT_EQ(plain.size(), golden_tensors().size());
  for (const auto& [name, tensor] : plain) EXPECT_EQ(after.at(name), tensor) << name;
  import_model({at("plain"), at("run-plain"), {}});
}

TEST_F(MtpExchange, LeavesThemOutWhenAsked) {
  write_model(at("model"), with_mtp(1), 1);
  const ImportResult r = import_model({at("model"), at("run"), {"model.num_mtp_layers=0"}});
  ASSERT_EQ(r.notes.size(), 1u);
  EXPECT_SAYS(r.notes[0], "tensors of multi-token prediction are not used");
  write("run", "out");
  EXPECT_EQ(tensors_of(at("out")), tensors_of(golden_folder("deepseek_v3")));
  EXPECT_SAYS(message_of([&] { write("run", "none", true); }), "no layers of multi-token prediction");
}

TEST_F(MtpExchange, AConfigThatNamesWhatIsNotThere) {
  const ImportResult r = import_model({golden_folder("deepseek_v3"), at("run"), {}});
  ASSERT_EQ(r.notes.size(), 1u);
  EXPECT_SAYS(r.notes[0], "the folder holds none of them");
}

TEST_F(MtpExchange, RefusesWhatDoesNotFit) {
  NumbersByName tensors = with_mtp(1);
  tensors.at("model.layers.3.embed_tokens.weight").numbers[17] += 1;
  EXPECT_SAYS(complaint(tensors, 1),
              "'model.layers.3.embed_tokens.weight' is not 'model.embed_tokens.weight'");
  tensors = with_mtp(1);
  tensors.at("model.layers.3.shared_head.head.weight").numbers[5] = 3;
  EXPECT_SAYS(complaint(tensors, 1), "'model.layers.3.shared_head.head.weight' is not 'lm_head.weight'");
  tensors = with_mtp(1);
  tensors.erase("model.layers.3.eh_proj.weight");
  EXPECT_SAYS(complaint(tensors, 1), "'model.layers.3.eh_proj.weight' is missing");
  tensors = with_mtp(1);
  tensors.erase("model.layers.3.mlp.gate.e_score_correction_bias");
  EXPECT_SAYS(complaint(tensors, 1), "e_score_correction_bias' is missing");
  EXPECT_SAYS(complaint(with_mtp(1), 0), "has no place in this model");
  EXPECT_SAYS(complaint(with_mtp(1), 1, {"model.num_mtp_layers=2"}),
              "'model.layers.4.enorm.weight' is missing");
  EXPECT_FALSE(fs::exists(at("bad-run")));
}

TEST_F(MtpExchange, OtherFamiliesHaveNoNamesForThem) {
  EXPECT_SAYS(message_of([&] {
                import_model({golden_folder("mixtral"), at("run"), {"model.num_mtp_layers=1"}});
              }),
              "family mixtral has no layers of multi-token prediction");
  fs::create_directories(at("run"));
  std::ofstream(at("run/config.toml"))
      << "[model]\nvocab_size = 128\nhidden_size = 32\nnum_layers = 2\nnum_heads = 4\nffn_hidden_size = 48\n"
         "num_mtp_layers = 1\n[log]\nrun_dir = \"" +
             at("run") + "\"\n";
  train_run(at("run"), training(2));
  const std::string complaint = message_of([&] { write("run", "out"); });
  EXPECT_SAYS(complaint, "model.num_mtp_layers: 0 -> 1");
  EXPECT_SAYS(complaint, "--without-mtp");
  EXPECT_EQ(write("run", "out", true).model_type, "llama");
}

TEST_F(MtpExchange, ProbeIsBlindToThemUnlessAsked) {
  write_model(at("model"), with_mtp(1), 1);
  ProbeOptions o;
  o.tokens_path = golden_folder("deepseek_v3") + "/golden.safetensors";
  o.gradients = true;
  o.threads = 2;
  const auto probed = [&](const std::string& model, const std::string& to, std::vector<std::string> sets) {
    o.model_folder = model, o.out_path = at(to), o.sets = std::move(sets);
    probe(o);
    return read_file(o.out_path);
  };
  EXPECT_EQ(probed(at("model"), "a", {}), probed(golden_folder("deepseek_v3"), "b", {}));
  probed(at("model"), "c", {"model.num_mtp_layers=1"});
  const safetensors::File file = safetensors::File::open(at("c"));
  EXPECT_TRUE(file.find("mtp_loss.1"));
  EXPECT_EQ(file.at("grad.model.layers.3.eh_proj.weight").shape, (std::vector<int64_t>{32, 64}));
  EXPECT_FALSE(file.find("grad.model.layers.3.embed_tokens.weight"));
}

}  // namespace pleat::exchange::testing
