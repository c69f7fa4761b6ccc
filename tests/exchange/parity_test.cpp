// Settings of a config.json that transformers reads in a way one would not guess: read the same, or refused.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>

#include "exchange/exchange_support.h"
#include "exchange/golden_support.h"
#include "exchange/import.h"
#include "exchange/probe.h"
#include "family/family.h"
#include "safetensors/writer.h"

namespace pleat::exchange::testing {
namespace {

using nlohmann::json;

json config_of(const std::string& family) {
  return json::parse(read_file(golden_folder(family) + "/config.json"));
}

config::Config read(const json& j) { return family::parse_model_config(j.dump(), "config.json").config; }

std::string refusal(const json& j) {
  return message_of([&] { read(j); });
}

#define EXPECT_HAS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

TEST(ConfigJson, RopeScalingCountsWhereRopeParametersAreThereToo) {
  json j = config_of("llama");
  j["rope_theta"] = 500000.0;
  j["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 10000.0}};
  j["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 4.0}};
  EXPECT_EQ(read(j).model.rope_type, "linear");
  EXPECT_EQ(read(j).model.rope_factor, 4.0);
  EXPECT_EQ(read(j).model.rope_theta, 500000.0) << "rope_parameters are not looked at";
  for (const json& nothing : {json(nullptr), json::object()}) {
    j["rope_scaling"] = nothing;
    EXPECT_EQ(read(j).model.rope_type, "default");
    EXPECT_EQ(read(j).model.rope_theta, 10000.0);
  }
}

TEST(ConfigJson, ARotaryEmbeddingWithoutItsFactorIsRefused) {
  json j = config_of("llama");
  for (const char* type : {"linear", "llama3", "yarn"}) {
    j["rope_parameters"] = {{"rope_type", type}, {"rope_theta", 10000.0}};
    EXPECT_HAS(refusal(j), "has no 'factor'");
  }
  j["rope_parameters"] = {{"rope_type", "llama3"}, {"rope_theta", 10000.0}, {"factor", 8.0}};
  EXPECT_HAS(refusal(j), "has no 'low_freq_factor'");
  j["rope_parameters"] = {{"full_attention", {{"rope_type", "default"}}}};
  EXPECT_HAS(refusal(j), "settings of its own for \"full_attention\"");
  j = config_of("gpt_oss");
  j.erase("rope_parameters");
  EXPECT_HAS(refusal(j), "'rope_parameters' is missing");
}

TEST(ConfigJson, AWindowBelowOneIsRefusedWhereALayerHasIt) {
  for (const int window : {0, -5}) {
    json j = config_of("mixtral");
    j["sliding_window"] = window;
    EXPECT_HAS(refusal(j), "sliding_window");
    j = config_of("gpt_oss");
    j["sliding_window"] = window;
    EXPECT_HAS(refusal(j), "leaves a token nothing to attend to");
    j = config_of("qwen3_moe");
    j["sliding_window"] = window;
    EXPECT_EQ(read(j).model.sliding_window, 0) << "not used";
    j["use_sliding_window"] = true;
    EXPECT_HAS(refusal(j), "needed is 1 or more");
  }
  json j = config_of("qwen2_moe");  // has 0, and use_sliding_window = false
  EXPECT_EQ(read(j).model.sliding_window, 0);
  j["layer_types"][0] = "sliding_attention";
  EXPECT_HAS(refusal(j), "use_sliding_window is false");
  j = config_of("gpt_oss");
  j["sliding_window"] = nullptr;
  EXPECT_HAS(refusal(j), "sliding_window is null");
  j.erase("sliding_window");
  EXPECT_EQ(read(j).model.sliding_window, 128) << "what transformers takes";
  j = config_of("mixtral");
  j["sliding_window"] = 4;
  j["layer_types"] = json::array();
  for (int i = 0; i < j["num_hidden_layers"]; ++i) j["layer_types"].push_back("full_attention");
  EXPECT_HAS(refusal(j), "one kind of attention in all layers");
}

TEST(ConfigJson, ThePaddingTokenIsRead) {
  EXPECT_EQ(read(config_of("olmoe")).model.padding_token, 1);
  json j = config_of("olmoe");
  j.erase("pad_token_id");
  EXPECT_EQ(read(j).model.padding_token, 1) << "transformers' own for this family";
  j["pad_token_id"] = nullptr;
  EXPECT_EQ(read(j).model.padding_token, -1);
  j["pad_token_id"] = -1;
  EXPECT_EQ(read(j).model.padding_token, j["vocab_size"].get<int64_t>() - 1) << "counted from the end";
  j["pad_token_id"] = j["vocab_size"];
  EXPECT_HAS(refusal(j), "outside the vocabulary");
}

// transformers: the row of pad_token_id in the embedding has no gradient; a tied head still gives it one.
TEST(Padding, TheRowOfThePaddingTokenIsNotTrained) {
  TemporaryFolder folder;
  const std::string tokens = folder.path() + "/tokens.safetensors";
  const std::vector<int32_t> ids = {1, 5, 1, 7, 9, 1, 3, 2};
  safetensors::Writer writer(tokens, {{"input_ids", safetensors::ElementType::I32, {2, 4}}});
  writer.append("input_ids", std::as_bytes(std::span(ids)));
  writer.finish();
  for (const bool tied : {false, true}) {
    const auto gradient = [&](int padding) {
      ProbeOptions o;
      o.model_folder = golden_folder("olmoe");
      o.tokens_path = tokens;
      o.out_path = folder.path() + "/out.safetensors";
      o.gradients = true;
      o.dtype = "float64";
      o.threads = 1;
      o.sets = {fmt::format("model.padding_token={}", padding), fmt::format("model.tie_embeddings={}", tied)};
      probe(o);
      return numbers(safetensors::File::open(o.out_path), "grad.model.embed_tokens.weight");
    };
    const std::vector<double> plain = gradient(-1), padded = gradient(1);
    const size_t width = plain.size() / 128;
    for (size_t i = 0; i < plain.size(); ++i) {
      if (i / width != 1) {
        EXPECT_EQ(padded[i], plain[i]) << i;
      } else {
        EXPECT_NE(padded[i], plain[i]);
        EXPECT_EQ(padded[i] != 0, tied);
      }
    }
  }
}

TEST(Balancing, TheAuxiliaryLossIsOnOnlyWhereTransformersTrainsWithIt) {
  for (const char* family : {"mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "gpt_oss"}) {
    json j = config_of(family);
    EXPECT_EQ(read(j).moe.load_balancing, std::vector<std::string>{"none"}) << family;
    j["output_router_logits"] = true;
    j["router_aux_loss_coef"] = 0.02;
    const config::Config c = read(j);
    EXPECT_EQ(c.moe.load_balancing, std::vector<std::string>{"aux"}) << family;
    EXPECT_EQ(c.moe.aux_coef, std::vector<double>{0.02});
    EXPECT_EQ(c.moe.aux_convention, "hf");
    j["router_aux_loss_coef"] = 0.0;
    EXPECT_EQ(read(j).moe.load_balancing, std::vector<std::string>{"none"}) << family;
  }
  json j = config_of("deepseek_v3");
  j["output_router_logits"] = true;
  EXPECT_EQ(read(j).moe.load_balancing, std::vector<std::string>{"bias"});
  EXPECT_EQ(read(j).moe.bias_update_rate, 0.0) << "transformers never moves the correction bias";
}

TEST(Balancing, AnImportSaysWhatItChoseAndHowToChange) {
  TemporaryFolder folder;
  int count = 0;
  const auto imported = [&](const char* family, const std::vector<std::string>& sets) {
    const std::string run = fmt::format("{}/{}", folder.path(), ++count);
    const std::string note = import_model({golden_folder(family), run, sets}).balancing_note;
    return std::pair(note, config::load(run + "/config.toml").moe);
  };
  EXPECT_EQ(imported("llama", {}).first, "");
  EXPECT_HAS(imported("mixtral", {}).first, "does not set output_router_logits");
  const auto on = imported(
      "mixtral", {"moe.load_balancing=[\"aux\"]", "moe.aux_coef=[0.001]", "moe.aux_convention=\"hf\""});
  EXPECT_HAS(on.first, "because --set asked");
  EXPECT_EQ(on.second.aux_coef, std::vector<double>{0.001});
  EXPECT_HAS(imported("deepseek_v3", {}).first, "do not move");
  EXPECT_EQ(imported("deepseek_v3", {"moe.bias_update_rate=0.001"}).second.bias_update_rate, 0.001);
  EXPECT_HAS(imported("deepseek_v2", {}).first, "no auxiliary loss for this family");

  // A model that trains with it, and how to do without.
  const std::string source = folder.path() + "/source";
  std::filesystem::create_directories(source);
  std::filesystem::copy_file(golden_folder("mixtral") + "/model.safetensors", source + "/model.safetensors");
  json j = config_of("mixtral");
  j["output_router_logits"] = true;
  std::ofstream(source + "/config.json") << j;
  EXPECT_HAS(import_model({source, folder.path() + "/on", {}}).balancing_note, "output_router_logits = true");
  import_model({source, folder.path() + "/off", {"moe.load_balancing=[\"none\"]"}});
  EXPECT_EQ(config::load(folder.path() + "/off/config.toml").moe.load_balancing,
            std::vector<std::string>{"none"});
}

}  // namespace
}  // namespace pleat::exchange::testing
