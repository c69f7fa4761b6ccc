// Models with quantized weights as they are published (tests/golden/quantized): numbers and logits of another
// implementation, one model however it is read, and what becomes of it: converted, imported, exported, upcycled.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/hash.h"
#include "base/posix_vfs.h"
#include "checkpoint/choose.h"
#include "config/run_files.h"
#include "exchange/convert.h"
#include "exchange/exchange_support.h"
#include "exchange/export.h"
#include "exchange/golden_support.h"
#include "exchange/import.h"
#include "exchange/initial_weights.h"
#include "exchange/model_source.h"
#include "exchange/probe.h"
#include "exchange/upcycle.h"
#include "infer/inference.h"
#include "safetensors/convert.h"
#include "safetensors/model_folder.h"
#include "safetensors/writer.h"
#include "tensor/few_bits.h"

namespace pleat::exchange::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using safetensors::ElementType;
using safetensors::ModelFolder;
using Bytes = std::vector<std::byte>;

std::string quantized_folder(const std::string& name) { return golden_folder("quantized/" + name); }

void expect_says(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

bool holds_note(const std::vector<std::string>& notes, const std::string& part) {
  return std::any_of(notes.begin(), notes.end(),
                     [&](const std::string& note) { return note.find(part) != std::string::npos; });
}

Bytes as_type(const ModelFolder& folder, std::string_view name, ElementType type) {
  Bytes raw(static_cast<size_t>(folder.at(name).num_bytes()));
  folder.read(name, raw);
  std::vector<float> numbers(static_cast<size_t>(folder.at(name).num_elements()));
  safetensors::decode(folder.at(name).type, raw, std::span(numbers));
  Bytes out(numbers.size() * static_cast<size_t>(safetensors::size_of(type)));
  safetensors::encode(type, std::span<const float>(numbers), out);
  return out;
}

class QuantizedModel : public ::testing::TestWithParam<const char*> {
 protected:
  std::string at(const std::string& name) const { return folder_.path() + "/" + name; }
  std::string model() const { return quantized_folder(GetParam()); }
  bool is_fp8() const { return std::string(GetParam()).ends_with("_fp8"); }
  std::string stored() const {
    return is_fp8()
               ? "weights are stored as fp8 with a scale for each 128 x 128 weights, and dequantized as they "
                 "are read"
               : "weights are stored as mxfp4, and dequantized as they are read";
  }
  ConvertResult convert(const std::string& to, const std::string& dtype = "", int64_t shard = 1 << 30) const {
    return convert_model({model(), at(to), dtype, shard, {}});
  }
  ProbeResult probe_of(const std::string& folder, const std::string& to) const {
    ProbeOptions o;
    o.model_folder = folder;
    o.tokens_path = model() + "/golden.safetensors";
    o.out_path = at(to);
    o.gradients = true;
    o.threads = 2;
    return probe(o);
  }
  TemporaryFolder folder_;
};

TEST_P(QuantizedModel, NumbersAreTheOtherImplementations) {
  const json digests = json::parse(read_file(model() + "/dequantized.json"));
  const ModelFolder folder = ModelFolder::open(model());
  EXPECT_EQ(folder.num_quantized(), static_cast<int64_t>(digests.size()));
  EXPECT_TRUE(folder.warnings().empty()) << folder.warnings().front();
  for (const auto& [name, digest] : digests.items()) {
    EXPECT_TRUE(folder.is_quantized(name));
    EXPECT_EQ(base::to_hex(base::sha256(as_type(folder, name, ElementType::F32))), digest) << name;
  }
}

TEST_P(QuantizedModel, LogitsAreTheOtherImplementations) {
  EXPECT_EQ(probe_of(model(), "probe.safetensors").note, stored());
  const auto ours = safetensors::File::open(at("probe.safetensors"));
  const auto theirs = safetensors::File::open(model() + "/golden.safetensors");
  EXPECT_LT(relative_difference(numbers(ours, "logits"), numbers(theirs, "logits")), 1e-5);
}

TEST_P(QuantizedModel, ConvertedItIsTheSameModel) {
  const ConvertResult result = convert("wide", "float32");
  const json digests = json::parse(read_file(model() + "/dequantized.json"));
  EXPECT_EQ(result.num_dequantized, static_cast<int64_t>(digests.size()));
  EXPECT_EQ(result.dtype, "float32");
  EXPECT_TRUE(holds_note(result.notes, "not copied: 'dequantized.json', 'golden.safetensors'"));
  const ModelFolder source = ModelFolder::open(model()), wide = ModelFolder::open(at("wide"));
  EXPECT_EQ(wide.names(), source.names());
  EXPECT_EQ(wide.total_bytes(), result.bytes_written);
  EXPECT_EQ(wide.num_quantized(), 0);
  for (const std::string_view name : source.names()) {
    const bool decoded = digests.contains(name);
    EXPECT_EQ(wide.at(name).type, decoded ? ElementType::F32 : source.at(name).type) << name;
    EXPECT_EQ(wide.at(name).shape, source.at(name).shape) << name;
    EXPECT_EQ(as_type(wide, name, ElementType::F32), as_type(source, name, ElementType::F32)) << name;
  }
  probe_of(model(), "source.safetensors");
  EXPECT_EQ(probe_of(at("wide"), "wide.safetensors").note, "");
  EXPECT_EQ(read_file(at("source.safetensors")), read_file(at("wide.safetensors")));

  // What config.json says; in shards; whose numbers are the wide ones rounded once, exact for mxfp4.
  const ConvertResult narrow = convert("narrow", "", 40000);
  EXPECT_EQ(narrow.dtype, "bfloat16");
  EXPECT_GT(narrow.num_shards, 2);
  EXPECT_TRUE(fs::exists(at("narrow/model.safetensors.index.json")));
  const ModelFolder rounded = ModelFolder::open(at("narrow"));
  EXPECT_TRUE(rounded.warnings().empty());
  for (const std::string_view name : source.names()) {
    const bool decoded = digests.contains(name);
    EXPECT_EQ(rounded.at(name).type, decoded ? ElementType::BF16 : source.at(name).type);
    const ElementType type = rounded.at(name).type;
    EXPECT_EQ(as_type(rounded, name, type), as_type(wide, name, type)) << name;
  }
  if (is_fp8()) return;
  probe_of(at("narrow"), "narrow.safetensors");
  EXPECT_EQ(read_file(at("source.safetensors")), read_file(at("narrow.safetensors")));
}

TEST_P(QuantizedModel, ConvertedConfigIsTheSourcesWithoutQuantization) {
  for (const char* dtype : {"bfloat16", "float32"}) {
    convert(dtype, dtype);
    json expected = json::parse(read_file(model() + "/config.json"));
    expected.erase("quantization_config");
    expected["dtype"] = dtype;
    EXPECT_EQ(json::parse(read_file(at(dtype) + std::string("/config.json"))), expected);
  }
}

TEST_P(QuantizedModel, ImportedAndExportedItIsTheConvertedOne) {
  const ImportResult imported = import_model({model(), at("run"), {}});
  EXPECT_TRUE(holds_note(imported.notes, stored()));
  export_model({at("run"), at("out"), "", 1 << 30, true});  // bfloat16, as config.json says
  convert("converted");
  EXPECT_EQ(tensors_of(at("out")), tensors_of(at("converted")));
  EXPECT_FALSE(json::parse(read_file(at("out/config.json"))).contains("quantization_config"));
  export_model({at("run"), at("wide"), "f32", 1 << 30, true});
  const ModelFolder wide = ModelFolder::open(at("wide")), source = ModelFolder::open(model());
  EXPECT_EQ(wide.names(), source.names());
  for (const std::string_view name : source.names())
    EXPECT_EQ(as_type(wide, name, ElementType::F32), as_type(source, name, ElementType::F32)) << name;
}

TEST_P(QuantizedModel, EveryReaderTakesIt) {
  const ModelSource source = open_model_source(model(), {.dtype = "", .threads = 1, .tokenizer = ""});
  EXPECT_EQ(source.remarks, std::vector<std::string>{"note: " + stored()});
  infer::InferenceChoice choice;
  choice.num_sequences = 1;
  choice.max_length = 8;
  infer::Inference inference(source.config, choice);
  expect_says(source.load(inference), " tensors of a ");

  // A run begun with it has the weights of an import.
  import_model({model(), at("imported"), {}});
  pleat::testing::write_file(at("new.toml"), "[train]\nsteps = 1\nmicro_batch = 1\nseq_len = 8\n");
  const InitialWeights weights({model(), ""}, at("new.toml"), {"log.run_dir=" + at("begun")});
  expect_says(weights.remark(), stored());
  fs::create_directories(at("begun"));
  weights.write(config::resolve(weights.config()));
  base::PosixVfs vfs;
  const checkpoint::Loaded begun = checkpoint::open_step(vfs, at("begun/checkpoints"), 0);
  const checkpoint::Loaded imported = checkpoint::open_step(vfs, at("imported/checkpoints"), 0);
  ASSERT_EQ(begun.manifest().tensors.size(), imported.manifest().tensors.size());
  for (const checkpoint::TensorEntry& tensor : begun.manifest().tensors)
    EXPECT_EQ(tensor.sha256, imported.tensor(tensor.name).sha256) << tensor.name;
}

INSTANTIATE_TEST_SUITE_P(Published, QuantizedModel,
                         ::testing::Values("qwen3_moe_fp8", "deepseek_v3_fp8", "gpt_oss_mxfp4"),
                         [](const auto& instance) { return std::string(instance.param); });

// The golden qwen3 with codes for all matrices of its layers.
void write_dense_fp8(const std::string& to) {
  const ModelFolder from = ModelFolder::open(golden_folder("qwen3"));
  std::vector<safetensors::TensorSpec> specs;
  std::vector<Bytes> data;
  for (const std::string_view name : from.names()) {
    const std::vector<int64_t>& shape = from.at(name).shape;
    if (shape.size() != 2 || !name.starts_with("model.layers")) {
      specs.push_back({std::string(name), ElementType::BF16, shape});
      data.push_back(as_type(from, name, ElementType::BF16));
      continue;
    }
    const Bytes numbers = as_type(from, name, ElementType::F32);
    Bytes codes, scales;
    for (size_t i = 0; i < numbers.size(); i += 4) {
      float x = 0;
      std::memcpy(&x, numbers.data() + i, 4);
      codes.push_back(static_cast<std::byte>(tensor::E4M3::code(double(x) * 100)));
    }
    const int64_t rows = (shape[0] + 15) / 16, columns = (shape[1] + 15) / 16;
    const float scale = 0.01f;
    for (int64_t i = 0; i < rows * columns; ++i)
      scales.insert(scales.end(), std::as_bytes(std::span(&scale, 1)).begin(),
                    std::as_bytes(std::span(&scale, 1)).end());
    specs.push_back({std::string(name), ElementType::F8E4M3, shape});
    data.push_back(codes);
    specs.push_back({std::string(name) + "_scale_inv", ElementType::F32, {rows, columns}});
    data.push_back(scales);
  }
  fs::create_directories(to);
  safetensors::Writer writer(to + "/model.safetensors", specs);
  for (size_t i = 0; i < specs.size(); ++i) writer.append(specs[i].name, data[i]);
  writer.finish();
  json config = json::parse(read_file(golden_folder("qwen3") + "/config.json"));
  config["dtype"] = "bfloat16";
  config["quantization_config"] = {{"quant_method", "fp8"}, {"weight_block_size", {16, 16}}};
  pleat::testing::write_file(to + "/config.json", config.dump());
}

TEST(QuantizedFolder, UpcycledItIsTheConvertedOneUpcycled) {
  TemporaryFolder folder;
  write_dense_fp8(folder.at("dense"));
  convert_model({folder.at("dense"), folder.at("plain"), "float32", 1 << 30, {}});
  UpcycleOptions o;
  o.num_experts = 4;
  o.top_k = 2;
  for (const char* name : {"dense", "plain"}) {
    o.dense = folder.at(name);
    o.model_folder = folder.at(std::string("moe_") + name);
    EXPECT_EQ(holds_note(upcycle(o).notes, "weights are stored as fp8 with a scale for each 16 x 16 weights"),
              o.dense == folder.at("dense"));
  }
  EXPECT_EQ(tensors_of(folder.at("moe_dense")), tensors_of(folder.at("moe_plain")));
  EXPECT_FALSE(json::parse(read_file(folder.at("moe_dense/config.json"))).contains("quantization_config"));
}

TEST(QuantizedFolder, ConversionsThatMakeNoSenseAreRefused) {
  TemporaryFolder folder;
  const auto refused = [&](const std::string& model, const std::string& dtype = "", const char* to = "out") {
    return message_of([&] { convert_model({model, folder.at(to), dtype, 1 << 30, {}}); });
  };
  expect_says(
      refused(golden_folder("qwen3_moe")),
      "config.json has no quantization_config: the weights are plain, there is nothing to dequantize");
  fs::create_directories(folder.at("a_run"));
  pleat::testing::write_file(folder.at("a_run/config.toml"), "");
  expect_says(refused(folder.at("a_run")), "pleat export");
  expect_says(refused(folder.at("none")), "does not exist");
  expect_says(refused(quantized_folder("gpt_oss_mxfp4"), "float16"), "needed bfloat16 or float32");
  fs::create_directories(folder.at("full/x"));
  expect_says(refused(quantized_folder("gpt_oss_mxfp4"), "", "full"),
              "is not empty; a conversion needs a new");
  fs::copy(golden_folder("qwen3_moe"), folder.at("model"), fs::copy_options::recursive);
  json config = json::parse(read_file(folder.at("model/config.json")));
  config["quantization_config"] = {{"quant_method", "mxfp4"}};
  pleat::testing::write_file(folder.at("model/config.json"), config.dump());
  expect_says(refused(folder.at("model")), "no tensor is stored as codes, though config.json says mxfp4");
  config["quantization_config"] = {{"quant_method", "gptq"}};
  pleat::testing::write_file(folder.at("model/config.json"), config.dump());
  expect_says(refused(folder.at("model")), "weights quantized by 'gptq' are not read; read are \"fp8\"");
  expect_says(message_of([&] {
                import_model({folder.at("model"), folder.at("run"), {}});
              }),
              "weights quantized by 'gptq' are not read");
  EXPECT_FALSE(fs::exists(folder.at("out")));
  EXPECT_FALSE(fs::exists(folder.at("run")));
}

// Everything but a name: any model_type will do.
void write_two_tensors(const std::string& to, float last_scale, const std::string& dtype) {
  fs::create_directories(to);
  safetensors::Writer writer(to + "/model.safetensors", {{"a.weight", ElementType::F8E4M3, {4, 4}},
                                                         {"a.weight_scale_inv", ElementType::F32, {1, 1}},
                                                         {"b.weight", ElementType::F8E4M3, {4, 4}},
                                                         {"b.weight_scale_inv", ElementType::F32, {1, 1}}});
  for (const char* name : {"a", "b"}) {
    const float scale = *name == 'a' ? 1 : last_scale;
    writer.append(name + std::string(".weight"), Bytes(16, std::byte{0x7E}));
    writer.append(name + std::string(".weight_scale_inv"), std::as_bytes(std::span(&scale, 1)));
  }
  writer.finish();
  const json config = {{"model_type", "unknown"},
                       {"torch_dtype", dtype},
                       {"quantization_config", {{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}}}};
  pleat::testing::write_file(to + "/config.json", config.dump());
}

TEST(QuantizedFolder, WhatCannotBeConvertedLeavesNothingThatLooksWhole) {
  TemporaryFolder folder;
  write_two_tensors(folder.at("nan"), std::nanf(""), "bfloat16");
  write_two_tensors(folder.at("wide"), std::numeric_limits<float>::max() / 448, "bfloat16");
  write_two_tensors(folder.at("half"), 1, "float16");
  const auto refused = [&](const std::string& model, const std::string& dtype) {
    // A file for each tensor: the first is complete when the second fails.
    return message_of([&] { convert_model({folder.at(model), folder.at("out"), dtype, 1, {}}); });
  };
  expect_says(refused("nan", ""), "tensor 'b.weight_scale_inv' holds nan as scale 0");
  EXPECT_TRUE(fs::is_empty(folder.at("out")));
  expect_says(refused("wide", ""),
              "a weight of 'b.weight' is too large for a bfloat16; choose --dtype float32");
  EXPECT_TRUE(fs::is_empty(folder.at("out")));
  expect_says(refused("half", ""), "torch_dtype = \"float16\"; choose bfloat16 or float32 with --dtype");
  EXPECT_EQ(refused("wide", "float32"), "");
  EXPECT_EQ(json::parse(read_file(folder.at("out/config.json"))),
            json({{"model_type", "unknown"}, {"torch_dtype", "float32"}}));
  EXPECT_EQ(ModelFolder::open(folder.at("out")).files().size(), 2u);
}

TEST(QuantizedFolder, CompanionsAreCopied) {
  TemporaryFolder folder;
  write_two_tensors(folder.at("model"), 1, "bfloat16");
  for (const char* name : {"tokenizer.json", "generation_config.json", "README.md"})
    pleat::testing::write_file(folder.at("model/") + name, name);
  const ConvertResult result = convert_model({folder.at("model"), folder.at("out"), "", 1 << 30, {}});
  EXPECT_EQ(read_file(folder.at("out/tokenizer.json")), "tokenizer.json");
  EXPECT_EQ(read_file(folder.at("out/generation_config.json")), "generation_config.json");
  EXPECT_EQ(result.notes, std::vector<std::string>{"not copied: 'README.md'"});
}

}  // namespace
}  // namespace pleat::exchange::testing
