#include "verify/shrink.h"

#include <algorithm>
#include <numeric>

#include "model/parameters.h"
#include "model/shard.h"
#include "schedule/ranks.h"

namespace pleat::verify {
namespace {

// Narrow numbers go 8 at a time.
void shrink_attention(config::ModelConfig& m, const model::Mesh& mesh, bool by_eight) {
  const int64_t ratio = std::clamp<int64_t>(m.num_kv_heads > 0 ? m.num_heads / m.num_kv_heads : 1, 1, 2);
  const int64_t heads = mesh.tp * (mesh.context == model::ContextKind::AllToAll ? mesh.cp : 1);
  const bool partly_rotated = m.rotary_dim > 0 && m.rotary_dim < m.head_dim;
  m.num_kv_heads = m.attention == "mla" ? 0 : heads;
  m.num_heads = std::max<int64_t>(2, heads * ratio);
  if (m.num_heads % heads != 0) m.num_heads = heads * 2;
  if (m.attention != "mla" && m.num_heads % m.num_kv_heads != 0) m.num_kv_heads = 1;
  m.attention_scale = 0;
  if (m.attention == "mla") {
    m.q_lora_rank = m.q_lora_rank > 0 ? (by_eight ? 16 : 12) : 0;
    m.kv_lora_rank = by_eight ? 16 : 8;
    m.qk_nope_head_dim = 8;
    m.qk_rope_head_dim = by_eight ? 8 : 4;
    m.v_head_dim = by_eight ? 8 : 6;
    m.head_dim = m.rotary_dim = 0;
  } else {
    m.head_dim = 8;
    m.rotary_dim = partly_rotated ? 4 : 0;
  }
  if (m.sliding_window > 0) m.sliding_window = 5;
}

// A few layers of each kind, as many as there are stages.
void shrink_layers(config::Config& c, const model::Mesh& mesh, const std::string& pipeline_layout) {
  config::ModelConfig& m = c.model;
  if (!pipeline_layout.empty()) return;  // it names every layer
  const int64_t stages = mesh.pp * mesh.vpp;
  const bool mixed = m.leading_dense_layers > 0 || m.moe_layer_freq.size() > 1 || m.moe_layer_freq[0] > 1;
  const int64_t layers = std::max<int64_t>(stages, mixed ? 2 : 1);
  if (m.moe_layer_freq.size() > 1) {
    m.moe_layer_freq.assign(static_cast<size_t>(layers), 1);
    m.moe_layer_freq[0] = 0;
  } else {
    m.moe_layer_freq[0] = std::min<int64_t>(m.moe_layer_freq[0], 2);
  }
  m.leading_dense_layers = std::min<int64_t>(m.leading_dense_layers, 1);
  m.num_layers = layers;
  m.num_mtp_layers = std::min<int64_t>(m.num_mtp_layers, 2);
}

void shrink_experts(config::MoeConfig& e, const model::Mesh& mesh) {
  if (e.num_experts == 0) return;
  e.top_k = std::min<int64_t>(e.top_k, 4);
  int64_t experts = std::max<int64_t>(2 * mesh.ep, e.top_k + 1);
  if (e.num_groups > 0) {
    e.num_groups = 2;
    e.group_topk = 1;
    e.group_score_topk = std::min<int64_t>(e.group_score_topk, 2);
    experts = std::max<int64_t>(experts, 2 * e.top_k);
  }
  const int64_t unit = std::lcm(mesh.ep, int64_t{2});
  e.num_experts = (experts + unit - 1) / unit * unit;
  e.ffn_hidden_size = 8 * mesh.etp;
  if (e.shared_ffn_hidden_size > 0) e.shared_ffn_hidden_size = 8 * mesh.tp;
}

// The token without a gradient stays with the tensor rank that holds its row, in the same row where there is one.
// An `asked_vocab` of 0 is not known yet.
void shrink_padding(config::ModelConfig& m, int64_t asked_vocab, int64_t tp) {
  if (m.padding_token < 0) return;
  const int64_t rows = (m.vocab_size + tp - 1) / tp, asked_rows = (asked_vocab + tp - 1) / tp;
  const int64_t rank = asked_rows > 0 ? m.padding_token / asked_rows : 0;
  const int64_t row = std::min(m.padding_token - rank * asked_rows, rows - 1);
  m.padding_token = std::min(rank * rows + row, m.vocab_size - 1);
}

void set_precision(config::Config& c, SmallCopy copy) {
  // A code turns with its number's last place: a layout that rounds otherwise would be far away for no fault of its own.
  c.precision = {};
  if (copy != SmallCopy::Asked) c.device.kind = "cpu";
  if (copy == SmallCopy::Float64) {
    c.model.dtype = "float64";  // which the CPU alone has
    if (c.moe.num_experts > 0) c.moe.router_dtype = "float64";
    // Everything is float64. What these keys asked for is not compared, and is said to be gone.
    const config::OptimizerConfig defaults;
    c.optimizer.grad_dtype = defaults.grad_dtype;
    for (auto& [name, group] : c.optimizer.groups)
      group.grad_dtype = config::OptimizerConfig::GroupConfig().grad_dtype;
    c.optimizer.moment_dtype = defaults.moment_dtype;
    c.optimizer.moment1_dtype = defaults.moment1_dtype;
    c.optimizer.moment2_dtype = defaults.moment2_dtype;
    c.optimizer.master = defaults.master;
  } else if (copy == SmallCopy::AskedOnCpu && c.model.dtype == "bfloat16") {
    c.model.dtype = "float32";
    c.optimizer.master = config::OptimizerConfig().master;
    // In a float32 model the two own keys alone decide.
    for (std::string* own : {&c.optimizer.moment1_dtype, &c.optimizer.moment2_dtype})
      if (*own == "unset" && c.optimizer.moment_dtype != "float32") *own = c.optimizer.moment_dtype;
  }
}

// Blocks of codes stay where every rank of the small copy holds whole ones.
void keep_whole_blocks(config::Config& c, const model::Mesh& mesh) {
  for (const model::Parameter& p : model::make_parameters(config::resolve(c))) {
    if (p.unit == 1 || model::uneven_cut(p, mesh, p.unit).every == 0) continue;
    for (std::string* type :
         {&c.optimizer.moment_dtype, &c.optimizer.moment1_dtype, &c.optimizer.moment2_dtype})
      if (*type == "block8") *type = type == &c.optimizer.moment_dtype ? "float32" : "unset";
    return;
  }
}

std::vector<model::Role> small_roles(config::Config c, const config::Config& asked, const model::Mesh& mesh) {
  if (mesh.pp == 1) return {};
  c.parallel.pp = mesh.pp, c.parallel.vpp = mesh.vpp;
  c.parallel.pipeline_layout = asked.parallel.pipeline_layout;
  return schedule::roles_of(c);
}

}  // namespace

Shrunk shrink(const config::Config& asked, const model::Mesh& mesh, SmallCopy copy) {
  const bool narrow = copy != SmallCopy::Float64;
  config::Config c = asked;
  c.parallel = {};
  set_precision(c, copy);
  c.model.vocab_size = 16 * mesh.tp + (!narrow && asked.model.vocab_size % mesh.tp != 0);
  shrink_padding(c.model, asked.model.vocab_size, mesh.tp);
  c.model.hidden_size = 32;
  c.model.init_std = std::max(c.model.init_std, 0.05);
  if (c.model.ffn_hidden_size > 0) c.model.ffn_hidden_size = (narrow ? 16 : 12) * mesh.tp;
  shrink_attention(c.model, mesh, narrow);
  shrink_layers(c, mesh, asked.parallel.pipeline_layout);
  shrink_experts(c.moe, mesh);
  // Chunks of the sequence of odd length, documents that cross them. Roundings are judged by many tokens.
  c.train.seq_len = 2 * mesh.cp * std::max<int64_t>(mesh.tp, 1) * (narrow ? 9 : 3);
  c.train.micro_batch = std::min<int64_t>(c.train.micro_batch, 2);
  const int64_t own = std::clamp<int64_t>(asked.train.num_microbatches / mesh.dp, 1, 4);
  c.train.num_microbatches = mesh.dp * (mesh.vpp > 1 ? std::max(own / mesh.pp, int64_t{1}) * mesh.pp : own);
  if (c.train.order == "loop") c.train.order = "1f1b";  // the same stages, each looked at by itself
  c.train.loss_chunk = 7;
  c.train.steps = std::max<int64_t>(c.train.steps, 3);
  c.optimizer.warmup_steps = 0;
  c.optimizer.update_at = config::OptimizerConfig().update_at;  // a matter of one rank
  c.optimizer.clip = std::min(c.optimizer.clip > 0 ? c.optimizer.clip : 1.0, 0.3);
  c.optimizer.lr = 1e-3;
  c.recompute.layers = "all";
  if (!c.offload.modules.empty()) {
    c.offload.layers = "all";
    c.offload.fraction = 1;
    c.offload.keep_last = c.offload.min_bytes = 0;
  }
  keep_whole_blocks(c, mesh);
  Shrunk out;
  // The layout is not changed: mesh and roles have it, but for the order of its axes.
  config::Config laid_out = c;
  laid_out.parallel = asked.parallel;
  laid_out.parallel.order = c.parallel.order;
  out.changes = config::differences(asked, laid_out);
  out.config = config::resolve(c);
  out.roles = small_roles(out.config, asked, mesh);
  return out;
}

}  // namespace pleat::verify
