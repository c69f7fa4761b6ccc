#include "model/decoder.h"

#include "base/checked.h"

namespace pleat::model {

using program::none;
using program::Op;
using program::r;
using program::u;
using program::w;

ValueId embedding_forward(Decoder& d, int mb) {
  d.b.at({mb, -1});
  const auto& m = d.config.model;
  const size_t i = size_t(mb);
  if (d.purpose == Purpose::Train && aux_coefficients(d.config).hf) {
    d.hf_counts[i] =
        d.activation("hf_counts", tensor::Dtype::I64, {d.config.moe.num_experts}, program::Owner::Routing);
    d.hf_tokens[i] = d.activation("hf_tokens", tensor::Dtype::I64, {1}, program::Owner::Routing);
  }
  d.cos_sin[i] = d.activation("cos_sin", {d.num_tokens, m.rotary_dim});
  const ValueId x = d.activation("embedded", {d.num_tokens, m.hidden_size});
  d.b.forward(Op::rope_table, {r(d.inputs[i].positions), r(d.inv_freq), w(d.cos_sin[i])},
              {{"scale", m.rope_attention_factor}});
  d.b.forward(Op::embedding, {r(d.inputs[i].tokens), r(d.embedding), w(x)});
  return x;
}

ValueId layers_forward(Decoder& d, int mb) {
  const auto& m = d.config.model;
  ValueId x = embedding_forward(d, mb);
  for (int layer = 0; layer < m.num_layers; ++layer) {
    x = m.attention == "mla" ? latent_attention_forward(d, mb, layer, x) : attention_forward(d, mb, layer, x);
    x = config::is_moe_layer(d.config, layer) ? moe_forward(d, mb, layer, x)
                                              : dense_mlp_forward(d, mb, layer, x);
  }
  return x;
}

void forward(Decoder& d, int mb) { head_forward(d, mb, layers_forward(d, mb)); }

void backward(Decoder& d, int mb) {
  ValueId dx = head_backward(d, mb);
  for (int layer = static_cast<int>(d.config.model.num_layers) - 1; layer >= 0; --layer) {
    dx = config::is_moe_layer(d.config, layer) ? moe_backward(d, mb, layer, dx)
                                               : dense_mlp_backward(d, mb, layer, dx);
    dx = d.config.model.attention == "mla" ? latent_attention_backward(d, mb, layer, dx)
                                           : attention_backward(d, mb, layer, dx);
  }
  d.b.at({mb, -1});
  d.b.wgrad(Op::embedding, {r(d.inputs[size_t(mb)].tokens), r(dx), d.b.acc(d.d_embedding)});
}

namespace {

program::AttrSet adamw_attrs(const config::Config& c, const Parameter& p) {
  const auto& o = c.optimizer;
  double decay = o.weight_decay, lr_mult = 1;
  if (p.parameter_class == ParameterClass::Norm && !o.decay_norms) decay = 0;
  if (p.is_bias && !o.decay_biases) decay = 0;
  if (p.parameter_class == ParameterClass::Embedding && !o.decay_embeddings) decay = 0;
  if (const auto group = o.groups.find(name_of(p.parameter_class)); group != o.groups.end()) {
    lr_mult = group->second.lr_mult;
    if (group->second.weight_decay >= 0) decay = group->second.weight_decay;
  }
  return {
      {"beta1", o.beta1}, {"beta2", o.beta2}, {"eps", o.eps}, {"weight_decay", decay}, {"lr_mult", lr_mult}};
}

}  // namespace

void update(Decoder& d) {
  // Every stage of the update carries its parameter's index as part.
  for (size_t i = 0; i < d.table.size(); ++i) {
    if (d.table[i].tied_to.empty()) continue;
    d.b.at({-1, -1, static_cast<int>(i)});
    const size_t owner = size_t(find_parameter(d.table, d.table[i].tied_to));
    d.b.wgrad(Op::tie_grad, {r(d.parameters[i].grad), u(d.parameters[owner].grad)});
  }
  constexpr int64_t kNormBlock = 65536;
  int64_t num_parts = 0;
  for (const Parameter& p : d.table)
    if (p.tied_to.empty()) num_parts += base::ceil_div(num_elements(p), kNormBlock);
  d.b.at({-1, -1});
  d.parts = d.b.value("norm_parts", tensor::Dtype::F64, {num_parts}, program::Owner::Workspace);
  int64_t begin = 0;
  for (size_t i = 0; i < d.table.size(); ++i) {
    if (!d.table[i].tied_to.empty()) continue;
    const int64_t parts = base::ceil_div(num_elements(d.table[i]), kNormBlock);
    d.b.at({-1, d.table[i].layer, static_cast<int>(i)});
    d.b.update(Op::grad_norm,
               {r(d.parameters[i].grad), w(d.b.rows(d.parts, begin, parts, fmt::format("[{}]", i)))});
    begin += parts;
  }
  d.b.at({-1, -1});
  d.b.update(Op::clip, {r(d.parts), r(d.loss), w(d.grad_scale), w(d.commit)},
             {{"clip", d.config.optimizer.clip}});
  for (size_t i = 0; i < d.table.size(); ++i) {
    if (!d.table[i].tied_to.empty()) continue;
    const ParameterValues& v = d.parameters[i];
    d.b.at({-1, d.table[i].layer, static_cast<int>(i)});
    d.b.update(
        Op::adamw,
        {r(v.grad), r(d.step.hyper), r(d.grad_scale), r(d.commit), u(v.weight), u(v.moment1), u(v.moment2)},
        adamw_attrs(d.config, d.table[i]));
  }
  for (int layer = 0; layer < d.config.model.num_layers; ++layer) {
    const LayerRouting& routing = d.routing[size_t(layer)];
    if (routing.expert_bias == kNoValue) continue;
    d.b.at({-1, layer});
    d.b.update(Op::bias_update, {r(routing.load), r(d.commit), u(routing.expert_bias)},
               {{"rate", d.config.moe.bias_update_rate}});
  }
}

}  // namespace pleat::model
