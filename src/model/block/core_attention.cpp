#include "model/block/core_attention.h"

#include "model/block/attention_attrs.h"
#include "model/block/ring_attention.h"
#include "model/exchange.h"
#include "model/words.h"

namespace pleat::model {
namespace {

using Widths = AttentionWidths;

Widths widths(const Decoder& d) {
  const auto& m = d.config.model;
  const int64_t H = m.num_heads / d.mesh.tp, G = m.num_kv_heads / d.mesh.tp;
  const int64_t dv = m.attention == "mla" ? m.v_head_dim : m.head_dim;
  return {H * m.head_dim, G * m.head_dim, G * dv, H * dv, H};
}

AttrSet context_attrs(const Decoder& d, int layer, int64_t parts) {
  AttrSet attrs = attention_attrs(d.config.model, layer, parts);
  attrs.push_back({"seq_len", double(d.config.train.seq_len)});
  return attrs;
}

// What doc_start may hold is known for training only: other programs get whatever their caller asks.
AttrSet core_attrs(const Decoder& d, int layer, int64_t parts) {
  AttrSet attrs = context_attrs(d, layer, parts);
  const bool whole = d.purpose == Purpose::Train && !d.config.data.isolate_documents;
  attrs.push_back({"documents", whole ? 0.0 : 1.0});
  attrs.push_back({"deterministic", d.config.device.deterministic_attention ? 1.0 : 0.0});
  return attrs;
}

// Rows as the context's ranks cut their columns: packed q | k | v, or the output's.
AttrSet parts_of(const Decoder& d, const Widths& n, bool packed) {
  return {{"parts", double(d.mesh.cp)},
          {"a", double(packed ? n.q : n.out)},
          {"b", double(packed ? n.k : 0)},
          {"c", double(packed ? n.v : 0)}};
}

void stage(Decoder& d, Phase phase, Op op, std::initializer_list<program::Use> uses,
           const AttrSet& attrs = {}) {
  phase == Phase::Forward ? d.b.forward(op, uses, attrs) : d.b.dgrad(op, uses, attrs);
}

// One rank's rows beside all heads to all rows beside one rank's heads, and back.
ValueId rows_to_heads(Decoder& d, int mb, Phase phase, ValueId x, const Widths& n, bool packed,
                      const std::string& what, int part) {
  const int64_t cp = d.mesh.cp, rows = d.attention_tokens, all = d.microbatch_tokens;
  const int64_t width = (packed ? n.q + n.k + n.v : n.out) / cp;
  const program::Place here = d.b.place();
  d.b.at({here.microbatch, here.layer, part}, d.b.lane_idx());
  const ValueId split = d.activation(what + "_split", {cp * rows, width});
  const ValueId moved = d.activation(what + "_moved", {all, width});
  const ValueId natural = d.activation(what + "_natural", {all, width});
  stage(d, phase, Op::cp_split, {r(x), w(split)}, parts_of(d, n, packed));
  d.b.exchange(Op::cp_exchange, phase, Group::Context, {r(split), w(moved)});
  stage(d, phase, Op::cp_order, {r(moved), r(d.inputs[size_t(mb)].order), none(), w(natural)});
  d.b.at(here, d.b.lane_idx());
  return natural;
}

void heads_to_rows(Decoder& d, int mb, Phase phase, ValueId natural, ValueId y, const Widths& n, bool packed,
                   const std::string& what, int part) {
  const int64_t cp = d.mesh.cp, rows = d.attention_tokens, all = d.microbatch_tokens;
  const int64_t width = (packed ? n.q + n.k + n.v : n.out) / cp;
  const program::Place here = d.b.place();
  d.b.at({here.microbatch, here.layer, part}, d.b.lane_idx());
  const ValueId gathered = d.activation(what + "_gathered", {all, width});
  const ValueId split = d.activation(what + "_parts", {cp * rows, width});
  stage(d, phase, Op::cp_order, {r(natural), r(d.inputs[size_t(mb)].inverse_order), none(), w(gathered)});
  d.b.exchange(Op::cp_exchange, phase, Group::Context, {r(gathered), w(split)});
  stage(d, phase, Op::cp_merge, {r(split), w(y)}, parts_of(d, n, packed));
  d.b.at(here, d.b.lane_idx());
}

}  // namespace

void core_attention_forward(Decoder& d, int mb, int layer, ValueId sinks) {
  Saved& s = d.saved[size_t(mb)][size_t(layer)];
  const MicrobatchInputs& in = d.inputs[size_t(mb)];
  const Widths n = widths(d);
  const int64_t rows = d.attention_tokens;
  s.attended = d.activation("attended", {rows, n.out});
  if (d.mesh.cp == 1) {
    s.lse = d.statistic("attention_lse", {rows, n.heads});
    d.b.forward(Op::attention, {r(s.rotated), r(in.doc_start), r(sinks), w(s.attended), w(s.lse)},
                core_attrs(d, layer, d.mesh.tp));
    return;
  }
  if (d.mesh.context == ContextKind::AllToAll) {
    s.context_qkv = rows_to_heads(d, mb, Phase::Forward, s.rotated, n, true, "cp_qkv", 0);
    s.context_out = d.activation("cp_out", {d.microbatch_tokens, n.out / d.mesh.cp});
    s.lse = d.statistic("attention_lse", {d.microbatch_tokens, n.heads / d.mesh.cp});
    d.b.forward(Op::attention, {r(s.context_qkv), r(in.doc_start), r(sinks), w(s.context_out), w(s.lse)},
                core_attrs(d, layer, d.mesh.tp * d.mesh.cp));
    heads_to_rows(d, mb, Phase::Forward, s.context_out, s.attended, n, false, "cp_attended", 1);
    return;
  }
  if (d.mesh.context == ContextKind::Ring) return ring_forward(d, mb, layer, sinks, n);
  s.lse = d.statistic("attention_lse", {rows, n.heads});
  const ValueId own = d.activation("cp_own_kv", {rows, n.k + n.v});
  d.b.forward(Op::cp_columns, {r(s.rotated), w(own)}, {{"begin", double(n.q)}});
  const ValueId all = gather_rows(d, Op::cp_gather, Phase::Forward, Group::Context, own, "cp_all_kv");
  s.context_kv = d.activation("cp_kv", {d.microbatch_tokens, n.k + n.v});
  d.b.forward(Op::cp_order, {r(all), r(in.order), none(), w(s.context_kv)});
  d.b.forward(
      Op::context_attention,
      {r(s.rotated), r(s.context_kv), r(in.context_row), r(in.doc_start), r(sinks), w(s.attended), w(s.lse)},
      context_attrs(d, layer, d.mesh.tp));
}

void core_attention_backward(Decoder& d, int mb, int layer, ValueId d_attended, ValueId d_rotated,
                             ValueId sinks, ValueId d_sinks) {
  const Saved& s = d.saved[size_t(mb)][size_t(layer)];
  const MicrobatchInputs& in = d.inputs[size_t(mb)];
  const Widths n = widths(d);
  if (d.mesh.cp == 1) {
    const AttrSet attrs = core_attrs(d, layer, d.mesh.tp);
    d.b.dgrad(Op::attention,
              {r(d_attended), r(s.rotated), r(s.attended), r(s.lse), r(in.doc_start), w(d_rotated)}, attrs);
    if (sinks != kNoValue)
      d.b.wgrad(Op::attention, {r(d_attended), r(s.attended), r(s.lse), r(sinks), d.b.acc(d_sinks)}, attrs);
    return;
  }
  if (d.mesh.context == ContextKind::AllToAll) {
    const ValueId d_out =
        rows_to_heads(d, mb, Phase::BackwardInput, d_attended, n, false, "d_cp_attended", 0);
    const ValueId d_qkv = d.activation("d_cp_qkv", {d.microbatch_tokens, (n.q + n.k + n.v) / d.mesh.cp});
    d.b.dgrad(Op::attention,
              {r(d_out), r(s.context_qkv), r(s.context_out), r(s.lse), r(in.doc_start), w(d_qkv)},
              core_attrs(d, layer, d.mesh.tp * d.mesh.cp));
    heads_to_rows(d, mb, Phase::BackwardInput, d_qkv, d_rotated, n, true, "d_cp_rotated", 1);
    return;
  }
  if (d.mesh.context == ContextKind::Ring)
    return ring_backward(d, mb, layer, d_attended, d_rotated, sinks, d_sinks, n);
  const AttrSet attrs = context_attrs(d, layer, d.mesh.tp);
  const ValueId d_q = d.activation("d_cp_q", {d.attention_tokens, n.q});
  const ValueId d_kv = d.activation("d_cp_kv", {d.microbatch_tokens, n.k + n.v});
  const ValueId d_all = d.activation("d_cp_all_kv", {d.microbatch_tokens, n.k + n.v});
  d.b.dgrad(Op::context_attention,
            {r(d_attended), r(s.rotated), r(s.context_kv), r(s.attended), r(s.lse), r(in.context_row),
             r(in.doc_start), w(d_q), w(d_kv)},
            attrs);
  if (sinks != kNoValue)
    d.b.wgrad(Op::context_attention, {r(d_attended), r(s.attended), r(s.lse), r(sinks), d.b.acc(d_sinks)},
              attrs);
  d.b.dgrad(Op::cp_order, {r(d_kv), r(in.inverse_order), none(), w(d_all)});
  const ValueId d_own =
      scatter_rows(d, Op::cp_scatter, Phase::BackwardInput, Group::Context, d_all, "d_cp_own_kv");
  d.b.dgrad(Op::cp_columns, {r(d_q), r(d_own), w(d_rotated)});
}

}  // namespace pleat::model
