#include "model/block/moe_windows.h"

#include <algorithm>

#include "model/words.h"

namespace pleat::model {
namespace {

using program::Space;
using tensor::Dtype;

// Sizes of what travels.
struct Sizes {
  int64_t tokens, top_k, own, copies, ranks, expert_ranks;
  int64_t most_there;      // experts of one rank that a token can have
  int64_t most_received;   // tokens this rank may get
  int64_t most_returned;   // sums that may come back
  double ranks_per_token;  // expert ranks a token goes to under balanced routing

  explicit Sizes(const Decoder& d)
      : tokens(d.num_tokens),
        top_k(d.config.moe.top_k),
        own(d.config.moe.num_experts / d.mesh.ep),
        copies(d.mesh.etp),
        ranks(d.mesh.size(Group::Dispatch)),
        expert_ranks(d.mesh.ep),
        most_there(std::min(top_k, own)),
        most_received(std::min(ranks * tokens, d.expert_rows)),
        most_returned(tokens * std::min(top_k, expert_ranks) * copies) {
    double elsewhere = 1;  // all k choices of a token are experts of other ranks
    const double experts = double(d.config.moe.num_experts);
    for (int64_t i = 0; i < top_k; ++i)
      elsewhere *= std::max(0.0, experts - double(own) - double(i)) / (experts - double(i));
    ranks_per_token = double(expert_ranks) * (1 - elsewhere);
  }
  // Tokens that come here, and sums that come back.
  int64_t expected() const { return int64_t(double(tokens * copies) * ranks_per_token); }
  // Rows of the experts here: one for each choice, whatever a token has sent once for several.
  int64_t expected_rows(const Decoder& d) const {
    return d.config.moe.pad_to_capacity ? d.expert_rows : tokens * top_k * copies;
  }
};

AttrSet attrs_of(const Decoder& d) {
  return {{"experts_per_rank", double(d.config.moe.num_experts / d.mesh.ep)}, {"copies", double(d.mesh.etp)}};
}
AttrSet store_attrs(const Decoder& d) {
  AttrSet out = attrs_of(d);
  out.push_back({"sms", double(d.mesh.exchange_sms)});
  return out;
}

ValueId numbers(Decoder& d, const char* what, std::vector<int64_t> shape) {
  return d.activation(what, Dtype::I32, std::move(shape), Owner::Routing);
}

// Memory that other ranks write.
ValueId window(Decoder& d, const char* what, Dtype dtype, std::vector<int64_t> shape, Owner owner,
               int64_t expected) {
  const int64_t most = shape[0];
  return d.b.routed(d.here(what), dtype, std::move(shape), owner, std::min(expected, most), most,
                    Space::Window);
}

// `met` of the stages that read what was sent.
ValueId meet(Decoder& d, Op op, Phase phase, const char* what, const std::vector<ValueId>& sent) {
  const ValueId met = d.activation(what, Dtype::U8, {1}, Owner::Routing);
  std::vector<program::Use> uses;
  for (const ValueId v : sent) uses.push_back(r(v));
  uses.push_back(w(met));
  d.b.exchange(op, phase, Group::Dispatch, std::move(uses));
  return met;
}

}  // namespace

void windows_dispatch(Decoder& d, Saved& s) {
  const Sizes n(d);
  const int64_t h = d.config.model.hidden_size, R = d.expert_rows, tokens = n.expected(),
                rows = n.expected_rows(d);
  s.token_offsets = numbers(d, "token_offsets", {n.expert_ranks + 1});
  s.token_slot = numbers(d, "token_slot", {n.tokens, n.expert_ranks});
  const ValueId row_base = numbers(d, "row_base", {d.config.moe.num_experts});
  s.expert_offsets = numbers(d, "own_offsets", {n.own + 1});
  d.b.forward(Op::send_plan,
              {r(s.token_row), r(s.idx), r(s.all_offsets), r(d.coords), w(s.token_offsets), w(s.token_slot),
               w(row_base), w(s.expert_offsets)},
              attrs_of(d));
  s.all_tokens = numbers(d, "all_token_offsets", {n.ranks, n.expert_ranks + 1});
  const program::Place here = d.b.place();
  d.b.at({here.microbatch, here.layer, 3});
  d.b.exchange(Op::dispatch_gather, Phase::Forward, Group::Dispatch, {r(s.token_offsets), w(s.all_tokens)});
  d.b.at(here);

  const ValueId sent = window(d, "sent_rows", d.compute, {n.most_received, h}, Owner::Activations, tokens);
  const ValueId probs = window(d, "sent_probs", d.router, {R}, Owner::Routing, rows);
  const ValueId source = window(d, "sent_source", Dtype::I32, {R}, Owner::Routing, rows);
  const ValueId lists =
      window(d, "sent_lists", Dtype::I32, {n.most_received, n.most_there}, Owner::Routing, tokens);
  d.b.exchange(
      Op::dispatch_push, Phase::Forward, Group::Dispatch,
      {r(s.mlp_normed), r(s.idx), r(s.probs), r(s.offsets), r(s.row_token), r(s.token_row), r(row_base),
       r(s.token_slot), r(s.all_tokens), r(d.coords), w(sent), w(probs), w(source), w(lists)},
      store_attrs(d));
  const ValueId met = meet(d, Op::dispatch_meet, Phase::Forward, "sent", {sent, probs, source, lists});
  s.rows = d.routed("expert_rows", d.compute, {R, h}, Owner::Activations, d.most_expert_rows);
  s.row_probs = d.routed("row_probs", d.router, {R}, Owner::Routing, d.most_expert_rows);
  s.source_row = numbers(d, "source_row", {R});
  s.token_rows = numbers(d, "token_rows", {n.most_received, n.most_there});
  d.b.forward(Op::dispatch_place, {r(sent), r(probs), r(source), r(lists), r(met), r(s.expert_offsets),
                                   w(s.rows), w(s.row_probs), w(s.source_row), w(s.token_rows)});
}

ValueId windows_combine(Decoder& d, const Saved& s, ValueId out_rows) {
  const Sizes n(d);
  const int64_t h = d.config.model.hidden_size;
  const ValueId sums =
      window(d, "returned_sums", d.compute, {n.most_returned, h}, Owner::Activations, n.expected());
  d.b.exchange(Op::combine_push, Phase::Forward, Group::Dispatch,
               {r(out_rows), r(s.token_rows), r(s.all_tokens), r(d.coords), w(sums)}, store_attrs(d));
  const ValueId met = meet(d, Op::combine_meet, Phase::Forward, "returned", {sums});
  const ValueId y = d.activation("combined", {n.tokens, h});
  d.b.forward(Op::combine_sums, {r(sums), r(s.token_slot), r(s.token_offsets), r(met), w(y)}, attrs_of(d));
  return y;
}

void windows_combine_backward(Decoder& d, const Saved& s, ValueId dy, ValueId d_out_rows) {
  const Sizes n(d);
  const ValueId sent = window(d, "d_sent_rows", d.compute, {n.most_received, d.config.model.hidden_size},
                              Owner::Activations, n.expected());
  d.b.exchange(Op::dispatch_push, Phase::BackwardInput, Group::Dispatch,
               {r(dy), r(s.token_slot), r(s.all_tokens), r(d.coords), w(sent)}, store_attrs(d));
  const ValueId met = meet(d, Op::dispatch_meet, Phase::BackwardInput, "d_sent", {sent});
  d.b.dgrad(Op::dispatch_place, {r(sent), r(s.source_row), r(met), r(s.expert_offsets), w(d_out_rows)});
}

void windows_dispatch_backward(Decoder& d, const Saved& s, ValueId d_rows, ValueId d_row_probs,
                               const DispatchGradients& out) {
  const Sizes n(d);
  const ValueId sums = window(d, "d_returned_sums", d.compute, {n.most_returned, d.config.model.hidden_size},
                              Owner::Activations, n.expected());
  const ValueId probs =
      window(d, "d_returned_probs", d.router, {n.most_returned, n.most_there}, Owner::Routing, n.expected());
  d.b.exchange(Op::combine_push, Phase::BackwardInput, Group::Dispatch,
               {r(d_rows), r(d_row_probs), r(s.token_rows), r(s.all_tokens), r(d.coords), w(sums), w(probs)},
               store_attrs(d));
  const ValueId met = meet(d, Op::combine_meet, Phase::BackwardInput, "d_returned", {sums, probs});
  d.b.dgrad(Op::combine_sums,
            {r(sums), r(probs), r(s.idx), r(s.token_row), r(s.token_slot), r(s.token_offsets), r(met),
             w(out.d_normed), w(out.d_probs)},
            attrs_of(d));
}

}  // namespace pleat::model
