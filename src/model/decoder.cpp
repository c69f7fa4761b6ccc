#include "base/checked.h"
#include "base/error.h"
#include "model/exchange.h"
#include "model/words.h"

namespace pleat::model {
namespace {

constexpr int64_t kNormBlock = 65536;

program::AttrSet vocabulary_part() { return {{"group", double(static_cast<int>(Group::Tensor))}}; }

// The table of angles, once per microbatch.
void rope_forward(Decoder& d, int mb) {
  const size_t i = size_t(mb);
  if (d.cos_sin[i] != kNoValue) return;
  d.cos_sin[i] = d.statistic("cos_sin", {d.attention_tokens, d.config.model.rotary_dim});
  d.b.forward(Op::rope_table, {r(d.inputs[i].positions), r(d.inv_freq), w(d.cos_sin[i])},
              {{"scale", d.config.model.rope_attention_factor}});
}

}  // namespace

ValueId embed(Decoder& d, ValueId tokens, const std::string& name) {
  const bool cut = d.mesh.tp > 1;
  const ValueId x = d.activation(name, {d.attention_tokens, d.config.model.hidden_size});
  d.b.forward(Op::embedding, {r(tokens), r(d.embedding), cut ? r(d.coords) : none(), w(x)},
              cut ? vocabulary_part() : program::AttrSet{});
  return scatter_rows(d, Op::embed_scatter, Phase::Forward, Group::Tensor, x, name + "_own");
}

void embed_backward(Decoder& d, ValueId tokens, ValueId dx, const std::string& name) {
  const bool cut = d.mesh.tp > 1;
  const ValueId all =
      gather_rows(d, Op::embed_gather, Phase::BackwardInput, Group::Tensor, dx, name + "_all");
  program::AttrSet attrs = cut ? vocabulary_part() : program::AttrSet{};
  if (d.config.model.padding_token >= 0)
    attrs.push_back({"padding", static_cast<double>(d.config.model.padding_token)});
  d.b.wgrad(Op::embedding, {r(tokens), r(all), cut ? r(d.coords) : none(), d.b.acc(d.d_embedding)}, attrs);
}

ValueId layer_forward(Decoder& d, int mb, int layer, ValueId x) {
  x = d.config.model.attention == "mla" ? latent_attention_forward(d, mb, layer, x)
                                        : attention_forward(d, mb, layer, x);
  return config::is_moe_layer(d.config, layer) ? moe_forward(d, mb, layer, x)
                                               : dense_mlp_forward(d, mb, layer, x);
}

ValueId layer_backward(Decoder& d, int mb, int layer, ValueId dy) {
  dy = config::is_moe_layer(d.config, layer) ? moe_backward(d, mb, layer, dy)
                                             : dense_mlp_backward(d, mb, layer, dy);
  return d.config.model.attention == "mla" ? latent_attention_backward(d, mb, layer, dy)
                                           : attention_backward(d, mb, layer, dy);
}

ValueId embedding_forward(Decoder& d, int mb) {
  d.b.at({mb, -1});
  rope_forward(d, mb);
  return embed(d, d.inputs[size_t(mb)].tokens, "embedded");
}

ValueId layers_forward(Decoder& d, int mb, int chunk) {
  d.b.at({mb, -1});
  const size_t i = size_t(mb), c = size_t(chunk);
  const bool hf = d.purpose == Purpose::Train && aux_coefficients(d.config).hf;
  if (hf && d.hf_counts[i] == kNoValue) {
    d.hf_counts[i] =
        d.activation("hf_counts", tensor::Dtype::I64, {d.config.moe.num_experts}, program::Owner::Routing);
    d.hf_tokens[i] = d.activation("hf_tokens", tensor::Dtype::I64, {1}, program::Owner::Routing);
  }
  rope_forward(d, mb);
  ValueId x = d.role.chunks[c].embedding ? embedding_forward(d, mb) : d.chunk_in[c][i];
  for (const int layer : d.role.chunks[c].layers) x = layer_forward(d, mb, layer, x);
  d.chunk_out[c][i] = x;
  if (hf && d.mesh.size(Group::TensorContext) > 1) {
    d.b.at({mb, -1});
    d.b.exchange(Op::count_reduce, Phase::Forward, Group::TensorContext, {u(d.hf_counts[i])});
    d.b.at({mb, -1, 1});
    d.b.exchange(Op::count_reduce, Phase::Forward, Group::TensorContext, {u(d.hf_tokens[i])});
  }
  return x;
}

void forward(Decoder& d, int mb, int chunk) {
  if (!d.mtp.empty() && d.mtp.front().norm == kNoValue) mtp_prepare(d);
  const ValueId x = layers_forward(d, mb, chunk);
  if (!d.role.chunks[size_t(chunk)].head) return;
  head_forward(d, mb, x);
  mtp_forward(d, mb);
}

void backward(Decoder& d, int mb, int chunk, ValueId d_out) {
  const Chunk& c = d.role.chunks[size_t(chunk)];
  // A chunk's microbatches go back in their order: behind the last one its gradients are complete.
  const bool last = size_t(mb) + 1 == d.inputs.size();
  const auto ready = [&](int layer) {
    d.b.at({mb, -1});
    if (last) gradients_ready(d, layer);
  };
  if (c.head) mtp_backward(d, mb);
  ValueId dx = c.head ? head_backward(d, mb) : d_out;
  if (c.head) {
    for (int64_t layer = config::num_all_layers(d.config); layer-- > d.config.model.num_layers;)
      ready(static_cast<int>(layer));
    ready(-1);
  }
  for (size_t i = c.layers.size(); i-- > 0;) {
    dx = layer_backward(d, mb, c.layers[i], dx);
    ready(c.layers[i]);
  }
  d.b.at({mb, -1});
  if (c.embedding) {
    embed_backward(d, d.inputs[size_t(mb)].tokens, dx, "d_embedded");
  } else {
    d.d_chunk_in[size_t(chunk)][size_t(mb)] = dx;
  }
}

void finish_counts(Decoder& d) {
  if (d.mesh.size(Group::TensorDataContext) == 1) return;
  for (size_t layer = 0; layer < d.routing.size(); ++layer) {
    const LayerRouting& routing = d.routing[layer];
    if (routing.global_counts == kNoValue) continue;
    d.b.at({-1, static_cast<int>(layer)});
    d.b.exchange(Op::count_reduce, Phase::Forward, Group::TensorDataContext, {u(routing.global_counts)});
    d.b.at({-1, static_cast<int>(layer), 1});
    d.b.exchange(Op::count_reduce, Phase::Forward, Group::TensorDataContext, {u(routing.global_tokens)});
  }
}

namespace {

// Which random numbers are the parameter's: the same wherever it stands in a model (FNV-1a of its name).
uint32_t stream_of(const std::string& name) {
  uint32_t hash = 2166136261u;
  for (const char letter : name) hash = (hash ^ static_cast<unsigned char>(letter)) * 16777619u;
  return hash;
}

program::AttrSet adamw_attrs(const config::Config& c, const Parameter& p) {
  const auto& o = c.optimizer;
  double decay = o.weight_decay, lr_mult = 1;
  if (const auto group = o.groups.find(name_of(p.parameter_class)); group != o.groups.end()) {
    lr_mult = group->second.lr_mult;
    if (group->second.weight_decay >= 0) decay = group->second.weight_decay;
  }
  // Last: a group says how much, the switches whether at all.
  if (p.parameter_class == ParameterClass::Norm && !o.decay_norms) decay = 0;
  if (p.is_bias && !o.decay_biases) decay = 0;
  if (p.parameter_class == ParameterClass::Embedding && !o.decay_embeddings) decay = 0;
  return {
      {"beta1", o.beta1}, {"beta2", o.beta2}, {"eps", o.eps}, {"weight_decay", decay}, {"lr_mult", lr_mult}};
}

}  // namespace

namespace {

// The loss of the whole step on every rank: made where the head is, summed over the ranks that hold other
// tokens, then handed along the pipeline, where the others add zero.
void sum_loss(Decoder& d) {
  d.b.at({-1, -1});
  if (!d.role.has_head()) {
    d.b.forward(Op::zero, {w(d.loss)});
  } else if (d.mesh.size(Group::DataContext) > 1) {
    d.b.exchange(Op::loss_reduce, Phase::Forward, Group::DataContext, {u(d.loss)});
  }
  d.b.at({-1, -1, 1});
  if (d.mesh.pp > 1) d.b.exchange(Op::loss_reduce, Phase::Forward, Group::Pipeline, {u(d.loss)});
  for (size_t k = 0; k < d.mtp.size() && d.mesh.size(Group::DataContext) > 1; ++k) {
    d.b.at({-1, static_cast<int>(d.config.model.num_layers) + static_cast<int>(k)});
    d.b.exchange(Op::loss_reduce, Phase::Forward, Group::DataContext, {u(d.mtp[k].loss)});
  }
  d.b.at({-1, -1});
}

// What the router counted, over all tokens of the step.
void sum_routing(Decoder& d) {
  for (size_t layer = 0; layer < d.routing.size(); ++layer) {
    const LayerRouting& routing = d.routing[layer];
    if (routing.load == kNoValue) continue;
    int part = 0;
    const auto reduce = [&](ValueId value, Group group, bool maximum) {
      d.b.at({-1, static_cast<int>(layer), part++});
      if (value != kNoValue && d.mesh.size(group) > 1)
        d.b.exchange(Op::load_reduce, Phase::Update, group, {u(value)},
                     maximum ? program::AttrSet{{"max", 1}} : program::AttrSet{});
    };
    const Group all = Group::TensorDataContext;
    reduce(routing.load, all, false);
    reduce(routing.dropped, all, false);
    if (d.mesh.size(all) > 1) {
      reduce(d.b.rows(routing.stats, 0, 1, "[max]"), all, true);
      reduce(d.b.rows(routing.stats, 1, 3, "[sums]"), all, false);
    }
    // Every rank that holds a part of a microbatch has its whole losses.
    reduce(routing.losses, Group::Data, false);
  }
}

// The embedding's gradient from all its uses: its own, a tied head's, multi-token prediction's. On one rank
// the embedding's comes first, then the head's; where the ends of a pipeline hold one each, they are summed
// in the same order.
void sum_embedding_uses(Decoder& d) {
  const int owner = find_parameter(d.table, "embedding.weight");
  const bool tied = d.config.model.tie_embeddings;
  for (size_t i = 0; i < d.table.size(); ++i) {
    if (d.table[i].tied_to.empty() || !d.role.has_head() || !d.embeds()) continue;
    d.b.at({-1, -1, static_cast<int>(i)});
    d.b.wgrad(Op::tie_grad, {r(d.parameters[i].grad), u(d.parameters[size_t(owner)].grad)});
  }
  if (d.mesh.pp > 1 && d.parameters[size_t(owner)].here && (tied || d.config.model.num_mtp_layers > 0)) {
    d.b.at({-1, -1, owner});
    d.b.exchange(Op::tie_reduce, Phase::BackwardWeight, Group::Ends, {u(d.parameters[size_t(owner)].grad)});
  }
}

// {norm, factor} of gradients whose squares are `parts`, by optimizer.clip.
ValueId scale_by(Decoder& d, ValueId parts, const program::ValueName& of) {
  const auto named = [&](const char* what) { return program::ValueName(of.text + what, -1, of.layer); };
  const ValueId scale = d.b.value(named(".clip"), tensor::Dtype::F64, {2}, program::Owner::Workspace),
                finite = d.b.value(named(".finite"), tensor::Dtype::I32, {1}, program::Owner::Workspace);
  d.b.update(Op::clip, {r(parts), r(d.loss), r(d.overflow), w(scale), w(finite)},
             {{"clip", d.config.optimizer.clip}});
  return scale;
}

program::AttrSet share_attrs(const Ownership& own, Group group) {
  return {{"shard", double(own.share)}, {"group", double(static_cast<int>(group))}};
}

}  // namespace

void finish_evaluation(Decoder& d) {
  if (d.mesh.world() == 1) return;
  if (d.loss != kNoValue) sum_loss(d);
  sum_routing(d);
}

void update(Decoder& d) {
  // Every stage of the update carries its parameter's index as part.
  sum_embedding_uses(d);
  embedding_gradient_ready(d);
  const bool alone = d.mesh.world() == 1;
  std::vector<int64_t> first_part(d.table.size(), 0);
  int64_t num_parts = 0;
  for (size_t i = 0; i < d.table.size(); ++i) {
    first_part[i] = num_parts;
    if (d.table[i].tied_to.empty()) num_parts += base::ceil_div(d.parameters[i].own.elements, kNormBlock);
  }
  const auto each = [&](auto&& fn) {
    for (size_t i = 0; i < d.table.size(); ++i) {
      if (!d.table[i].tied_to.empty() || !d.parameters[i].here) continue;
      d.b.at({-1, d.table[i].layer, static_cast<int>(i)});
      fn(i, d.parameters[i]);
    }
  };
  each([&](size_t i, ParameterValues& v) {
    if (!v.own.summed()) v.reduced = v.grad;
    PLEAT_CHECK(v.reduced != kNoValue, "the gradient of {} was never complete", d.table[i].name);
  });
  d.b.at({-1, -1});
  d.parts = d.b.value("norm_parts", tensor::Dtype::F64, {num_parts}, program::Owner::Workspace);
  if (!alone) d.b.update(Op::zero, {w(d.parts)});
  std::vector<ValueId> parts_of(d.table.size(), kNoValue);
  each([&](size_t i, ParameterValues& v) {
    const ValueId parts = parts_of[i] =
        d.b.rows(d.parts, first_part[i], base::ceil_div(v.own.elements, kNormBlock), fmt::format("[{}]", i));
    // A tied weight lives on two stages and counts once.
    if (d.table[i].name == "embedding.weight" && !d.role.has_embedding()) return;
    // By its place among all replicas: to ranks that repeat a state, theirs lies behind the tensor's end and
    // counts nothing.
    program::AttrSet attrs;
    if (v.own.summed())
      attrs = share_attrs(v.own, v.own.reduction), attrs.push_back({"elements", double(v.own.elements)});
    d.b.update(Op::grad_norm, {r(v.reduced), v.own.summed() ? r(d.coords) : none(), w(parts)}, attrs);
  });
  if (!alone) {
    sum_loss(d);
    d.b.exchange(Op::norm_reduce, Phase::Update, Group::World, {u(d.parts)});
  }
  d.b.at({-1, -1});
  if (d.overflow != kNoValue)
    d.b.exchange(Op::overflow_reduce, Phase::Update, Group::World, {u(d.overflow)}, {{"max", 1}});
  const auto& o = d.config.optimizer;
  d.b.update(Op::clip, {r(d.parts), r(d.loss), r(d.overflow), w(d.grad_scale), w(d.commit)},
             {{"clip", o.clip_by == "global" ? o.clip : 0}});
  ValueId scale_of_all = d.grad_scale;
  if (o.clip_by == "previous") {
    d.b.at({-1, -1, static_cast<int>(d.table.size()) + 1});
    scale_of_all = scale_by(d, d.b.rows(d.step.hyper, 2, 1, "[previous]"), {"previous"});
  }
  each([&](size_t i, ParameterValues& v) {
    const program::Place place = d.b.place();
    d.b.at({-1, place.layer, place.part + 1});  // part 0 is the norm of all
    const ValueId scale =
        o.clip_by == "tensor" ? scale_by(d, parts_of[i], value_name(d.table[i])) : scale_of_all;
    d.b.at(place);
    const bool shared = v.own.num_owners > 1;
    const program::AttrSet share = share_attrs(v.own, v.own.inside);
    program::AttrSet attrs = adamw_attrs(d.config, d.table[i]);
    const bool coded = v.update == Op::adamw_coded;
    const bool chance = coded && d.compute != d.wide && d.config.optimizer.master != "float32";
    if (chance)
      attrs.push_back({"element", 0}), attrs.push_back({"stream", double(stream_of(d.table[i].name))});
    if (shared) attrs.insert(attrs.end(), share.begin(), share.end());
    std::vector<program::Use> uses = {r(v.reduced), r(d.step.hyper), r(scale), r(d.commit)};
    if (coded) uses.push_back(chance ? r(d.step.rng) : none());
    uses.push_back(shared ? r(d.coords) : none());
    uses.push_back(u(v.weight));
    for (const ValueId state : v.states) uses.push_back(u(state));
    d.b.update(v.update, uses, attrs);
  });
  if (!alone) sum_routing(d);
  for (size_t layer = 0; layer < d.routing.size(); ++layer) {
    const LayerRouting& routing = d.routing[layer];
    if (routing.expert_bias == kNoValue) continue;
    d.b.at({-1, static_cast<int>(layer)});
    d.b.update(Op::bias_update, {r(routing.load), r(d.commit), u(routing.expert_bias)},
               {{"rate", d.config.moe.bias_update_rate}});
  }
}

}  // namespace pleat::model
