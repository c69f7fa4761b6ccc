// The router of one block: logits, choice, plan of rows; and back, with the auxiliary losses.
#include "model/block/moe.h"
#include "model/block/moe_attrs.h"
#include "model/exchange.h"
#include "model/words.h"

namespace pleat::model {

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
          : d.b.value(program::step::routing.name(mb, layer), tensor::Dtype::I32, {T, k}, Owner::Routing,
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
  program::AttrSet plan = plan_attrs(d.config, T / d.mesh.pieces);
  if (d.mesh.pieces > 1) plan.push_back({"pieces", double(d.mesh.pieces)});
  d.b.forward(Op::dispatch_plan,
              {r(s.idx), r(s.probs), r(in.piece), w(s.offsets), w(s.row_token), w(s.row_slot), w(s.token_row),
               d.b.acc(R.dropped)},
              plan);
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
    const auto aux_stage = [&](ValueId logits, ValueId valid, ValueId d_of) {
      d.b.dgrad(Op::router_aux,
                {r(logits), r(valid), r(in.doc_start), r(d.step.norm), r(counts), r(tokens), d.b.acc(d_of),
                 d.b.acc(R.losses)},
                aux_attrs(d.config));
    };
    if (d.mesh.tp * d.mesh.cp == 1) {
      aux_stage(s.logits, in.valid, d_logits);
    } else {
      // The losses are defined on whole microbatches and documents: every rank that holds a part of one looks
      // at all of its logits, in natural order, and takes the gradient of its own rows. So the values are
      // those of one rank, to the bit.
      const int64_t all = d.microbatch_tokens, E = d.config.moe.num_experts;
      const ValueId gathered = gather_rows(d, Op::aux_gather, Phase::BackwardInput, Group::TensorContext,
                                           s.logits, "aux_gathered");
      const ValueId natural = d.activation("aux_logits", d.router, {all, E}, Owner::Routing);
      const ValueId d_natural = d.activation("d_aux_logits", d.router, {all, E}, Owner::Routing);
      d.b.dgrad(Op::aux_order, {r(gathered), r(in.order), none(), w(natural)});
      aux_stage(natural, in.all_valid, d_natural);
      d.b.at({mb, layer, 1});
      d.b.dgrad(Op::aux_order, {r(d_natural), r(in.own_row), none(), d.b.acc(d_logits)});
      d.b.at({mb, layer});
    }
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

}  // namespace pleat::model
