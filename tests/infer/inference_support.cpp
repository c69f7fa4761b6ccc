#include "infer/inference_support.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/hash.h"
#include "base/rng.h"

namespace pleat::infer::testing {

void fill_weights(Inference& model) {
  for (const checkpoint::Target& t : model.weights()) {
    uint64_t seed = 0;
    const base::Sha256Digest digest = base::sha256(t.name);
    std::memcpy(&seed, digest.data(), sizeof seed);
    const base::RandomStream random(seed, base::RandomUse::Test, 0, 0);
    const bool norm = t.name.find("norm") != std::string::npos;
    const double scale = t.name.find("router.weight") != std::string::npos ? 1.0 : 0.3;
    const auto fill = [&](auto* out, size_t n) {
      using T = std::remove_reference_t<decltype(*out)>;
      for (size_t i = 0; i < n; ++i) out[i] = static_cast<T>((norm ? 1.0 : 0.0) + scale * random.normal(i));
    };
    if (t.dtype == tensor::Dtype::F64)
      fill(reinterpret_cast<double*>(t.bytes.host().data()), t.bytes.host().size() / 8);
    else
      fill(reinterpret_cast<float*>(t.bytes.host().data()), t.bytes.host().size() / 4);
  }
}

std::vector<ModelCase> model_cases() {
  const std::string moe = "[moe]\nnum_experts = 5\ntop_k = 2\nffn_hidden_size = 12\n";
  const std::string mla =
      "[model]\nattention = \"mla\"\nkv_lora_rank = 10\nqk_nope_head_dim = 6\nqk_rope_head_dim = 4\n"
      "v_head_dim = 7\n";
  const std::string gqa = "[model]\nnum_kv_heads = 2\nhead_dim = 6\n";
  return {
      {"GroupedQuery", gqa + moe},
      {"MultiHeadDense", "[model]\nhead_dim = 16\nffn_hidden_size = 24\n"},
      {"QkNormBiasPartialRotary",
       gqa +
           "qk_norm = true\nqkv_bias = true\nattn_out_bias = true\nrope_interleaved = true\n"
           "rotary_dim = 4\n" +
           moe},
      {"FullQkNorm", gqa + "qk_norm = true\nqk_norm_full = true\n" + moe},
      {"Latent", mla + moe},
      {"LatentCompressedQuery", mla + "q_lora_rank = 9\nrope_interleaved = true\n" + moe},
      {"LatentYarn", mla +
                         "rope_type = \"yarn\"\nrope_factor = 4.0\nrope_original_length = 8\n"
                         "rope_attention_factor = 1.14\nattention_scale = 0.4\n" +
                         moe},
      {"Window", gqa + "sliding_window = 4\nwindow_layers = [1, 0]\n" + moe},
      {"WindowOfOne", gqa + "sliding_window = 1\n" + moe},
      {"LatentWindow", mla + "sliding_window = 3\n" + moe},
      {"Sinks", gqa + "attention_sinks = true\n" + moe},
      {"SinksAndWindow", gqa + "attention_sinks = true\nsliding_window = 5\nwindow_layers = [0, 1]\n" + moe},
      {"Yarn", gqa +
                   "rope_type = \"yarn\"\nrope_factor = 4.0\nrope_original_length = 8\n"
                   "rope_attention_factor = 1.14\n" +
                   moe},
      {"SharedExperts", gqa + moe + "shared_ffn_hidden_size = 8\nshared_gate = true\nrouter_bias = true\n"},
      {"GroupsAndBias",
       gqa + "leading_dense_layers = 1\nffn_hidden_size = 20\n"
             "[moe]\nnum_experts = 8\ntop_k = 3\nffn_hidden_size = 12\nshared_ffn_hidden_size = 8\n"
             "score = \"sigmoid\"\nnum_groups = 4\ngroup_topk = 2\ngroup_score_topk = 2\n"
             "load_balancing = [\"bias\"]\nscaling_factor = 2.5\n"},
      {"CapacityIsForTraining", gqa + moe + "capacity_factor = 0.5\n"},
  };
}

config::Config case_config(const ModelCase& c, const std::string& dtype, int threads) {
  return config::resolve(config::parse(
      c.toml, {"model.dtype=" + dtype, "model.vocab_size=37", "model.hidden_size=16", "model.num_layers=2",
               "model.num_heads=4", "device.threads=" + std::to_string(threads), "train.loss_chunk=7"}));
}

std::vector<int32_t> random_tokens(int64_t count, int64_t vocab, uint64_t seed) {
  const base::RandomStream random(seed, base::RandomUse::Test, 1, 0);
  std::vector<int32_t> out;
  for (int64_t i = 0; i < count; ++i)
    out.push_back(static_cast<int32_t>(random.uniform(static_cast<uint64_t>(i)) * double(vocab)));
  return out;
}

Logits logits_of(NextToken& model, const std::vector<std::vector<std::vector<int32_t>>>& appends) {
  Logits out;
  model.clear();
  model.each_row = [&](int64_t b, int64_t position, std::span<const double> row) {
    EXPECT_TRUE(out.emplace(std::pair(b, position), std::vector<double>(row.begin(), row.end())).second);
  };
  for (const auto& tokens : appends) model.append(tokens);
  model.each_row = {};
  return out;
}

double largest_difference(const Logits& a, const Logits& b) {
  EXPECT_EQ(a.size(), b.size());
  double worst = 0;
  for (const auto& [where, row] : a) {
    const auto other = b.find(where);
    if (other == b.end()) {
      ADD_FAILURE() << "sequence " << where.first << " position " << where.second << " is missing";
      continue;
    }
    for (size_t i = 0; i < row.size(); ++i)
      if (!(std::abs(row[i] - other->second[i]) <= worst)) worst = std::abs(row[i] - other->second[i]);
  }
  return worst;
}

}  // namespace pleat::infer::testing
