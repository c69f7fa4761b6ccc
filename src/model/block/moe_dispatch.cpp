// Tokens to the rows of this rank's experts and back: all experts here; all tokens gathered on every rank of the
// dispatch group, each rank computing its experts' part of a sum; rows exchanged between the ranks that hold tokens and
// those that hold experts, by messages or through windows. All but the first give an expert its rows in the same order,
// (source rank, token), and add in the same order, so their results are the same bits.
#include <algorithm>

#include "model/block/moe.h"
#include "model/block/moe_attrs.h"
#include "model/block/moe_windows.h"
#include "model/exchange.h"
#include "model/words.h"

namespace pleat::model {
namespace {

enum class Way { Local, Gather, Exchange, Windows };

Way way_of(const Decoder& d) {
  if (d.mesh.size(Group::Dispatch) == 1) return Way::Local;
  if (d.mesh.dispatcher == Dispatcher::AllGather) return Way::Gather;
  return d.mesh.exchange == RowExchange::Windows ? Way::Windows : Way::Exchange;
}

program::AttrSet rank_attrs(const Decoder& d) {
  return {{"experts_per_rank", double(d.config.moe.num_experts / d.mesh.ep)}, {"copies", double(d.mesh.etp)}};
}

ValueId routing_value(Decoder& d, const char* what, std::vector<int64_t> shape) {
  return d.activation(what, tensor::Dtype::I32, std::move(shape), Owner::Routing);
}

ValueId rows_value(Decoder& d, const std::string& what, int64_t rows, int64_t most) {
  return d.routed(what, d.compute, {rows, d.config.model.hidden_size}, Owner::Activations, most);
}

ValueId probs_value(Decoder& d, const std::string& what, int64_t rows, int64_t most) {
  return d.routed(what, d.router, {rows}, Owner::Routing, most);
}

// Rows one rank may have for another, where every pair of ranks exchanges as many.
int64_t padded_part(const Decoder& d) {
  const auto& e = d.config.moe;
  const int64_t own = e.num_experts / d.mesh.ep, capacity = expert_capacity(d.config, d.num_tokens);
  const int64_t of_tokens = d.num_tokens * std::min(e.top_k, own);
  const int64_t of_experts = e.pad_to_capacity ? own * capacity : of_tokens;
  return std::min(std::max<int64_t>(1, of_experts), d.expert_rows);
}
bool is_padded(const Decoder& d) { return d.mesh.exchange == RowExchange::Padded; }

// The same rows as [ranks * part], those that go to one rank together.
ValueId parts_like(Decoder& d, ValueId rows, const std::string& what) {
  const program::Value v = d.b.program().values[size_t(rows)];
  std::vector<int64_t> shape = v.shape;
  shape[0] = d.mesh.size(Group::Dispatch) * padded_part(d);
  return d.activation(what, v.dtype, std::move(shape), v.owner);
}

// x[index] to all ranks, a part each; what came.
ValueId exchange_parts(Decoder& d, Phase phase, Op pad, Op parts, ValueId x, ValueId index,
                       const std::string& what) {
  const ValueId out = parts_like(d, x, what + "_parts"), in = parts_like(d, x, what + "_came");
  const auto uses = {r(x), r(index), none(), w(out)};
  phase == Phase::Forward ? d.b.forward(pad, uses) : d.b.dgrad(pad, uses);
  d.b.exchange(parts, phase, Group::Dispatch, {r(out), w(in)});
  return in;
}

// Rows and their probabilities from token ranks to expert ranks in expert order (forward), or gradients the
// same way.
void to_experts(Decoder& d, Phase phase, const Saved& s, ValueId send, ValueId sorted,
                const std::string& what, int part) {
  const program::Place here = d.b.place();
  d.b.at({here.microbatch, here.layer, part});
  ValueId received = kNoValue;
  if (is_padded(d)) {
    received = exchange_parts(d, phase, Op::dispatch_pad, Op::dispatch_parts, send, s.send_row, what);
  } else {
    const program::Value v = d.b.program().values[size_t(sorted)];
    received = d.routed(what, v.dtype, v.shape, v.owner, d.most_expert_rows);
    d.b.exchange(Op::dispatch_exchange, phase, Group::Dispatch, {r(send), r(s.all_offsets), w(received)},
                 rank_attrs(d));
  }
  const auto uses = {r(received), r(s.source_row), r(s.expert_offsets), w(sorted)};
  phase == Phase::Forward ? d.b.forward(Op::dispatch_sort, uses) : d.b.dgrad(Op::dispatch_sort, uses);
  d.b.at(here);
}

// The way back: `copies` answers to every row that was sent.
ValueId to_tokens(Decoder& d, Phase phase, const Saved& s, ValueId rows, const std::string& what, int part) {
  const program::Place here = d.b.place();
  d.b.at({here.microbatch, here.layer, part});
  const program::Value v = d.b.program().values[size_t(rows)];
  std::vector<int64_t> shape = v.shape;
  if (is_padded(d)) {
    const ValueId came =
        exchange_parts(d, phase, Op::combine_unsort, Op::combine_parts, rows, s.sorted_row, what);
    shape[0] = d.routed_rows * d.mesh.etp;
    const ValueId returned = d.routed(what + "_returned", v.dtype, shape, v.owner, shape[0]);
    const auto uses = {r(came), r(s.returned_row), none(), w(returned)};
    phase == Phase::Forward ? d.b.forward(Op::combine_unpad, uses) : d.b.dgrad(Op::combine_unpad, uses);
    d.b.at(here);
    return returned;
  }
  const ValueId unsorted = d.routed(what + "_unsorted", v.dtype, shape, v.owner, d.most_expert_rows);
  shape[0] = d.routed_rows * d.mesh.etp;
  const ValueId returned = d.routed(what + "_returned", v.dtype, shape, v.owner, shape[0]);
  const auto uses = {r(rows), r(s.sorted_row), r(s.expert_offsets), w(unsorted)};
  phase == Phase::Forward ? d.b.forward(Op::combine_unsort, uses) : d.b.dgrad(Op::combine_unsort, uses);
  d.b.exchange(Op::combine_exchange, phase, Group::Dispatch, {r(unsorted), r(s.all_offsets), w(returned)},
               rank_attrs(d));
  d.b.at(here);
  return returned;
}

bool limited(const Decoder& d) { return d.expert_rows < d.most_expert_rows; }

void gather_counts(Decoder& d, Saved& s) {
  const program::Place here = d.b.place();
  d.b.at({here.microbatch, here.layer, 2});
  s.all_offsets =
      routing_value(d, "all_offsets", {d.mesh.size(Group::Dispatch), d.config.moe.num_experts + 1});
  d.b.exchange(Op::dispatch_gather, Phase::Forward, Group::Dispatch, {r(s.offsets), w(s.all_offsets)});
  d.b.at(here);
}

// This rank's plan made to fit the budgets of all expert ranks.
void trim(Decoder& d, int layer, Saved& s) {
  gather_counts(d, s);
  const LayerRouting& routing = d.routing[size_t(layer)];
  program::AttrSet attrs = rank_attrs(d);
  attrs.insert(attrs.end(), {{"budget", double(d.expert_rows)},
                             {"policy", d.config.moe.drop_policy == "probs" ? 0.0 : 1.0}});
  d.b.forward(Op::dispatch_trim,
              {r(s.probs), r(d.coords), u(s.all_offsets), u(s.offsets), u(s.row_token), u(s.row_slot),
               u(s.token_row), u(routing.dropped), u(routing.overflow)},
              attrs);
}

}  // namespace

void dispatch_forward(Decoder& d, int mb, int layer) {
  Saved& s = d.saved[size_t(mb)][size_t(layer)];
  const int64_t R = d.expert_rows, n = d.mesh.size(Group::Dispatch), T = d.num_tokens, k = d.config.moe.top_k;
  const int64_t own = d.config.moe.num_experts / d.mesh.ep;
  const Way way = way_of(d);
  if (limited(d)) trim(d, layer, s);
  if (way == Way::Local) {
    s.expert_offsets = s.offsets, s.expert_row_token = s.row_token, s.expert_token_row = s.token_row;
    s.rows = rows_value(d, "expert_rows", R, d.most_expert_rows);
    s.row_probs = probs_value(d, "row_probs", R, d.most_expert_rows);
    d.b.forward(Op::permute, {r(s.mlp_normed), r(s.probs), r(s.offsets), r(s.row_token), r(s.row_slot),
                              r(s.token_row), w(s.rows), w(s.row_probs)});
    return;
  }
  if (way == Way::Windows) {
    if (!limited(d)) gather_counts(d, s);
    return windows_dispatch(d, s);
  }
  s.expert_offsets = routing_value(d, "own_offsets", {own + 1});
  if (way == Way::Gather) {
    const auto gather = [&](Op op, ValueId x, const char* what, int part) {
      return gather_rows(d, op, Phase::Forward, Group::Dispatch, x, what, part);
    };
    const ValueId idx = gather(Op::dispatch_gather, s.idx, "all_idx", 0);
    const ValueId kept = gather(Op::dispatch_gather, s.token_row, "all_kept", 1);
    const ValueId x = gather(Op::token_gather, s.mlp_normed, "all_tokens", 0);
    const ValueId probs = gather(Op::token_gather, s.probs, "all_probs", 1);
    s.expert_row_token = routing_value(d, "own_row_token", {R});
    const ValueId row_slot = routing_value(d, "own_row_slot", {R});
    s.expert_token_row = routing_value(d, "own_token_row", {n * T, k});
    program::AttrSet attrs = rank_attrs(d);
    attrs.insert(attrs.end(), {{"ranks", double(n)},
                               {"capacity", double(expert_capacity(d.config, T))},
                               {"pad", double(d.config.moe.pad_to_capacity)}});
    d.b.forward(Op::gather_plan,
                {r(idx), r(kept), r(d.coords), w(s.expert_offsets), w(s.expert_row_token), w(row_slot),
                 w(s.expert_token_row)},
                attrs);
    s.rows = rows_value(d, "expert_rows", R, d.most_expert_rows);
    s.row_probs = probs_value(d, "row_probs", R, d.most_expert_rows);
    d.b.forward(Op::permute, {r(x), r(probs), r(s.expert_offsets), r(s.expert_row_token), r(row_slot),
                              r(s.expert_token_row), w(s.rows), w(s.row_probs)});
    return;
  }
  // Counts before rows: what a rank will get is known before it comes.
  if (!limited(d)) gather_counts(d, s);
  const ValueId send = rows_value(d, "send_rows", d.routed_rows, d.routed_rows),
                send_probs = probs_value(d, "send_probs", d.routed_rows, d.routed_rows);
  d.b.forward(Op::permute, {r(s.mlp_normed), r(s.probs), r(s.offsets), r(s.row_token), r(s.row_slot),
                            r(s.token_row), w(send), w(send_probs)});
  s.source_row = routing_value(d, "source_row", {R});
  if (is_padded(d)) {
    const int64_t part = padded_part(d);
    s.sorted_row = routing_value(d, "sorted_row", {n * part});
    s.send_row = routing_value(d, "send_row", {n * part});
    s.returned_row = routing_value(d, "returned_row", {d.routed_rows * d.mesh.etp});
    program::AttrSet attrs = rank_attrs(d);
    attrs.push_back({"part", double(part)});
    d.b.forward(Op::padded_plan,
                {r(s.all_offsets), r(d.coords), w(s.expert_offsets), w(s.source_row), w(s.sorted_row),
                 w(s.send_row), w(s.returned_row)},
                attrs);
  } else {
    s.sorted_row = routing_value(d, "sorted_row", {R});
    d.b.forward(Op::receive_plan,
                {r(s.all_offsets), r(d.coords), w(s.expert_offsets), w(s.source_row), w(s.sorted_row)},
                rank_attrs(d));
  }
  s.rows = rows_value(d, "expert_rows", R, d.most_expert_rows);
  s.row_probs = probs_value(d, "row_probs", R, d.most_expert_rows);
  to_experts(d, Phase::Forward, s, send, s.rows, "received_rows", 0);
  to_experts(d, Phase::Forward, s, send_probs, s.row_probs, "received_probs", 1);
}

ValueId combine_forward(Decoder& d, int mb, int layer, ValueId out_rows, ValueId residual, ValueId shared) {
  const Saved& s = d.saved[size_t(mb)][size_t(layer)];
  const int64_t T = d.num_tokens, h = d.config.model.hidden_size, n = d.mesh.size(Group::Dispatch);
  const ValueId y = d.activation("x_out", {T, h});
  ValueId sum = kNoValue;
  switch (way_of(d)) {
    case Way::Local:
      d.b.forward(Op::combine, {r(out_rows), r(s.token_row), r(residual), r(shared), w(y)});
      return y;
    case Way::Gather: {
      const ValueId partial = d.activation("combine_partial", {n * T, h});
      d.b.forward(Op::combine, {r(out_rows), r(s.expert_token_row), none(), none(), w(partial)});
      sum = scatter_rows(d, Op::combine_scatter, Phase::Forward, Group::Dispatch, partial, "combined");
      break;
    }
    case Way::Exchange: {
      const ValueId returned = to_tokens(d, Phase::Forward, s, out_rows, "expert_out", 0);
      sum = d.activation("combined", {T, h});
      d.b.forward(Op::combine_ranks, {r(returned), r(s.token_row), r(s.offsets), w(sum)}, rank_attrs(d));
      break;
    }
    case Way::Windows:
      sum = windows_combine(d, s, out_rows);
      break;
  }
  d.b.forward(Op::combine_add, {r(sum), none(), r(shared), r(residual), w(y)});
  return y;
}

ValueId combine_backward(Decoder& d, int mb, int layer, ValueId dy) {
  const Saved& s = d.saved[size_t(mb)][size_t(layer)];
  const ValueId d_out_rows = rows_value(d, "d_expert_out", d.expert_rows, d.most_expert_rows);
  switch (way_of(d)) {
    case Way::Local:
      d.b.dgrad(Op::combine, {r(dy), r(s.row_token), r(s.offsets), r(s.token_row), w(d_out_rows)});
      break;
    case Way::Gather: {
      const ValueId all =
          gather_rows(d, Op::combine_gather, Phase::BackwardInput, Group::Dispatch, dy, "d_combined");
      d.b.dgrad(Op::combine,
                {r(all), r(s.expert_row_token), r(s.expert_offsets), r(s.expert_token_row), w(d_out_rows)});
      break;
    }
    case Way::Exchange: {
      const ValueId send = rows_value(d, "d_send_rows", d.routed_rows, d.routed_rows);
      d.b.dgrad(Op::combine, {r(dy), r(s.row_token), r(s.offsets), r(s.token_row), w(send)});
      to_experts(d, Phase::BackwardInput, s, send, d_out_rows, "d_received_rows", 0);
      break;
    }
    case Way::Windows:
      windows_combine_backward(d, s, dy, d_out_rows);
      break;
  }
  return d_out_rows;
}

DispatchGradients dispatch_backward(Decoder& d, int mb, int layer, ValueId d_rows, ValueId d_row_probs) {
  const Saved& s = d.saved[size_t(mb)][size_t(layer)];
  const int64_t T = d.num_tokens, h = d.config.model.hidden_size, k = d.config.moe.top_k;
  const int64_t tokens = way_of(d) == Way::Gather ? d.mesh.size(Group::Dispatch) * T : T;
  DispatchGradients out{d.activation("d_mlp_normed", {tokens, h}),
                        d.activation("d_expert_probs", d.router, {tokens, k}, Owner::Routing)};
  if (way_of(d) == Way::Windows) {
    windows_dispatch_backward(d, s, d_rows, d_row_probs, out);
    return out;
  }
  if (way_of(d) == Way::Exchange) {
    const ValueId rows = to_tokens(d, Phase::BackwardInput, s, d_rows, "d_rows", 0);
    const ValueId probs = to_tokens(d, Phase::BackwardInput, s, d_row_probs, "d_probs", 1);
    d.b.dgrad(Op::permute_ranks,
              {r(rows), r(probs), r(s.token_row), r(s.offsets), w(out.d_normed), w(out.d_probs)},
              rank_attrs(d));
    return out;
  }
  d.b.dgrad(Op::permute, {r(d_rows), r(d_row_probs), r(s.expert_token_row), w(out.d_normed), w(out.d_probs)});
  if (way_of(d) == Way::Gather) {
    out.d_normed = scatter_rows(d, Op::token_scatter, Phase::BackwardInput, Group::Dispatch, out.d_normed,
                                "d_own_normed", 0);
    out.d_probs = scatter_rows(d, Op::token_scatter, Phase::BackwardInput, Group::Dispatch, out.d_probs,
                               "d_own_probs", 1);
  }
  return out;
}

}  // namespace pleat::model
