// Model folders that are not what they say they are.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "exchange/exchange_support.h"
#include "exchange/import.h"
#include "family/family.h"
#include "safetensors/model_folder.h"

namespace pleat::exchange::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

void expect_has(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

// A copy of the golden model of a family, which the test may change.
std::string copy_of(const std::string& family, const TemporaryFolder& folder) {
  const std::string copy = folder.path() + "/model";
  fs::copy(golden_folder(family), copy, fs::copy_options::recursive);
  return copy;
}

// Puts `value` into the first float32 (or the first two bytes of a narrower type) of the named tensor.
void plant(const std::string& folder, const std::string& name, int64_t element, float value) {
  const auto files = safetensors::ModelFolder::open(folder);
  const safetensors::TensorInfo info = files.at(name);
  const std::string path = folder + "/model.safetensors";
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  uint64_t header = 0;
  file.read(reinterpret_cast<char*>(&header), 8);
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  const int64_t size = safetensors::size_of(info.type);
  if (size == 2) bits >>= 16;  // bfloat16
  file.seekp(static_cast<std::streamoff>(8 + header) + info.begin + element * size);
  file.write(reinterpret_cast<const char*>(&bits), size);
}

TEST(HostileModel, AWeightThatIsNoNumberIsNamed) {
  for (const float value : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    TemporaryFolder folder;
    const std::string model = copy_of("qwen3_moe", folder);
    const auto shape = safetensors::ModelFolder::open(model).at("model.embed_tokens.weight").shape;
    plant(model, "model.embed_tokens.weight", 3 * shape[1] + 5, value);
    const std::string message = message_of([&] { import_model({model, folder.path() + "/run", {}}); });
    expect_has(message, std::isnan(value) ? "tensor 'model.embed_tokens.weight' holds nan at [3, 5]"
                                          : "tensor 'model.embed_tokens.weight' holds inf at [3, 5]");
  }
}

TEST(HostileModel, ImportCountsTheTensorsOfTheFile) {
  for (const char* family : {"gpt_oss", "deepseek_v3", "mixtral"}) {
    TemporaryFolder folder;
    const ImportResult r = import_model({golden_folder(family), folder.path() + "/run", {}});
    EXPECT_EQ(r.num_tensors,
              static_cast<int64_t>(safetensors::ModelFolder::open(golden_folder(family)).names().size()))
        << family;
  }
}

TEST(HostileModel, JunkThatDescribesIsRefused) {
  const auto refusal = [](const std::string& key, const json& value) {
    json j = json::parse(read_file(golden_folder("llama") + "/config.json"));
    j[key] = value;
    return message_of([&] { family::parse_model_config(j.dump(), "config.json"); });
  };
  for (const char* key : {"dtype", "torch_dtype"}) {
    expect_has(refusal(key, "banana"),
               fmt::format("{} = \"banana\" is not supported; known are float32", key));
    expect_has(refusal(key, 16), fmt::format("key '{}' must be a string, got 16", key));
    EXPECT_EQ(refusal(key, "torch.bfloat16"), "");
  }
  expect_has(refusal("architectures", "LlamaForCausalLM"), "key 'architectures' must be a list");
  expect_has(refusal("architectures", {1}), "key 'architectures' must hold strings");
  expect_has(refusal("architectures", {"Banana"}), "architectures names \"Banana\"; needed is a causal");
  expect_has(refusal("layer_types", {"banana", "full_attention"}), "layer_types has \"banana\"; known are");
  expect_has(refusal("layer_types", "full_attention"), "key 'layer_types' must be a list");
  expect_has(refusal("layer_types", json(40, "full_attention")), "layer_types has 40 entries for");
}

TEST(HostileModel, BrokenJsonSaysWhere) {
  expect_has(
      message_of([] { family::parse_model_config("{\n \"model_type\": \"llama\",\n }", "config.json"); }),
      "config.json: broken JSON: line 3, column 2: ");
}

TEST(HostileModel, AGitLfsPointerIsCalledOne) {
  const std::string pointer =
      "version https://git-lfs.github.com/spec/v1\noid sha256:" + std::string(64, 'a') + "\nsize 12345\n";
  for (const char* name : {"model.safetensors", "config.json"}) {
    TemporaryFolder folder;
    const std::string model = copy_of("llama", folder);
    std::ofstream(model + "/" + name, std::ios::binary | std::ios::trunc) << pointer;
    const std::string message = message_of([&] { import_model({model, folder.path() + "/run", {}}); });
    expect_has(message, std::string(name) + ": a Git LFS pointer, not the file itself");
    expect_has(message, "git lfs pull");
  }
}

}  // namespace
}  // namespace pleat::exchange::testing
