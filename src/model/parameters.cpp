#include "model/parameters.h"

#include <algorithm>
#include <cmath>

#include "base/checked.h"
#include "model/state.h"

namespace pleat::model {
namespace {

constexpr Axis kDenseReplicas[] = {Axis::Data, Axis::Context};

class Table {
 public:
  explicit Table(const config::Config& config) : config_(config) {}

  // A tensor of the attention mesh: cut over tensor ranks along `shard_dim` (-1: whole on every tensor rank).
  Parameter& dense(std::string name, std::vector<int64_t> shape, ParameterClass c, int layer,
                   int64_t shard_dim) {
    Parameter& p = add(std::move(name), std::move(shape), c, layer);
    p.replicated.assign(std::begin(kDenseReplicas), std::end(kDenseReplicas));
    p.gradient_partial = p.replicated;
    if (shard_dim >= 0) {
      p.sharded.push_back({Axis::Tensor, shard_dim});
    } else {
      // With sequence parallelism each tensor rank sees its own tokens, so the gradient is partial there too.
      p.replicated.push_back(Axis::Tensor);
      p.gradient_partial.push_back(Axis::Tensor);
    }
    return p;
  }

  // A tensor of the expert mesh: dimension 0 over expert ranks, `shard_dim` over expert-tensor ranks.
  Parameter& expert(std::string name, std::vector<int64_t> shape, int layer, int64_t shard_dim) {
    Parameter& p = add(std::move(name), std::move(shape), ParameterClass::Experts, layer);
    p.sharded = {{Axis::Expert, 0}, {Axis::ExpertTensor, shard_dim}};
    p.replicated = {Axis::ExpertData};
    p.gradient_partial = {Axis::ExpertData};
    return p;
  }

  Parameter& expert_bias(std::string name, std::vector<int64_t> shape, int layer) {
    Parameter& p = add(std::move(name), std::move(shape), ParameterClass::Experts, layer);
    p.sharded = {{Axis::Expert, 0}};
    p.replicated = {Axis::ExpertData};
    p.gradient_partial = {Axis::ExpertData};
    p.init = Init::Zeros;
    p.is_bias = true;
    return p;
  }

  Parameter& norm(std::string name, int64_t width, ParameterClass c, int layer) {
    Parameter& p = dense(std::move(name), {width}, c, layer, -1);
    p.init = Init::Ones;
    return p;
  }

  Parameter& bias(std::string name, int64_t width, ParameterClass c, int layer, int64_t shard_dim) {
    Parameter& p = dense(std::move(name), {width}, c, layer, shard_dim);
    p.init = Init::Zeros;
    p.is_bias = true;
    return p;
  }

  std::vector<Parameter> take() {
    for (Parameter& p : table_) p.unit = unit_of(optimizer_of(config_, p));
    return std::move(table_);
  }

 private:
  Parameter& add(std::string name, std::vector<int64_t> shape, ParameterClass c, int layer) {
    Parameter p;
    p.name = std::move(name);
    p.shape = std::move(shape);
    p.parameter_class = c;
    p.layer = layer;
    p.init_std = config_.model.init_std;
    const std::vector<std::string>& frozen = config_.optimizer.freeze;
    p.frozen = std::find(frozen.begin(), frozen.end(), name_of(c)) != frozen.end();
    table_.push_back(std::move(p));
    return table_.back();
  }

