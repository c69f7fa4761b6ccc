// Upcycled models against the dense ones they came from: equal logits in every case that is called exact,
// other logits where it is not.
#include "exchange/upcycle.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>

#include "exchange/exchange_support.h"
#include "exchange/import.h"
#include "exchange/probe.h"
#include "safetensors/convert.h"
#include "safetensors/model_folder.h"
#include "safetensors/writer.h"

namespace pleat::exchange::testing {
namespace {

namespace fs = std::filesystem;

#define EXPECT_SAYS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

std::vector<double> logits_of(const std::string& model, const std::string& dtype,
                              const std::string& scratch) {
  ProbeOptions o;
  o.model_folder = model;
  o.tokens_path = golden_folder("llama") + "/golden.safetensors";  // 128 tokens in every golden model
  o.out_path = scratch + "/probe.safetensors";
  o.dtype = dtype;
  o.threads = 1;
  probe(o);
  const safetensors::File file = safetensors::File::open(o.out_path);
  const safetensors::TensorInfo& info = file.at("logits");
  std::vector<std::byte> raw(static_cast<size_t>(info.num_bytes()));
  file.read("logits", raw);
  std::vector<double> out(static_cast<size_t>(info.num_elements()));
  safetensors::decode(info.type, raw, std::span<double>(out));
  return out;
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double worst = a.size() == b.size() ? 0 : INFINITY;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) worst = std::max(worst, std::abs(a[i] - b[i]));
  return worst;
}

// A copy of a golden dense model in another element type, with its MLPs' weights times `louder`: the golden
// ones are so small that silu is nearly linear, and a wrong scale would hide.
std::string dense_copy(const std::string& family, safetensors::ElementType type, double louder,
                       const std::string& to, const std::map<std::string, nlohmann::json>& changes = {}) {
  const safetensors::ModelFolder from = safetensors::ModelFolder::open(golden_folder(family));
  std::vector<safetensors::TensorSpec> specs;
  for (const auto name : from.names()) specs.push_back({std::string(name), type, from.at(name).shape});
  safetensors::FolderWriter writer(to, specs, int64_t{1} << 30);
  for (const safetensors::TensorSpec& spec : specs) {
    const safetensors::TensorInfo& info = from.at(spec.name);
    std::vector<std::byte> raw(static_cast<size_t>(info.num_bytes()));
    from.read(spec.name, raw);
    std::vector<double> numbers(static_cast<size_t>(info.num_elements()));
    safetensors::decode(info.type, raw, std::span<double>(numbers));
    if (spec.name.find(".mlp.") != std::string::npos)
      for (double& x : numbers) x *= louder;
    std::vector<std::byte> bytes(numbers.size() * static_cast<size_t>(safetensors::size_of(type)));
    safetensors::encode(type, std::span<const double>(numbers), bytes);
    writer.append(spec.name, bytes);
  }
  writer.finish();
  nlohmann::json j;
  std::ifstream(golden_folder(family) + "/config.json") >> j;
  for (const auto& [key, value] : changes) j[key] = value;
  std::ofstream(to + "/config.json") << j.dump(2);
  return to;
}

struct Case {
  const char* family;
  int64_t experts, top_k, granularity;
  bool normalized = true;
  double std = -1;
  UpcycleScaling scaling = UpcycleScaling::Linear;
};

std::string text_of(const Case& c) {
  return fmt::format("{} E{} k{} G{}{}{}{}", c.family, c.experts, c.top_k, c.granularity,
                     c.normalized ? "" : " pre-softmax", c.std >= 0 ? fmt::format(" std {}", c.std) : "",
                     c.scaling == UpcycleScaling::CubeRoot ? " cube-root" : "");
}

struct Upcycled : ::testing::Test {
  std::string at(const std::string& name) const { return folder_.path() + "/" + name; }
  UpcycleOptions options(const Case& c, const std::string& dense, const std::string& out) const {
    UpcycleOptions o;
    o.dense = dense;
    o.model_folder = out;
    o.num_experts = c.experts, o.top_k = c.top_k, o.granularity = c.granularity;
    o.normalized = c.normalized;
    o.router_init_std = c.std;
    o.scaling = c.scaling;
    return o;
  }
  TemporaryFolder folder_;
};

constexpr Case kExact[] = {
    {"llama", 4, 2, 1},
    {"llama", 4, 1, 1},
    {"llama", 3, 3, 1},
    {"llama", 8, 4, 2},
    {"llama", 8, 2, 2},
    {"llama", 8, 8, 8},
    {"llama", 8, 4, 4, true, 0.0},
    {"llama", 16, 8, 8},
    {"qwen3", 8, 4, 2},
    {"qwen3", 4, 1, 1},
    {"qwen3", 8, 2, 2, true, 0.5},
    {"qwen3", 8, 8, 2, false},
    {"qwen3", 8, 4, 2, false, 0.0},
    {"qwen3", 6, 2, 2, false, 0.0},
    {"qwen3", 4, 1, 1, false, 0.0},
    {"qwen3", 4, 2, 1, true, -1, UpcycleScaling::CubeRoot},
};

TEST_F(Upcycled, EqualsTheDenseModelWhereItSaysSo) {
  for (const char* family : {"llama", "qwen3"}) {
    const std::string name = family;
    const std::string dense = dense_copy(name, safetensors::ElementType::F64, 4, at(name));
    const auto wide = logits_of(dense, "float64", folder_.path());
    const auto narrow = logits_of(dense, "float32", folder_.path());
    int i = 0;
    for (const Case& c : kExact) {
      if (c.family != name) continue;
      const std::string out = at(fmt::format("{}-{}", name, i++));
      const UpcycleResult r = upcycle(options(c, dense, out));
      EXPECT_TRUE(r.start.exact) << text_of(c);
      EXPECT_LE(largest_difference(logits_of(out, "float64", folder_.path()), wide), 1e-10) << text_of(c);
      EXPECT_LE(largest_difference(logits_of(out, "float32", folder_.path()), narrow), 1e-5) << text_of(c);
    }
  }
}

TEST_F(Upcycled, PowersOfTwoNeedNoRoundingInNarrowTypes) {
  const std::string dense = dense_copy("llama", safetensors::ElementType::BF16, 4, at("dense"));
  const UpcycleResult r = upcycle(options({"llama", 8, 2, 2}, dense, at("out")));
  EXPECT_FALSE(r.start.rounds);
  EXPECT_LE(largest_difference(logits_of(at("out"), "float64", folder_.path()),
                               logits_of(dense, "float64", folder_.path())),
            1e-10);
}

TEST_F(Upcycled, DiffersWhereItSaysApproximate) {
  const Case inexact[] = {
      {"llama", 8, 3, 2},                                     // half a copy
      {"llama", 8, 1, 2},                                     //
      {"llama", 8, 2, 4, true, 0.0},                          //
      {"qwen3", 8, 4, 2, false, 0.5},                         // probabilities sum to no constant
      {"llama", 8, 4, 2, true, -1, UpcycleScaling::CubeRoot}  // the gate is scaled
  };
  for (const char* family : {"llama", "qwen3"})
    dense_copy(family, safetensors::ElementType::F32, 4, at(family));
  int i = 0;
  for (const Case& c : inexact) {
    const std::string out = at(std::to_string(i++));
    const UpcycleResult r = upcycle(options(c, at(c.family), out));
    EXPECT_FALSE(r.start.exact) << text_of(c);
    EXPECT_GT(largest_difference(logits_of(out, "float64", folder_.path()),
                                 logits_of(at(c.family), "float64", folder_.path())),
              1e-4)
        << text_of(c);
  }
}

TEST_F(Upcycled, KeepsEverythingElse) {
  fs::create_directories(at("dense"));
  for (const char* file : {"config.json", "generation_config.json", "model.safetensors"})
    fs::copy_file(golden_folder("qwen3") + "/" + file, at("dense/") + file);
  std::ofstream(at("dense/tokenizer_config.json")) << "{}\n";
  UpcycleOptions o = options({"qwen3", 6, 4, 2}, at("dense"), at("out"));
  o.max_shard_bytes = 40000;
  const UpcycleResult r = upcycle(o);
  EXPECT_EQ(r.model_type, "qwen3_moe");
  EXPECT_GT(r.num_shards, 1);
  const auto before = tensors_of(at("dense")), after = tensors_of(at("out"));
  EXPECT_EQ(static_cast<int64_t>(after.size()), r.num_tensors);
  int num_kept = 0;
  for (const auto& [name, tensor] : before) {
    if (name.find(".mlp.") != std::string::npos) {
      EXPECT_FALSE(after.count(name)) << name;
      continue;
    }
    EXPECT_EQ(after.at(name), tensor) << name;
    ++num_kept;
  }
  EXPECT_GT(num_kept, 10);

  for (int layer = 0; layer < 2; ++layer) {
    const std::string mlp = fmt::format("model.layers.{}.mlp.", layer);
    const auto& router = after.at(mlp + "gate.weight");
    EXPECT_EQ(router.first, "F32 [6, 32]");
    const auto row = [&](int e) {
      return std::vector<std::byte>(router.second.begin() + e * 32 * 4,
                                    router.second.begin() + (e + 1) * 32 * 4);
    };
    EXPECT_EQ(row(0), row(1));
    EXPECT_EQ(row(2), row(3));
    EXPECT_EQ(row(4), row(5));
    EXPECT_NE(row(0), row(2));
    EXPECT_NE(row(2), row(4));
    const auto expert = [&](int e, const char* part) {
      return after.at(fmt::format("{}experts.{}.{}.weight", mlp, e, part));
    };
    for (const char* part : {"gate_proj", "up_proj", "down_proj"}) {
      EXPECT_EQ(expert(0, part), expert(2, part));
      EXPECT_EQ(expert(1, part), expert(5, part));
      EXPECT_NE(expert(0, part), expert(1, part));
    }
    // s = 2: the gate and up halves stay, down doubles.
    const auto& gate = before.at(mlp + "gate_proj.weight").second;
    EXPECT_TRUE(std::equal(gate.begin() + 32 * 32 * 4, gate.end(), expert(1, "gate_proj").second.begin()));
    float dense = 0, shard = 0;  // row 3, column 32 + 5
    std::memcpy(&dense, before.at(mlp + "down_proj.weight").second.data() + (3 * 64 + 37) * 4, 4);
    std::memcpy(&shard, expert(1, "down_proj").second.data() + (3 * 32 + 5) * 4, 4);
    EXPECT_EQ(shard, 2 * dense);
  }
  EXPECT_NE(tensors_of(at("out")).at("model.layers.0.mlp.gate.weight").second,
            after.at("model.layers.1.mlp.gate.weight").second);
  EXPECT_TRUE(fs::exists(at("out/tokenizer_config.json")));
  EXPECT_TRUE(fs::exists(at("out/generation_config.json")));
  import_model({at("out"), at("run"), {}});
}

TEST_F(Upcycled, SeedsDecideTheRouter) {
  UpcycleOptions o = options({"llama", 4, 2, 1}, golden_folder("llama"), at("a"));
  upcycle(o);
  o.model_folder = at("b");
  upcycle(o);
  o.model_folder = at("c"), o.seed = 7;
  upcycle(o);
  EXPECT_EQ(tensors_of(at("a")), tensors_of(at("b")));
  const std::string router = "model.layers.0.block_sparse_moe.gate.weight";
  EXPECT_NE(tensors_of(at("a")).at(router), tensors_of(at("c")).at(router));
}

TEST_F(Upcycled, StartsFromARunToo) {
  import_model({golden_folder("llama"), at("run"), {}});
  const Case c = {"llama", 8, 4, 2};
  const UpcycleResult r = upcycle(options(c, at("run"), at("from-run")));
  upcycle(options(c, golden_folder("llama"), at("from-folder")));
  EXPECT_EQ(r.model_type, "mixtral");
  EXPECT_EQ(tensors_of(at("from-run")), tensors_of(at("from-folder")));
}

// Keys the dense file leaves out mean its family's defaults, which the other family does not share.
TEST_F(Upcycled, WritesOutWhatTheFamiliesAssumeDifferently) {
  const std::string dense = dense_copy("llama", safetensors::ElementType::F32, 1, at("dense"));
  nlohmann::json j;
  std::ifstream(dense + "/config.json") >> j;
  j.erase("rope_parameters");
  j.erase("max_position_embeddings");
  j.erase("tie_word_embeddings");
  std::ofstream(dense + "/config.json") << j;
  upcycle(options({"llama", 4, 2, 1}, dense, at("out")));
  nlohmann::json made;
  std::ifstream(at("out/config.json")) >> made;
  EXPECT_EQ(made.at("rope_theta"), 10000.0);
  EXPECT_EQ(made.at("max_position_embeddings"), 2048);
  EXPECT_EQ(made.at("tie_word_embeddings"), false);
  EXPECT_EQ(made.at("num_key_value_heads"), 2);
  EXPECT_TRUE(made.at("sliding_window").is_null());
  EXPECT_EQ(made.at("bos_token_id"), j.at("bos_token_id"));
}

TEST_F(Upcycled, RefusesWhatCannotBe) {
  const auto complaint = [&](const Case& c, const std::string& dense) {
    const std::string text = message_of([&] { upcycle(options(c, dense, at("out"))); });
    EXPECT_FALSE(fs::exists(at("out"))) << text;
    return text;
  };
  const std::string llama = golden_folder("llama"), qwen3 = golden_folder("qwen3");
  EXPECT_SAYS(complaint({"", 8, 2, 3}, llama), "does not divide the 8 experts: every copy of the MLP has 3");
  EXPECT_SAYS(complaint({"", 6, 2, 3}, llama),
              "granularity 3 does not divide the dense width 64: 64 % 3 = 1");
  EXPECT_SAYS(complaint({"", 4, 5, 1}, llama), "top-k 5 of 4 experts; needed 1 to 4");
  EXPECT_SAYS(complaint({"", 4, 0, 1}, llama), "top-k 0");
  EXPECT_SAYS(complaint({"", 0, 1, 1}, llama), "0 experts");
  EXPECT_SAYS(complaint({"", 4, 1, 0}, llama), "granularity 0");
  EXPECT_SAYS(complaint({"", 4, 2, 1, false}, llama), "mixtral always normalises");
  EXPECT_SAYS(complaint({"", 4, 2, 1}, golden_folder("olmoe")), "experts already");
  EXPECT_SAYS(complaint({"", 4, 2, 1}, at("nothing")), "does not exist");
  dense_copy("llama", safetensors::ElementType::F32, 1, at("short"));
  fs::copy_file(golden_folder("qwen3") + "/config.json", at("short/config.json"),
                fs::copy_options::overwrite_existing);
  EXPECT_SAYS(complaint({"", 4, 2, 1}, at("short")), "does not fit its config.json");
  dense_copy("qwen3", safetensors::ElementType::F32, 1, at("window"),
             {{"use_sliding_window", true},
              {"sliding_window", 8},
              {"layer_types", {"full_attention", "sliding_attention"}}});
  EXPECT_SAYS(complaint({"", 4, 2, 1}, at("window")), "model.window_layers");

  UpcycleOptions full = options({"", 4, 2, 1}, llama, at("short"));
  EXPECT_SAYS(message_of([&] { upcycle(full); }), "an upcycled model needs a new or empty folder");
}

TEST_F(Upcycled, RefusesBiasesTheTargetCannotHold) {
  const std::string dense = at("biased");
  const safetensors::ModelFolder from = safetensors::ModelFolder::open(golden_folder("llama"));
  std::vector<safetensors::TensorSpec> specs;
  for (const auto name : from.names())
    specs.push_back({std::string(name), safetensors::ElementType::F32, from.at(name).shape});
  for (int layer = 0; layer < 2; ++layer)
    for (const char* part : {"q", "k", "v", "o"})
      specs.push_back({fmt::format("model.layers.{}.self_attn.{}_proj.bias", layer, part),
                       safetensors::ElementType::F32,
                       {*part == 'q' ? 64 : 32}});
  safetensors::FolderWriter writer(dense, specs, int64_t{1} << 30);
  for (const safetensors::TensorSpec& spec : specs) {
    int64_t n = 4;
    for (int64_t d : spec.shape) n *= d;
    std::vector<std::byte> bytes(static_cast<size_t>(n));
    if (from.find(spec.name)) from.read(spec.name, bytes);
    writer.append(spec.name, bytes);
  }
  writer.finish();
  nlohmann::json j;
  std::ifstream(golden_folder("llama") + "/config.json") >> j;
  j["attention_bias"] = true;
  std::ofstream(dense + "/config.json") << j;
  const std::string text = message_of([&] { upcycle(options({"", 4, 2, 1}, dense, at("out"))); });
  EXPECT_SAYS(text, "family mixtral cannot hold this llama model");
  EXPECT_SAYS(text, "model.qkv_bias: false -> true");
  EXPECT_FALSE(fs::exists(at("out")));
}

TEST(UpcycleStart, ScalesByTheRule) {
  UpcycleOptions o;
  o.num_experts = 64, o.top_k = 8, o.granularity = 8;
  EXPECT_EQ(upcycle_start(o, 64, 0.02).scale, 8);
  EXPECT_EQ(upcycle_start(o, 64, 0.02).up, 2);
  EXPECT_EQ(upcycle_start(o, 64, 0.02).down, 4);
  o.normalized = false;
  EXPECT_EQ(upcycle_start(o, 64, 0.02).scale, 64.0 / 8 * 8 * 8 / 8);  // (E/G) G^2 / k
  o.scaling = UpcycleScaling::CubeRoot;
  EXPECT_DOUBLE_EQ(upcycle_start(o, 64, 0.02).gate, 4);
  EXPECT_DOUBLE_EQ(upcycle_start(o, 64, 0.02).down, 4);
}

}  // namespace
}  // namespace pleat::exchange::testing
