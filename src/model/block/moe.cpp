// Mixture of experts: norm, router, rows sorted by expert, two grouped matrices with the probability
// multiplied into the activation between them (so that expert outputs need not be kept), combine in ascending
// expert order. Shared experts run beside it on the side lane.
#include "model/block/moe_attrs.h"
#include "model/decoder.h"

namespace pleat::model {

using program::none;
using program::Op;
using program::Owner;
using program::r;
using program::w;

namespace {

ValueId shared_forward(Decoder& d, int mb, int layer) {
  const int64_t T = d.num_tokens, h = d.config.model.hidden_size, f = d.config.moe.shared_ffn_hidden_size;
  if (f == 0) return kNoValue;
  d.b.at({mb, layer}, d.side_lane);
  const LayerWeights& W = d.weights[size_t(layer)];
  Saved& s = d.saved[size_t(mb)][size_t(layer)];
  s.shared_gate_up = d.activation("shared_gate_up", {T, 2 * f});
  s.shared_activated = d.activation("shared_activated", {T, f});
  s.shared_out = d.activation("shared_out", {T, h});
  d.b.forward(Op::shared_up, {r(s.mlp_normed), r(W.shared_up), none(), none(), w(s.shared_gate_up)});
  d.b.forward(Op::shared_act, {r(s.shared_gate_up), w(s.shared_activated)}, {{"activation", 0}});
  d.b.forward(Op::shared_down, {r(s.shared_activated), r(W.shared_down), none(), none(), w(s.shared_out)});
  if (W.shared_gate == kNoValue) return s.shared_out;
  const ValueId gated = d.activation("shared_gated", {T, h});
  d.b.forward(Op::shared_gate, {r(s.mlp_normed), r(W.shared_gate), r(s.shared_out), w(gated)});
  return gated;
}

// Adds its part to d_normed.
void shared_backward(Decoder& d, int mb, int layer, ValueId dy, ValueId d_normed) {
  const int64_t T = d.num_tokens, h = d.config.model.hidden_size, f = d.config.moe.shared_ffn_hidden_size;
  if (f == 0) return;
  d.b.at({mb, layer}, d.side_lane);
  const LayerWeights &W = d.weights[size_t(layer)], &G = d.grads[size_t(layer)];
  const Saved& s = d.saved[size_t(mb)][size_t(layer)];
  if (W.shared_gate != kNoValue) {
    const ValueId d_out = d.activation("d_shared_out", {T, h});
    d.b.dgrad(Op::shared_gate,
              {r(dy), r(s.mlp_normed), r(W.shared_gate), r(s.shared_out), d.b.acc(d_normed), w(d_out)});
    d.b.wgrad(Op::shared_gate,
              {r(dy), r(s.mlp_normed), r(W.shared_gate), r(s.shared_out), d.b.acc(G.shared_gate)});
    dy = d_out;
  }
  const ValueId d_activated = d.activation("d_shared_activated", {T, f});
  const ValueId d_gate_up = d.activation("d_shared_gate_up", {T, 2 * f});
  d.b.dgrad(Op::shared_down, {r(dy), r(W.shared_down), w(d_activated)});
  d.b.wgrad(Op::shared_down, {r(dy), r(s.shared_activated), d.b.acc(G.shared_down), none()});
  d.b.dgrad(Op::shared_act, {r(d_activated), r(s.shared_gate_up), w(d_gate_up)}, {{"activation", 0}});
  d.b.dgrad(Op::shared_up, {r(d_gate_up), r(W.shared_up), d.b.acc(d_normed)});
  d.b.wgrad(Op::shared_up, {r(d_gate_up), r(s.mlp_normed), d.b.acc(G.shared_up), none()});
}

// Logits, choice, counts for losses that span microbatches or layers, and the row plan.
void route(Decoder& d, int mb, int layer) {
  const auto& e = d.config.moe;
  const LayerWeights& W = d.weights[size_t(layer)];
  LayerRouting& R = d.routing[size_t(layer)];
  Saved& s = d.saved[size_t(mb)][size_t(layer)];
  const MicrobatchInputs& in = d.inputs[size_t(mb)];
  const int64_t T = d.num_tokens, E = e.num_experts, k = e.top_k;
  const bool training = d.purpose == Purpose::Train;
  const AuxCoefficients aux = aux_coefficients(d.config);
  const auto routing = [&](const char* what, tensor::Dtype dtype, std::vector<int64_t> shape) {
    return d.activation(what, dtype, std::move(shape), Owner::Routing);
  };

  ValueId x = s.mlp_normed;
  if (training && e.input_jitter > 0) {
    x = s.jittered = d.activation("jittered", {T, d.config.model.hidden_size});
    d.b.forward(Op::jitter, {r(s.mlp_normed), r(d.step.rng), r(in.token_index), w(x)},
                jitter_attrs(d.config, layer));
  }
  s.logits = routing("router_logits", d.router, {T, E});
  d.b.forward(Op::router_gate, {r(x), r(W.router), r(W.router_bias), w(s.logits)});
  if (e.force_routing != "none") {
    const ValueId learned = s.logits;
    s.logits = routing("forced_logits", d.router, {T, E});
    d.b.forward(Op::router_force, {r(learned), r(d.step.rng), r(in.token_index), w(s.logits)},
                force_attrs(d.config, layer));
  }

  s.idx = routing("expert_idx", tensor::Dtype::I32, {T, k});
  s.probs = routing("expert_probs", d.router, {T, k});
  const bool sinkhorn = balances_by(d.config, "sinkhorn") && training;
  const ValueId scratch =
      sinkhorn ? d.activation("sinkhorn_scratch", d.router, {T, E}, Owner::Workspace) : kNoValue;
  const ValueId stored =
      d.routing_use == RoutingUse::Choose
          ? kNoValue
          : d.b.value(d.here("routing"), tensor::Dtype::I32, {T, k}, Owner::Routing,
                      d.routing_use == RoutingUse::Record ? program::Life::Result : program::Life::Input);
  d.b.forward(
      Op::router_choose,
      {r(s.logits), r(R.expert_bias), r(in.valid), d.routing_use == RoutingUse::Replay ? r(stored) : none(),
       w(s.idx), w(s.probs), d.b.acc(R.load), d.b.acc(R.stats), w(scratch)},
      choose_attrs(d.config, training));
  if (d.routing_use == RoutingUse::Record) d.b.forward(Op::router_record, {r(s.idx), w(stored)});
  if (training && aux.global != 0)
    d.b.forward(Op::router_count,
                {r(s.logits), r(in.valid), d.b.acc(R.global_counts), d.b.acc(R.global_tokens)},
                count_attrs(d.config));
  if (training && aux.hf)
    d.b.forward(
        Op::router_count,
        {r(s.logits), r(in.valid), d.b.acc(d.hf_counts[size_t(mb)]), d.b.acc(d.hf_tokens[size_t(mb)])},
        count_attrs(d.config));

  s.offsets = routing("expert_offsets", tensor::Dtype::I32, {E + 1});
  s.row_token = routing("row_token", tensor::Dtype::I32, {d.routed_rows});
  s.row_slot = routing("row_slot", tensor::Dtype::I32, {d.routed_rows});
  s.token_row = routing("token_row", tensor::Dtype::I32, {T, k});
  d.b.forward(
      Op::dispatch_plan,
      {r(s.idx), r(s.probs), w(s.offsets), w(s.row_token), w(s.row_slot), w(s.token_row), d.b.acc(R.dropped)},
      plan_attrs(d.config));
}

void route_backward(Decoder& d, int mb, int layer, ValueId d_probs, ValueId d_normed) {
  const LayerWeights &W = d.weights[size_t(layer)], &G = d.grads[size_t(layer)];
  const LayerRouting& R = d.routing[size_t(layer)];
  const Saved& s = d.saved[size_t(mb)][size_t(layer)];
  const MicrobatchInputs& in = d.inputs[size_t(mb)];
  const AuxCoefficients aux = aux_coefficients(d.config);
  const int64_t T = d.num_tokens;

  const ValueId d_logits =
      d.activation("d_router_logits", d.router, {T, d.config.moe.num_experts}, Owner::Routing);
  d.b.dgrad(Op::router_choose, {r(d_probs), r(s.logits), r(s.idx), w(d_logits)},
            choose_attrs(d.config, true));
  if (aux.any()) {
    const ValueId counts = aux.hf ? d.hf_counts[size_t(mb)] : R.global_counts;
    const ValueId tokens = aux.hf ? d.hf_tokens[size_t(mb)] : R.global_tokens;
    d.b.dgrad(Op::router_aux,
              {r(s.logits), r(in.valid), r(in.doc_start), r(d.step.norm), r(counts), r(tokens),
               d.b.acc(d_logits), d.b.acc(R.losses)},
              aux_attrs(d.config));
  }
  const bool jittered = s.jittered != kNoValue;
  const ValueId d_x = jittered ? d.activation("d_jittered", {T, d.config.model.hidden_size}) : d_normed;
  d.b.dgrad(Op::router_gate, {r(d_logits), r(W.router), d.b.acc(d_x)});
  d.b.wgrad(Op::router_gate, {r(d_logits), r(jittered ? s.jittered : s.mlp_normed), d.b.acc(G.router),
                              G.router_bias == kNoValue ? none() : d.b.acc(G.router_bias)});
  if (jittered)
    d.b.dgrad(Op::jitter, {r(d_x), r(d.step.rng), r(in.token_index), d.b.acc(d_normed)},
              jitter_attrs(d.config, layer));
}

}  // namespace

ValueId moe_forward(Decoder& d, int mb, int layer, ValueId x) {
  d.b.at({mb, layer});
  const auto& m = d.config.model;
  const LayerWeights& W = d.weights[size_t(layer)];
  Saved& s = d.saved[size_t(mb)][size_t(layer)];
  const int64_t T = d.num_tokens, h = m.hidden_size, f = d.config.moe.ffn_hidden_size, R = d.routed_rows;
  const bool bias = d.config.moe.expert_bias;

  s.mlp_rstd = d.activation("mlp_rstd", {T});
  s.mlp_normed = d.activation("mlp_normed", {T, h});
  d.b.forward(Op::mlp_norm, {r(x), r(W.mlp_norm), w(s.mlp_normed), w(s.mlp_rstd)}, {{"eps", m.norm_eps}});
  const ValueId shared = shared_forward(d, mb, layer);
  d.b.at({mb, layer});
  route(d, mb, layer);

  s.rows = d.routed("expert_rows", d.compute, {R, h}, Owner::Activations);
  s.row_probs = d.routed("row_probs", d.router, {R}, Owner::Routing);
  s.gate_up = d.routed("expert_gate_up", d.compute, {R, 2 * f}, Owner::Activations);
  s.activated = d.routed("expert_activated", d.compute, {R, f}, Owner::Activations);
  const ValueId out_rows = d.routed("expert_out", d.compute, {R, h}, Owner::Activations);
  const ValueId y = d.activation("x_out", {T, h});

  d.b.forward(Op::permute, {r(s.mlp_normed), r(s.probs), r(s.offsets), r(s.row_token), r(s.row_slot),
                            w(s.rows), w(s.row_probs)});
  d.b.forward(Op::expert_up,
              {r(s.rows), r(W.expert_up), r(s.offsets), r(W.expert_up_bias), none(), w(s.gate_up)});
  d.b.forward(Op::expert_act, {r(s.gate_up), r(s.row_probs), r(s.offsets), w(s.activated)},
              activation_attrs(d.config));
  // The probability is in the activation already; a bias after the second matrix still has to be weighted.
  d.b.forward(Op::expert_down, {r(s.activated), r(W.expert_down), r(s.offsets), r(W.expert_down_bias),
                                bias ? r(s.row_probs) : none(), w(out_rows)});
  d.b.forward(Op::combine, {r(out_rows), r(s.token_row), r(x), r(shared), w(y)});
  return y;
}

ValueId moe_backward(Decoder& d, int mb, int layer, ValueId dy) {
  d.b.at({mb, layer});
  const auto& m = d.config.model;
  const LayerWeights &W = d.weights[size_t(layer)], &G = d.grads[size_t(layer)];
  const Saved& s = d.saved[size_t(mb)][size_t(layer)];
  const int64_t T = d.num_tokens, h = m.hidden_size, f = d.config.moe.ffn_hidden_size, R = d.routed_rows;
  const bool bias = d.config.moe.expert_bias;

  const auto acc = [&](ValueId v) { return v == kNoValue ? none() : d.b.acc(v); };

  const ValueId d_out_rows = d.routed("d_expert_out", d.compute, {R, h}, Owner::Activations);
  const ValueId d_activated = d.routed("d_expert_activated", d.compute, {R, f}, Owner::Activations);
  const ValueId d_gate_up = d.routed("d_expert_gate_up", d.compute, {R, 2 * f}, Owner::Activations);
  const ValueId d_row_probs = d.routed("d_row_probs", d.router, {R}, Owner::Routing);
  const ValueId d_rows = d.routed("d_expert_rows", d.compute, {R, h}, Owner::Activations);
  const ValueId d_normed = d.activation("d_mlp_normed", {T, h});
  const ValueId d_probs = d.activation("d_expert_probs", d.router, {T, d.config.moe.top_k}, Owner::Routing);
  const ValueId dx = d.activation("dx_mid", {T, h});

  d.b.dgrad(Op::combine, {r(dy), r(s.row_token), r(s.offsets), w(d_out_rows)});
  d.b.dgrad(Op::expert_down, {r(d_out_rows), r(W.expert_down), r(s.offsets), r(W.expert_down_bias),
                              w(d_activated), bias ? w(d_row_probs) : none()});
  d.b.wgrad(Op::expert_down, {r(d_out_rows), r(s.activated), r(s.offsets), bias ? r(s.row_probs) : none(),
                              d.b.acc(G.expert_down), acc(G.expert_down_bias)});
  d.b.dgrad(Op::expert_act,
            {r(d_activated), r(s.gate_up), r(s.row_probs), r(s.offsets), w(d_gate_up), d.b.acc(d_row_probs)},
            activation_attrs(d.config));
  d.b.dgrad(Op::expert_up, {r(d_gate_up), r(W.expert_up), r(s.offsets), none(), w(d_rows), none()});
  d.b.wgrad(Op::expert_up,
            {r(d_gate_up), r(s.rows), r(s.offsets), none(), d.b.acc(G.expert_up), acc(G.expert_up_bias)});
  d.b.dgrad(Op::permute, {r(d_rows), r(d_row_probs), r(s.token_row), w(d_normed), w(d_probs)});
  shared_backward(d, mb, layer, dy, d_normed);
  d.b.at({mb, layer});
  route_backward(d, mb, layer, d_probs, d_normed);
  d.b.dgrad(Op::mlp_norm, {r(d_normed), r(s.x_mid), r(W.mlp_norm), r(s.mlp_rstd), r(dy), w(dx)},
            {{"eps", m.norm_eps}});
  d.b.wgrad(Op::mlp_norm, {r(d_normed), r(s.x_mid), r(s.mlp_rstd), d.b.acc(G.mlp_norm)});
  return dx;
}

}  // namespace pleat::model