  const config::Config& config_;
  std::vector<Parameter> table_;
};

std::vector<Block> halves(int64_t dim, int64_t width) {
  return {{"gate", dim, 0, width}, {"up", dim, width, width}};
}

}  // namespace

const char* name_of(ParameterClass c) {
  static constexpr const char* names[] = {"embedding", "attention",      "norm", "mlp", "router",
                                          "experts",   "shared_experts", "head", "mtp"};
  return names[static_cast<size_t>(c)];
}

int64_t num_elements(const Parameter& parameter) {
  int64_t n = 1;
  for (int64_t d : parameter.shape) n = base::checked_mul(n, d, parameter.name.c_str());
  return n;
}

std::vector<Parameter> make_parameters(const config::Config& config) {
  using C = ParameterClass;
  const auto& m = config.model;
  const auto& e = config.moe;
  const int64_t h = m.hidden_size, d = m.head_dim, q = m.num_heads * d, kv = m.num_kv_heads * d;
  // Matrices that write into the residual stream start smaller, so that its size does not grow with depth.
  const double residual_std =
      m.scale_residual_init ? m.init_std / std::sqrt(2.0 * static_cast<double>(m.num_layers)) : m.init_std;

  Table t(config);
  t.dense("embedding.weight", {m.vocab_size, h}, C::Embedding, -1, 0).pads = true;
  for (int i = 0; i < config::num_all_layers(config); ++i) {
    const std::string at = fmt::format("layers.{}.", i);
    if (i >= m.num_layers) {
      t.norm(at + "mtp.embed_norm.weight", h, C::Norm, i);
      t.norm(at + "mtp.hidden_norm.weight", h, C::Norm, i);
      t.dense(at + "mtp.embed_proj.weight", {h, h}, C::Mtp, i, -1);
      t.dense(at + "mtp.hidden_proj.weight", {h, h}, C::Mtp, i, -1);
      t.norm(at + "mtp.final_norm.weight", h, C::Norm, i);
    }
    t.norm(at + "attn_norm.weight", h, C::Norm, i);
    const bool latent = m.attention == "mla";
    if (latent) {
      if (m.q_lora_rank > 0) {
        t.dense(at + "attn.q_down.weight", {m.q_lora_rank, h}, C::Attention, i, -1);
        t.norm(at + "attn.q_down_norm.weight", m.q_lora_rank, C::Norm, i);
      }
      t.dense(at + "attn.q_up.weight", {q, m.q_lora_rank > 0 ? m.q_lora_rank : h}, C::Attention, i, 0);
      t.dense(at + "attn.kv_down.weight", {m.kv_lora_rank + m.qk_rope_head_dim, h}, C::Attention, i, -1)
          .blocks = {{"kv", 0, 0, m.kv_lora_rank}, {"rope", 0, m.kv_lora_rank, m.qk_rope_head_dim}};
      t.norm(at + "attn.kv_norm.weight", m.kv_lora_rank, C::Norm, i);
      t.dense(at + "attn.kv_up.weight", {m.num_heads * (m.qk_nope_head_dim + m.v_head_dim), m.kv_lora_rank},
              C::Attention, i, 0);
    } else {
      const std::vector<Block> qkv = {{"q", 0, 0, q}, {"k", 0, q, kv}, {"v", 0, q + kv, kv}};
      t.dense(at + "attn.qkv.weight", {q + 2 * kv, h}, C::Attention, i, 0).blocks = qkv;
      if (m.qkv_bias) t.bias(at + "attn.qkv.bias", q + 2 * kv, C::Attention, i, 0).blocks = qkv;
      if (m.qk_norm) {
        t.norm(at + "attn.q_norm.weight", m.qk_norm_full ? q : d, C::Norm, i);
        t.norm(at + "attn.k_norm.weight", m.qk_norm_full ? kv : d, C::Norm, i);
      }
      if (m.attention_sinks) t.dense(at + "attn.sinks", {m.num_heads}, C::Attention, i, 0).is_bias = true;
    }
    t.dense(at + "attn.out.weight", {h, latent ? m.num_heads * m.v_head_dim : q}, C::Attention, i, 1)
        .init_std = residual_std;
    if (m.attn_out_bias) t.bias(at + "attn.out.bias", h, C::Attention, i, -1);
    t.norm(at + "mlp_norm.weight", h, C::Norm, i);
    if (!config::is_moe_layer(config, i)) {
      const int64_t f = m.ffn_hidden_size;
      t.dense(at + "mlp.up.weight", {2 * f, h}, C::Mlp, i, 0).blocks = halves(0, f);
      if (m.mlp_bias) t.bias(at + "mlp.up.bias", 2 * f, C::Mlp, i, 0).blocks = halves(0, f);
      t.dense(at + "mlp.down.weight", {h, f}, C::Mlp, i, 1).init_std = residual_std;
      if (m.mlp_bias) t.bias(at + "mlp.down.bias", h, C::Mlp, i, -1);
      continue;
    }
    t.dense(at + "router.weight", {e.num_experts, h}, C::Router, i, -1);
    if (e.router_bias) t.bias(at + "router.bias", e.num_experts, C::Router, i, -1);
    t.expert(at + "experts.up.weight", {e.num_experts, 2 * e.ffn_hidden_size, h}, i, 1).blocks =
        halves(1, e.ffn_hidden_size);
    t.expert(at + "experts.down.weight", {e.num_experts, h, e.ffn_hidden_size}, i, 2).init_std = residual_std;
    if (e.expert_bias) {
      t.expert_bias(at + "experts.up.bias", {e.num_experts, 2 * e.ffn_hidden_size}, i).blocks =
          halves(1, e.ffn_hidden_size);
      t.expert_bias(at + "experts.down.bias", {e.num_experts, h}, i);
    }
    if (const int64_t f = e.shared_ffn_hidden_size; f > 0) {
      t.dense(at + "shared.up.weight", {2 * f, h}, C::SharedExperts, i, 0).blocks = halves(0, f);
      t.dense(at + "shared.down.weight", {h, f}, C::SharedExperts, i, 1).init_std = residual_std;
      if (e.shared_gate) t.dense(at + "shared.gate.weight", {h}, C::SharedExperts, i, -1);
    }
  }
  t.norm("final_norm.weight", h, C::Norm, -1);
  Parameter& head = t.dense("head.weight", {m.vocab_size, h}, C::Head, -1, 0);
  head.pads = true;
  if (m.tie_embeddings) head.tied_to = "embedding.weight";
  return t.take();
}

int find_parameter(const std::vector<Parameter>& table, const std::string& name) {
  for (size_t i = 0; i < table.size(); ++i)
    if (table[i].name == name) return static_cast<int>(i);
  return -1;
}

ParameterCount count_parameters(const config::Config& config, const std::vector<Parameter>& table) {
  ParameterCount count;
  for (const Parameter& p : table) {
    if (!p.tied_to.empty()) continue;
    const int64_t n = num_elements(p);
    if (p.layer >= config.model.num_layers) {
      count.mtp += n;
      continue;
    }
    count.total += n;
    count.active +=
        p.parameter_class == ParameterClass::Experts ? n / config.moe.num_experts * config.moe.top_k : n;
  }
  return count;
}

}  // namespace pleat::model
