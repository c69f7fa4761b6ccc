#include "model/block/ring_attention.h"

#include "model/block/attention_attrs.h"
#include "model/words.h"

namespace pleat::model {
namespace {

AttrSet step_attrs(const Decoder& d, int layer, int step) {
  AttrSet out = attention_attrs(d.config.model, layer, d.mesh.tp);
  out.push_back({"step", double(step)});
  out.push_back({"ranks", double(d.mesh.cp)});
  out.push_back({"group", double(Group::Context)});
  out.push_back({"seq_len", double(d.config.train.seq_len)});
  return out;
}

std::string numbered(const char* what, int step) { return what + std::to_string(step); }

// x to the next rank on the ring's lane; gives what the previous one sends.
ValueId pass_on(Decoder& d, Op op, Phase phase, ValueId x, int step, const std::string& what,
                const AttentionWidths& n) {
  const program::Place here = d.b.place();
  const int lane = d.b.lane_idx();
  const ValueId y = d.activation(what, {d.attention_tokens, n.k + n.v});
  program::Place there = here;
  there.part = step;
  d.b.at(there, d.ring_lane);
  d.b.exchange(op, phase, Group::Context, {r(x), w(y)});
  d.b.at(here, lane);
  return y;
}

}  // namespace

void ring_forward(Decoder& d, int mb, int layer, ValueId sinks, const AttentionWidths& n) {
  Saved& s = d.saved[size_t(mb)][size_t(layer)];
  const MicrobatchInputs& in = d.inputs[size_t(mb)];
  const int64_t rows = d.attention_tokens;
  const int last = static_cast<int>(d.mesh.cp) - 1;
  s.context_kv = d.activation("cp_own_kv", {rows, n.k + n.v});
  d.b.forward(Op::cp_columns, {r(s.rotated), w(s.context_kv)}, {{"begin", double(n.q)}});

  const program::Place here = d.b.place();
  const int lane = d.b.lane_idx();
  ValueId kv = s.context_kv, prior = kNoValue, prior_lse = kNoValue;
  for (int step = 0; step <= last; ++step) {
    ValueId next = kNoValue;
    if (step < last)
      next = pass_on(d, Op::cp_shift, Phase::Forward, kv, step + 1, numbered("cp_kv", step + 1), n);
    // Until the last step results are sums to be gone on with: in the wide type.
    const ValueId out = step == last ? s.attended : d.statistic(numbered("attended", step), {rows, n.out});
    const ValueId lse =
        d.statistic(step == last ? "attention_lse" : numbered("attention_lse", step), {rows, n.heads});
    program::Place at = here;
    at.part = step;
    d.b.at(at, lane);
    d.b.forward(Op::ring_attention,
                {r(s.rotated), r(prior), r(prior_lse), r(kv), r(in.context_row), r(in.inverse_order),
                 r(in.doc_start), r(d.coords), step == 0 ? r(sinks) : none(), w(out), w(lse)},
                step_attrs(d, layer, step));
    d.b.at(here, lane);
    kv = next, prior = out, prior_lse = lse;
  }
  s.lse = prior_lse;
}

void ring_backward(Decoder& d, int mb, int layer, ValueId d_attended, ValueId d_rotated, ValueId sinks,
                   ValueId d_sinks, const AttentionWidths& n) {
  const Saved& s = d.saved[size_t(mb)][size_t(layer)];
  const MicrobatchInputs& in = d.inputs[size_t(mb)];
  const int64_t rows = d.attention_tokens;
  const int last = static_cast<int>(d.mesh.cp) - 1;
  const ValueId d_q = d.activation("d_cp_q", {rows, n.q});
  const program::Place here = d.b.place();
  const int lane = d.b.lane_idx();

  const auto shift = [&](ValueId x, int to) {
    return pass_on(d, Op::cp_shift, Phase::BackwardInput, x, to, numbered("cp_kv_again", to), n);
  };
  ValueId kv = s.context_kv, next = shift(kv, 1), sum = kNoValue;
  for (int step = 0; step <= last; ++step) {
    const ValueId part = d.activation(numbered("d_cp_kv", step), {rows, n.k + n.v});
    program::Place at = here;
    at.part = step;
    d.b.at(at, lane);
    d.b.dgrad(Op::ring_attention,
              {r(d_attended), r(s.rotated), r(kv), r(s.attended), r(s.lse), r(in.context_row),
               r(in.inverse_order), r(in.doc_start), r(d.coords), d.b.acc(d_q), w(part)},
              step_attrs(d, layer, step));
    d.b.at(here, lane);
    // On the lane before the gradients: the next step waits for keys, only its end for gradients.
    const ValueId behind = step + 2 <= last ? shift(next, step + 2) : kNoValue;
    d.b.at(at, lane);
    // The sum of the ranks before, which travelled during this step, takes this rank's part and goes on.
    if (step > 0) d.b.dgrad(Op::cp_add, {r(part), u(sum)});
    d.b.at(here, lane);
    sum = pass_on(d, Op::cp_return, Phase::BackwardInput, step > 0 ? sum : part, step + 1,
                  numbered("d_cp_kv_sum", step + 1), n);
    kv = next, next = behind;
  }
  if (sinks != kNoValue)
    d.b.wgrad(Op::ring_attention, {r(d_attended), r(s.attended), r(s.lse), r(sinks), d.b.acc(d_sinks)},
              step_attrs(d, layer, 0));
  d.b.dgrad(Op::cp_columns, {r(d_q), r(sum), w(d_rotated)});
}

}  // namespace pleat::model
