// Declares the values a program of this model starts from.
#include <cmath>

#include "base/checked.h"
#include "model/decoder.h"
#include "model/overflow.h"
#include "model/shard.h"

namespace pleat::model {
namespace {

namespace step = program::step;
using program::Life;
using program::Owner;
using tensor::Dtype;

struct WeightField {
  const char* suffix;
  ValueId LayerWeights::*field;
};
constexpr WeightField kWeightFields[] = {
    {"attn_norm.weight", &LayerWeights::attn_norm},
    {"attn.qkv.weight", &LayerWeights::qkv},
    {"attn.qkv.bias", &LayerWeights::qkv_bias},
    {"attn.q_norm.weight", &LayerWeights::q_norm},
    {"attn.k_norm.weight", &LayerWeights::k_norm},
    {"attn.out.weight", &LayerWeights::attn_out},
    {"attn.out.bias", &LayerWeights::attn_out_bias},
    {"mlp_norm.weight", &LayerWeights::mlp_norm},
    {"attn.sinks", &LayerWeights::sinks},
    {"attn.q_down.weight", &LayerWeights::q_down},
    {"attn.q_down_norm.weight", &LayerWeights::q_down_norm},
    {"attn.q_up.weight", &LayerWeights::q_up},
    {"attn.kv_norm.weight", &LayerWeights::kv_norm},
    {"attn.kv_up.weight", &LayerWeights::kv_up},
    {"experts.up.bias", &LayerWeights::expert_up_bias},
    {"experts.down.bias", &LayerWeights::expert_down_bias},
    {"mlp.up.weight", &LayerWeights::mlp_up},
    {"mlp.up.bias", &LayerWeights::mlp_up_bias},
    {"mlp.down.weight", &LayerWeights::mlp_down},
    {"mlp.down.bias", &LayerWeights::mlp_down_bias},
    {"router.weight", &LayerWeights::router},
    {"router.bias", &LayerWeights::router_bias},
    {"experts.up.weight", &LayerWeights::expert_up},
    {"experts.down.weight", &LayerWeights::expert_down},
    {"shared.up.weight", &LayerWeights::shared_up},
    {"shared.down.weight", &LayerWeights::shared_down},
    {"shared.gate.weight", &LayerWeights::shared_gate},
    {"mtp.embed_norm.weight", &LayerWeights::mtp_embed_norm},
    {"mtp.hidden_norm.weight", &LayerWeights::mtp_hidden_norm},
    {"mtp.embed_proj.weight", &LayerWeights::mtp_embed_proj},
    {"mtp.hidden_proj.weight", &LayerWeights::mtp_hidden_proj},
    {"mtp.final_norm.weight", &LayerWeights::mtp_final_norm},
};

// Which parameters this rank holds, and how much of each.
void place_parameters(Decoder& d) {
  d.parameters.resize(d.table.size());
  for (size_t i = 0; i < d.table.size(); ++i) {
    const Parameter& p = d.table[i];
    ParameterValues& v = d.parameters[i];
    v.here = holds(d.config, d.role, p);
    v.own = ownership(p, d.mesh);
  }
  d.buckets = make_buckets(d);
}

void declare_state(Decoder& d) {
  place_parameters(d);
  for (size_t i = 0; i < d.table.size(); ++i)
    if (d.table[i].tied_to.empty() && d.parameters[i].here)
      d.parameters[i].weight = d.b.value(value_name(d.table[i]), d.compute, local_shape(d.table[i], d.mesh),
                                         Owner::Weights, Life::Persistent);
  for (size_t i = 0; i < d.table.size(); ++i) {
    const Parameter& p = d.table[i];
    ParameterValues& v = d.parameters[i];
    if (!v.here) continue;
    if (!p.tied_to.empty()) {
      v.weight = d.parameters[static_cast<size_t>(find_parameter(d.table, p.tied_to))].weight;
      continue;
    }
    // One rank updates all of it, or each of a group its share.
    const std::vector<int64_t> shape =
        v.own.num_owners == 1 ? local_shape(p, d.mesh) : std::vector<int64_t>{v.own.share};
    const Optimizer optimizer = optimizer_of(d.config, p);
    v.update = optimizer.update;
    for (const StateSlot& s : optimizer.states)
      v.states.push_back(d.b.value(value_name(p, s.name), s.format, state_shape(s, shape), Owner::Optimizer,
                                   Life::Persistent));
  }
  d.routing.resize(static_cast<size_t>(config::num_all_layers(d.config)));
  if (balances_by(d.config, "bias"))
    for (int i = 0; i < config::num_all_layers(d.config); ++i)
      if (config::is_moe_layer(d.config, i) && d.holds_layer(i))
        d.routing[static_cast<size_t>(i)].expert_bias =
            d.b.value({fmt::format("layers.{}.router.expert_bias", i), -1, i}, Dtype::F32,
                      {d.config.moe.num_experts}, Owner::Routing, Life::Persistent);
  d.inv_freq = d.b.value("rope.inv_freq", Dtype::F64, {d.config.model.rotary_dim / 2}, Owner::Inputs,
                         Life::Persistent);
  if (d.mesh.world() > 1)
    d.coords = d.b.value("coords", Dtype::I64, {program::kNumGroups}, Owner::Inputs, Life::Persistent);
}

void declare_gradients(Decoder& d) {
  for (size_t i = 0; i < d.table.size(); ++i) {
    const Parameter& p = d.table[i];
    if (!d.parameters[i].here) continue;
    // A tied weight without its embedding has one gradient here, the head's.
    if (p.name == "embedding.weight" && !d.embeds()) continue;
    d.parameters[i].grad = d.b.value(value_name(p, ".grad"), gradient_format(d.config, p),
                                     local_shape(p, d.mesh), Owner::Gradients);
    if (!p.tied_to.empty() && !d.embeds())
      d.parameters[size_t(find_parameter(d.table, p.tied_to))].grad = d.parameters[i].grad;
  }
}

void assign_roles(Decoder& d) {
  d.weights.resize(static_cast<size_t>(config::num_all_layers(d.config)));
  d.grads.resize(d.weights.size());
  for (size_t i = 0; i < d.table.size(); ++i) {
    const Parameter& p = d.table[i];
    const ParameterValues& v = d.parameters[i];
    if (!v.here) continue;
    if (p.name == "embedding.weight") d.embedding = v.weight, d.d_embedding = v.grad;
    if (p.name == "final_norm.weight") d.final_norm = v.weight, d.d_final_norm = v.grad;
    if (p.name == "head.weight") d.head = v.weight, d.d_head = v.grad;
    if (p.layer < 0) continue;
    if (p.name.ends_with("attn.kv_down.weight")) {
      const int64_t rank = d.config.model.kv_lora_rank, rope = d.config.model.qk_rope_head_dim;
      const auto split = [&](ValueId whole, LayerWeights& out) {
        if (whole == kNoValue) return;
        out.kv_down = d.b.rows(whole, 0, rank, "[kv]");
        out.kv_down_rope = d.b.rows(whole, rank, rope, "[rope]");
      };
      split(v.weight, d.weights[static_cast<size_t>(p.layer)]);
      split(v.grad, d.grads[static_cast<size_t>(p.layer)]);
      continue;
    }
    for (const WeightField& role : kWeightFields)
      if (p.name == fmt::format("layers.{}.{}", p.layer, role.suffix)) {
        d.weights[static_cast<size_t>(p.layer)].*role.field = v.weight;
        d.grads[static_cast<size_t>(p.layer)].*role.field = v.grad;
      }
  }
}

void declare_inputs(Decoder& d, int num_microbatches) {
  d.step.rng = d.b.input(step::rng, {2});
  if (d.purpose == Purpose::Train) {
    d.step.norm = d.b.input(step::norm, {4});
    d.step.hyper = d.b.input(step::hyper, {4});
  }
  const int64_t own = d.num_tokens, t = d.attention_tokens, all = d.microbatch_tokens;
  for (int mb = 0; mb < num_microbatches; ++mb) {
    const auto input = [&](const auto& value, int64_t rows) { return d.b.input(value, {rows}, mb); };
    MicrobatchInputs& in = d.inputs.emplace_back();
    in.tokens = input(step::tokens, t);
    if (d.purpose != Purpose::Logits) {
      in.labels = input(step::labels, t);
      in.loss_mask = input(step::loss_mask, t);
    }
    in.valid = input(step::valid, own);
    in.positions = input(step::positions, t);
    in.doc_start = input(step::doc_start, all);
    in.token_index = input(step::token_index, own);
    if (d.mesh.pieces > 1) in.piece = input(step::piece, own);
    if (d.mesh.tp * d.mesh.cp > 1) {
      in.all_valid = input(step::all_valid, all);
      in.order = input(step::order, all);
      in.inverse_order = input(step::inverse_order, all);
      in.context_row = input(step::context_row, t);
      in.own_row = input(step::own_row, own);
    }
    if (d.mesh.cp > 1 && d.purpose == Purpose::Train && d.config.model.num_mtp_layers > 0) {
      in.all_tokens = input(step::all_tokens, all);
      in.all_labels = input(step::all_labels, all);
      in.all_loss_mask = input(step::all_loss_mask, all);
    }
  }
}

void declare_results(Decoder& d) {
  if (d.purpose != Purpose::Logits) d.loss = d.b.result(step::loss, {2});
  if (d.purpose == Purpose::Train) {
    d.grad_scale = d.b.result(step::grad_scale, {2});
    d.commit = d.b.result(step::commit, {1});
  }
  if (d.expert_rows < d.most_expert_rows && d.config.moe.overflow != "drop")
    d.overflow = d.b.result(step::overflow, {config::num_all_layers(d.config)});
  const AuxCoefficients aux = aux_coefficients(d.config);
  for (size_t k = 0; k < d.mtp.size(); ++k)
    d.mtp[k].loss =
        d.b.result(step::mtp_loss, {2}, static_cast<int>(d.config.model.num_layers) + static_cast<int>(k));
  // Layers of multi-token prediction run in training only.
  const int64_t num_layers =
      d.purpose == Purpose::Train ? config::num_all_layers(d.config) : d.config.model.num_layers;
  for (int i = 0; i < num_layers; ++i) {
    if (!config::is_moe_layer(d.config, i) || !d.holds_layer(i)) continue;
    LayerRouting& r = d.routing[static_cast<size_t>(i)];
    const auto name = [&](const char* what) { return program::tagged(what, -1, i); };
    r.load = d.b.result(step::load, {d.config.moe.num_experts}, i);
    r.stats = d.b.result(step::router_stats, {4}, i);
    r.dropped = d.b.result(step::dropped, {1}, i);
    if (d.overflow != kNoValue) r.overflow = d.b.rows(d.overflow, i, 1, fmt::format("[{}]", i));
    if (d.purpose != Purpose::Train) continue;
    if (aux.any()) r.losses = d.b.result(step::aux_losses, {4}, i);
    if (aux.global != 0) {
      r.global_counts =
          d.b.value(name("global_counts"), Dtype::I64, {d.config.moe.num_experts}, Owner::Routing);
      r.global_tokens = d.b.value(name("global_tokens"), Dtype::I64, {1}, Owner::Routing);
    }
  }
}

}  // namespace

program::ValueName Decoder::here(const std::string& what) const {
  return program::tagged(what, b.place().microbatch, b.place().layer);
}

ValueId Decoder::activation(const std::string& what, std::vector<int64_t> shape) {
  return b.value(here(what), compute, std::move(shape), Owner::Activations);
}

ValueId Decoder::statistic(const std::string& what, std::vector<int64_t> shape) {
  return b.value(here(what), wide, std::move(shape), Owner::Activations);
}

ValueId Decoder::activation(const std::string& what, tensor::Dtype dtype, std::vector<int64_t> shape,
                            Owner owner) {
  return b.value(here(what), dtype, std::move(shape), owner);
}

ValueId Decoder::routed(const std::string& what, tensor::Dtype dtype, std::vector<int64_t> shape, Owner owner,
                        int64_t most) {
  // Balanced: every expert rank of a group gets its part of all ranks' choices. Rows of padding are computed on.
  const int64_t balanced = num_tokens * config.moe.top_k * mesh.etp;
  const int64_t expected = config.moe.pad_to_capacity ? shape[0] : std::min(balanced, shape[0]);
  return b.routed(here(what), dtype, std::move(shape), owner, expected, most);
}

bool balances_by(const config::Config& config, const std::string& type) {
  if (config.moe.num_experts == 0) return false;
  for (const std::string& t : config.moe.load_balancing)
    if (t == type) return true;
  return false;
}

AuxCoefficients aux_coefficients(const config::Config& config) {
  AuxCoefficients out;
  if (config.moe.num_experts == 0) return out;
  size_t next = 0;
  for (const std::string& type : config.moe.load_balancing) {
    double* slot = type == "aux"          ? &out.micro
                   : type == "seq_aux"    ? &out.sequence
                   : type == "global_aux" ? &out.global
                                          : nullptr;
    if (slot) *slot = config.moe.aux_coef.at(next++);
  }
  out.z = config.moe.z_coef;
  out.hf = config.moe.aux_convention == "hf";
  return out;
}

int64_t expert_capacity(const config::Config& config, int64_t num_tokens) {
  const auto& e = config.moe;
  if (e.num_experts == 0 || e.capacity_factor <= 0) return 0;
  const double tokens = static_cast<double>(num_tokens);
  return static_cast<int64_t>(std::ceil(tokens * static_cast<double>(e.top_k) /
                                        static_cast<double>(e.num_experts) * e.capacity_factor));
}

namespace {

// Rows this rank's tokens may take, and rows its experts may get from all ranks of its dispatch group.
void set_rows(Decoder& d) {
  const auto& e = d.config.moe;
  if (e.num_experts == 0) return;
  const int64_t capacity = expert_capacity(d.config, d.num_tokens / d.mesh.pieces) * d.mesh.pieces;
  const int64_t dropless = d.num_tokens * e.top_k;
  d.routed_rows = capacity == 0       ? dropless
                  : e.pad_to_capacity ? capacity * e.num_experts
                                      : std::min(dropless, capacity * e.num_experts);
  // A forward alone keeps no rows: it has room for all there could be.
  const ExpertRows rows = expert_rows(d.config, d.mesh);
  d.expert_rows = d.purpose == Purpose::Train ? rows.budget : rows.maximum;
  d.most_expert_rows = rows.maximum;
}

}  // namespace

Decoder declare(const config::Config& config, const std::vector<Parameter>& table, Builder& b,
                const DeclareOptions& options) {
  const Dtype compute = weight_format(config);
  const bool wide = compute == Dtype::F64 || config.moe.router_dtype == "float64";
  Decoder d(config, table, b);
  d.purpose = options.purpose;
  d.compute = compute;
  d.wide = wide_format(config);
  d.router = wide ? Dtype::F64 : Dtype::F32;
  d.mesh = options.mesh;
  d.role = options.role ? *options.role : whole_model(config.model.num_layers);
  d.microbatch_tokens = config.train.micro_batch * config.train.seq_len;
  d.attention_tokens = d.microbatch_tokens / d.mesh.cp;
  d.num_tokens = d.attention_tokens / d.mesh.tp;
  d.routing_use = options.routing_use;
  set_rows(d);
  if (config.moe.shared_ffn_hidden_size > 0 && d.purpose != Purpose::Gather)
    d.side_lane = b.lane("side", "compute");
  if (d.mesh.cp > 1 && d.mesh.context == ContextKind::Ring && d.purpose != Purpose::Gather)
    d.ring_lane = b.lane("ring", "links");
  declare_state(d);
  if (d.purpose == Purpose::Train || d.purpose == Purpose::Gather) gather_weights(d);
  if (d.purpose == Purpose::Gather) return d;
  if (d.purpose == Purpose::Train) declare_gradients(d);
  assign_roles(d);
  declare_inputs(d, options.num_microbatches);
  const size_t n = static_cast<size_t>(options.num_microbatches);
  if (d.purpose == Purpose::Train && d.role.has_head())
    d.mtp.resize(static_cast<size_t>(config.model.num_mtp_layers));
  for (MtpDepth& depth : d.mtp) depth.saved.resize(n);
  declare_results(d);
  for (auto* list : {&d.cos_sin, &d.final_x, &d.final_rstd, &d.final_normed, &d.d_final_normed, &d.hf_counts,
                     &d.hf_tokens})
    list->assign(n, kNoValue);
  for (auto* list : {&d.chunk_in, &d.chunk_out, &d.d_chunk_in})
    list->assign(d.role.chunks.size(), std::vector<ValueId>(n, kNoValue));
  d.saved.assign(n, std::vector<Saved>(static_cast<size_t>(config::num_all_layers(config))));
  if (d.overflow != kNoValue) {
    b.at({-1, -1, 2});
    b.forward(program::Op::zero, {program::w(d.overflow)});
  }
  return d;
}

}  // namespace pleat::model
