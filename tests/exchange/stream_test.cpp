// Models go through import and export tensor by tensor: memory does not grow with their depth, types stay, zeros take no
// room, a stopped import goes on, and what a run begins with is what it was when all of it lay in memory.
#include <gtest/gtest.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>

#include "base/error.h"
#include "base/posix_vfs.h"
#include "base/rng.h"
#include "checkpoint/save.h"
#include "config/run_files.h"
#include "exchange/exchange_support.h"
#include "exchange/export.h"
#include "exchange/import.h"
#include "exchange/weights.h"
#include "model/parameters.h"
#include "safetensors/convert.h"
#include "train/restore_state.h"
#include "train/trainer.h"

namespace pleat::exchange::testing {
namespace {

namespace fs = std::filesystem;

class Stream : public ::testing::Test {
 protected:
  std::string at(const std::string& name) const { return folder_.at(name); }
  // A golden model with its weights as `dtype`.
  std::string golden_as(const std::string& family, const std::string& dtype) const {
    import_model({golden_folder(family), at(family + "-whole"), {}});
    export_model({at(family + "-whole"), at(family + "-" + dtype), dtype, int64_t{1} << 30, true});
    return at(family + "-" + dtype);
  }
  void write(const std::string& run, const std::string& out,
             const checkpoint::StreamWatch& watch = {}) const {
    ExportOptions o;
    o.run_folder = run;
    o.model_folder = at(out);
    o.watch = watch;
    export_model(o);
  }
  checkpoint::Loaded step_0(const std::string& run) {
    return checkpoint::open_step(vfs_, at(run) + "/checkpoints", 0);
  }
  std::string state_after_training(const std::string& run) const {
    train_run(at(run), {"data.train=\"" + data_ + "\"", "train.steps=2", "train.seq_len=24",
                        "train.micro_batch=2", "device.threads=1", "log.tensorboard=false"});
    return nlohmann::json::parse(read_file(at(run) + "/summary.json")).at("state_sha256");
  }

