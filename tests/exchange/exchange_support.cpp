#include "exchange/exchange_support.h"

#include "data/indexed_writer.h"
#include "safetensors/model_folder.h"
#include "train/loop.h"

namespace pleat::exchange::testing {

std::vector<std::string> golden_families() {
  return {"llama", "qwen3",       "mixtral",     "qwen2_moe", "qwen3_moe",
          "olmoe", "deepseek_v2", "deepseek_v3", "gpt_oss"};
}

std::string golden_folder(const std::string& family) {
  return std::string(PLEAT_SOURCE_DIR) + "/tests/golden/" + family;
}

std::map<std::string, std::pair<std::string, std::vector<std::byte>>> tensors_of(
    const std::string& model_folder) {
  const safetensors::ModelFolder folder = safetensors::ModelFolder::open(model_folder);
  std::map<std::string, std::pair<std::string, std::vector<std::byte>>> out;
  for (const std::string_view name : folder.names()) {
    const safetensors::TensorInfo& info = folder.at(name);
    auto& [kind, bytes] = out[std::string(name)];
    kind = fmt::format("{} {}", safetensors::name_of(info.type), safetensors::shape_text(info.shape));
    bytes.resize(static_cast<size_t>(info.num_bytes()));
    folder.read(name, bytes);
  }
  return out;
}

std::string write_dataset(const std::string& folder, int vocab_size) {
  const std::string prefix = folder + "/tokens";
  data::IndexedDatasetWriter writer(prefix, {.vocab_size = vocab_size, .end_of_document = 0});
  std::vector<int32_t> tokens;
  uint32_t state = 1;
  for (int i = 0; i < 2000; ++i) {
    state = state * 1664525u + 1013904223u;
    tokens.push_back(static_cast<int32_t>((state >> 8) % static_cast<uint32_t>(vocab_size)));
  }
  writer.append(tokens);
  writer.end_document();
  writer.finish();
  return prefix;
}

void train_run(const std::string& run_folder, const std::vector<std::string>& sets) {
  train::LoopOptions quiet;
  quiet.quiet = true;
  const train::LoopResult result =
      train::run_training(config::load(run_folder + "/config.toml", sets), quiet);
  PLEAT_CHECK(result.code == base::ExitCode::Done, "training ended early");
}

}  // namespace pleat::exchange::testing