  TemporaryFolder folder_;
  base::PosixVfs vfs_;
  std::string data_ = write_dataset(folder_.path(), 30);
};

// What an import wrote when it held the whole model: every weight in the run's type, and zeros as they are.
void write_from_memory(const std::string& model_folder, const std::string& run,
                       const checkpoint::Loaded& like) {
  const config::Config c = config::resolve(config::read_unchecked(run, {}));
  family::FamilyConfig model = family::read_model_config(model_folder);
  model.config = c;
  std::vector<std::vector<std::byte>> owned;
  std::vector<checkpoint::Target> weights;
  checkpoint::StateView view{0, {}, like.manifest().integers, like.manifest().reals, like.manifest().texts};
  for (const checkpoint::TensorEntry& t : like.manifest().tensors) {
    const tensor::Dtype dtype = t.dtype == tensor::Dtype::BF16 ? tensor::Dtype::F32 : t.dtype;
    owned.emplace_back(static_cast<size_t>(checkpoint::num_bytes_of(dtype, t.shape, t.name)));
    if (!t.zero) weights.push_back({t.name, dtype, t.shape, owned.back()});
    view.tensors.push_back({t.name, dtype, t.shape, owned.back()});
  }
  load_weights(safetensors::ModelFolder::open(model_folder), model, model::make_parameters(c), weights);
  fs::remove_all(run + "/checkpoints");
  base::PosixVfs vfs;
  checkpoint::save(vfs, run + "/checkpoints", view, {});
}

class StreamedFamily : public Stream, public ::testing::WithParamInterface<std::string> {};

// The same run from an import that streamed and from one that held everything, from weights in bf16 and in f32.
TEST_P(StreamedFamily, TheRunIsTheSame) {
  for (const std::string dtype : {"bf16", "f32"}) {
    const std::string source = golden_as(GetParam(), dtype);
    import_model({source, at("streamed-" + dtype), {}});
    import_model({source, at("held-" + dtype), {}});
    write_from_memory(source, at("held-" + dtype), step_0("held-" + dtype));
    const checkpoint::Loaded streamed = step_0("streamed-" + dtype), held = step_0("held-" + dtype);
    EXPECT_EQ(streamed.manifest().version, checkpoint::kStreamedVersion);
    EXPECT_EQ(held.manifest().version, checkpoint::kFormatVersion);
    int64_t weight_bytes = 0;
    for (const auto& [name, tensor] : tensors_of(source))
      weight_bytes += static_cast<int64_t>(tensor.second.size());
    EXPECT_EQ(streamed.manifest().stream_length(), weight_bytes) << "native types, and no zeros";
    EXPECT_GT(2 * held.manifest().stream_length(), 5 * weight_bytes);
    if (dtype == "f32") {
      EXPECT_EQ(streamed.state_sha256(), held.state_sha256());
    }
    EXPECT_EQ(state_after_training("streamed-" + dtype), state_after_training("held-" + dtype));
    for (const char* made : {"-whole", "-bf16", "-f32"}) fs::remove_all(at(GetParam() + made));
  }
}

INSTANTIATE_TEST_SUITE_P(Families, StreamedFamily, ::testing::Values("qwen3_moe", "deepseek_v3", "gpt_oss"),
                         [](const auto& tested) { return tested.param; });

// A run in bf16 keeps weights as the GPU has them, and beside them what they leave: nothing of bf16 weights.
TEST_F(Stream, NarrowRunsKeepWeightsAndRests) {
  const std::vector<std::string> narrow = {"model.dtype=bfloat16", "device.kind=cuda",
                                           "optimizer.grad_dtype=bfloat16"};
  for (const std::string dtype : {"bf16", "f32"}) {
    const std::string source = golden_as("qwen3_moe", dtype);
    import_model({source, at("narrow-" + dtype), narrow});
    const checkpoint::Loaded loaded = step_0("narrow-" + dtype);
    loaded.verify();
    import_model({source, at("wide-" + dtype), {}});
    const checkpoint::Loaded wide = step_0("wide-" + dtype);
    int64_t num_rests = 0;
    for (const checkpoint::TensorEntry& t : loaded.manifest().tensors) {
      if (!t.name.ends_with(".rest")) continue;
      ++num_rests;
      EXPECT_EQ(t.zero, dtype == "bf16") << t.name;
      const std::string weight = t.name.substr(0, t.name.size() - 5);
      EXPECT_EQ(loaded.tensor(weight).dtype, tensor::Dtype::BF16);
      // Both together are the weight.
      std::vector<std::byte> joined(static_cast<size_t>(t.length) * 2), meant(joined.size());
      const std::vector<checkpoint::Expected> run = {{weight, tensor::Dtype::F32, t.shape}};
      for (auto& [from, out] : {std::pair(&loaded, &joined), std::pair(&wide, &meant)}) {
        auto restorer = train::PartRestorer::of_weights(*from, run);
        const checkpoint::Part all{0, 0, static_cast<int64_t>(out->size())};
        restorer.read(weight, tensor::Dtype::F32, {&all, 1}, *out);
      }
      EXPECT_TRUE(joined == meant) << weight;
    }
    EXPECT_GT(num_rests, 10);
    fs::remove_all(at("qwen3_moe-whole"));
  }
}

checkpoint::StreamWatch stop_at(int64_t bytes, int64_t* found = nullptr) {
  checkpoint::StreamWatch watch;
  auto seen = std::make_shared<int64_t>(0);
  watch.progress = [seen, found](const checkpoint::StreamProgress& p) {
    if (p.phase == checkpoint::StreamProgress::Write) *seen = p.done;
    if (found) *found = std::max(*found, p.found);
  };
  watch.stop = [seen, bytes] { return bytes >= 0 && *seen >= bytes; };
  return watch;
}

std::map<std::string, std::string> files_below(const std::string& folder) {
  std::map<std::string, std::string> out;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file()) out[fs::relative(entry.path(), folder)] = read_file(entry.path());
  return out;
}

TEST_F(Stream, AStoppedImportIsNoRunAndGoesOn) {
  const std::string source = golden_folder("qwen3_moe");
  const int64_t shard = 20000;
  import_model({source, at("in-one"), {}, shard});
  const auto wanted = files_below(at("in-one") + "/checkpoints");
  const int64_t all = step_0("in-one").manifest().stream_length();
  ASSERT_GT(all, 4 * shard);
  for (const int64_t stop : {int64_t{0}, shard / 2, 2 * shard + 5, all}) {
    const std::string run = at("run");
    EXPECT_THROW(import_model({source, run, {}, shard, stop_at(stop)}), base::Error);
    EXPECT_FALSE(fs::exists(run + "/config.toml") || fs::exists(run + "/asked.toml"));
    EXPECT_FALSE(fs::exists(run + "/checkpoints/step-0"));
    EXPECT_TRUE(fs::exists(run + "/IMPORT"));
    EXPECT_NE(message_of([&] { write(run, "out"); }), "");
    EXPECT_NE(message_of([&] {
                import_model({golden_folder("olmoe"), run, {}});
              }).find("holds an import of '"),
              std::string::npos);
    int64_t found = 0;
    import_model({source, run, {}, shard, stop_at(-1, &found)});
    EXPECT_EQ(found, std::min(stop / shard * shard + (stop == all ? all % shard : 0), all));
    EXPECT_EQ(files_below(run + "/checkpoints"), wanted);
    EXPECT_FALSE(fs::exists(run + "/IMPORT"));
    EXPECT_NE(message_of([&] { import_model({source, run, {}}); }).find("is not empty"), std::string::npos);
    fs::remove_all(run);
  }
}

TEST_F(Stream, AChangedSourceBeginsAnew) {
  fs::copy(golden_folder("qwen3_moe"), at("source"));
  EXPECT_THROW(import_model({at("source"), at("run"), {}, 20000, stop_at(70000)}), base::Error);
  fs::last_write_time(at("source/model.safetensors"),
                      fs::file_time_type::clock::now() + std::chrono::seconds(2));
  int64_t found = 0;
  import_model({at("source"), at("run"), {}, 20000, stop_at(-1, &found)});
  EXPECT_EQ(found, 0);
  step_0("run").verify();
}

// Files with other numbers, or the same with another meaning, by the time all is read.
TEST_F(Stream, WeightsThatChangeWhileTheyAreReadLeaveNothing) {
  fs::copy(golden_folder("qwen3_moe"), at("source"));
  checkpoint::StreamWatch watch;
  watch.progress = [&](const checkpoint::StreamProgress& p) {
    if (p.phase == checkpoint::StreamProgress::Write)
      fs::last_write_time(at("source/model.safetensors"),
                          fs::file_time_type::clock::now() + std::chrono::seconds(2));
  };
  const std::string said = message_of([&] { import_model({at("source"), at("run"), {}, 20000, watch}); });
  EXPECT_NE(said.find("changed while they were read"), std::string::npos) << said;
  EXPECT_FALSE(fs::exists(at("run")));
}

TEST_F(Stream, AnotherMeaningOfCodesBeginsAnew) {
  const std::string golden = golden_folder("quantized/qwen3_moe_fp8");
  fs::copy(golden, at("source"));
  EXPECT_THROW(import_model({at("source"), at("run"), {}, 20000, stop_at(70000)}), base::Error);
  std::string config = read_file(at("source/config.json"));
  const std::regex block("(\"weight_block_size\"\\s*:\\s*\\[\\s*)128");
  ASSERT_TRUE(std::regex_search(config, block)) << config;
  config = std::regex_replace(config, block,
                              "$01"
                              "127");
  pleat::testing::write_file(at("source/config.json"), config);
  int64_t found = 0;
  import_model({at("source"), at("run"), {}, 20000, stop_at(-1, &found)});
  EXPECT_EQ(found, 0);
  import_model({at("source"), at("whole"), {}, 20000});
  EXPECT_EQ(files_below(at("run/checkpoints")), files_below(at("whole/checkpoints")));
}

// What lies there already would be taken for newer than the import.
TEST_F(Stream, CheckpointsOfAnotherRunAreNotJoined) {
  const std::string source = golden_folder("qwen3_moe"), set = "checkpoint.dir=" + at("shared");
  import_model({source, at("first"), {}});
  fs::copy(at("first/checkpoints"), at("shared"), fs::copy_options::recursive);
  fs::rename(at("shared/step-0"), at("shared/step-2"));
  std::string said = message_of([&] { import_model({source, at("second"), {set}}); });
  EXPECT_NE(said.find("has checkpoints already"), std::string::npos) << said;
  EXPECT_FALSE(fs::exists(at("second")));
  // Nor those of an import that was cut short.
  fs::remove_all(at("shared"));
  EXPECT_THROW(import_model({source, at("second"), {set}, 20000, stop_at(70000)}), base::Error);
  said = message_of([&] { import_model({golden_folder("olmoe"), at("third"), {set}}); });
  EXPECT_NE(said.find("belong to the run in"), std::string::npos) << said;
  int64_t found = 0;
  import_model({source, at("second"), {set}, 20000, stop_at(-1, &found)});
  EXPECT_GT(found, 0);
}

// Killed between the last file of the run and the end of the mark.
TEST_F(Stream, AnImportThatWasAllButDoneIsDone) {
  const std::string source = golden_folder("qwen3_moe");
  import_model({source, at("run"), {}});
  const auto whole = files_below(at("run"));
  pleat::testing::write_file(at("run/IMPORT"), fs::canonical(source).string() + "\n");
  EXPECT_GT(import_model({source, at("run"), {}}).num_bytes, 0);
  EXPECT_EQ(files_below(at("run")), whole);
}

TEST_F(Stream, TwoImportsAtATimeAreKeptApart) {
  const std::string source = golden_folder("qwen3_moe");
  std::string said;
  checkpoint::StreamWatch watch;
  watch.progress = [&](const checkpoint::StreamProgress&) {
    if (said.empty()) said = message_of([&] { import_model({source, at("run"), {}, 20000}); });
  };
  import_model({source, at("run"), {}, 20000, watch});
  EXPECT_NE(said.find("another import is at work in"), std::string::npos) << said;
  step_0("run").verify();
}

TEST_F(Stream, WeightsThatAreNotFiniteLeaveNothing) {
  fs::copy(golden_folder("llama"), at("source"));
  const safetensors::ModelFolder folder = safetensors::ModelFolder::open(at("source"));
  const safetensors::TensorInfo& info = folder.at("model.layers.1.mlp.up_proj.weight");
  const int64_t data =
      static_cast<int64_t>(fs::file_size(at("source/model.safetensors"))) -
      std::max_element(folder.files()[0].tensors().begin(), folder.files()[0].tensors().end(),
                       [](const auto& a, const auto& b) { return a.end < b.end; })
          ->end;
  std::fstream file(at("source/model.safetensors"), std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(data + info.begin + 4 * 7);
  const uint32_t nan = 0x7FC00000;
  file.write(reinterpret_cast<const char*>(&nan), sizeof nan);
  file.close();
  const std::string said = message_of([&] { import_model({at("source"), at("run"), {}}); });
  EXPECT_NE(said.find("'model.layers.1.mlp.up_proj.weight' holds nan at [0, 7] (1 of its"), std::string::npos)
      << said;
  EXPECT_FALSE(fs::exists(at("run")));
}

TEST_F(Stream, WhatAKilledExportLeftGoes) {
  import_model({golden_folder("llama"), at("run"), {}});
  fs::create_directories(at("out"));
  std::ofstream(at("out/.pleat-1073741824-3.tmp")) << "half";
  std::ofstream(at("out/.pleat-1-3.tmp")) << "half";
  EXPECT_NE(message_of([&] { write(at("run"), "out"); }).find("process 1 is writing into"),
            std::string::npos);
  fs::remove(at("out/.pleat-1-3.tmp"));
  EXPECT_THROW(write(at("run"), "out", stop_at(1000)), base::Error);
  EXPECT_TRUE(fs::is_empty(at("out")));
  write(at("run"), "out");
  EXPECT_EQ(tensors_of(at("out")), tensors_of(golden_folder("llama")));
}

#ifndef PLEAT_SANITIZED  // its own memory grows
// Peak of the resident memory since the last call of reset_peak, in bytes.
void reset_peak() {
  ::malloc_trim(0);
  std::ofstream("/proc/self/clear_refs") << "5";
}
int64_t memory(const char* key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(key)) return std::stoll(line.substr(std::string(key).size())) * 1024;
  return -1;
}

// qwen3_moe with experts of 3 x 4 MiB in bf16 and nothing else of weight.
void write_deep(const std::string& folder, int64_t layers) {
  nlohmann::json config = nlohmann::json::parse(read_file(golden_folder("qwen3_moe") + "/config.json"));
  config["num_hidden_layers"] = layers;
  config["hidden_size"] = 1024;
  config["moe_intermediate_size"] = 2048;
  config["num_experts"] = 2;
  config["num_experts_per_tok"] = 1;
  config["dtype"] = "bfloat16";
  config.erase("layer_types");
  fs::create_directories(folder);
  std::ofstream(folder + "/config.json") << config.dump();
  family::FamilyConfig model = family::read_model_config(folder);
  model.config = config::resolve(model.config);
  const auto table = model::make_parameters(model.config);
  std::vector<safetensors::TensorSpec> specs;
  for (const NamedTensor& t :
       tensors_on_disk(model, table, safetensors::ElementType::BF16, family::Naming::Disk))
    specs.push_back(t.spec);
  safetensors::FolderWriter writer(folder, specs, int64_t{20} << 20);
  uint32_t state = 1;
  for (const safetensors::TensorSpec& spec : specs) {
    std::vector<uint16_t> numbers(static_cast<size_t>(safetensors::num_bytes_of(spec, folder)) / 2);
    for (uint16_t& n : numbers) {
      state = state * 1664525u + 1013904223u;
      n = static_cast<uint16_t>(0x3C00 | (state >> 17 & 0x83FF));
    }
    writer.append(spec.name, std::as_bytes(std::span(numbers)));
  }
  writer.finish();
}

TEST_F(Stream, MemoryDoesNotGrowWithDepth) {
  constexpr int64_t kLayerBytes = int64_t{24} << 20;
  std::vector<int64_t> imported, exported;
  for (const int64_t layers : {1, 5}) {
    const std::string name = "deep-" + std::to_string(layers);
    write_deep(at(name), layers);
    reset_peak();
    int64_t before = memory("VmRSS:");
    if (memory("VmHWM:") > before + kLayerBytes) GTEST_SKIP() << "the system does not reset the peak";
    import_model({at(name), at(name + "-run"), {}});
    imported.push_back(memory("VmHWM:") - before);
    reset_peak();
    before = memory("VmRSS:");
    export_model({at(name + "-run"), at(name + "-out"), "", int64_t{50} << 20, true});
    exported.push_back(memory("VmHWM:") - before);
    EXPECT_EQ(tensors_of(at(name)), tensors_of(at(name + "-out")));
    EXPECT_GT(fs::exists(at(name + "-out/model.safetensors.index.json")), layers > 2 ? 0 : -1);
  }
  for (const auto& peaks : {imported, exported}) {
    EXPECT_LT(peaks[0], 3 * kLayerBytes);
    EXPECT_LT(peaks[1], peaks[0] + kLayerBytes / 2)
        << "four layers more have " << 4 * kLayerBytes << " bytes";
  }
}
#endif

}  // namespace
}  // namespace pleat::exchange::testing
