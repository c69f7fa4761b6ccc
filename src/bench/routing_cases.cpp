// The router, and rows on their way to experts and back. Bytes: every input once, every output once.
#include "bench/case_shapes.h"

namespace pleat::bench {
namespace {

using program::KernelKind;
using program::Phase;
using tensor::Dtype;

void add_router(CaseList& all, const Model& m, const Routing& routing, const std::string& base, int64_t T) {
  const int64_t h = m.hidden, E = m.experts, k = m.top_k, R = T * k;
  const double th = double(T) * double(h), te = double(T) * double(E), tk = double(T) * double(k);
  const auto add = [&](const char* name, KernelKind kind, Phase phase, std::vector<Argument> arguments,
                       const program::AttrSet& attrs, double flops, double bytes) {
    all.push_back({"router", base + " " + name, kind, phase, std::move(arguments), attrs, flops, bytes});
  };
  const Argument x = in(kB, {T, h}), w = in(kB, {E, h}), logits = in(kF, {T, E}), dlogits = out(kF, {T, E}),
                 idx = in(kI, {T, k}, routing.idx), valid = in(Dtype::U8, {T}, {1});
  const double flops = 2 * th * double(E);
  add("router_gate fwd", KernelKind::router_gate, Phase::Forward, {x, w, none(), dlogits}, {}, flops,
      2 * th + 4 * te);
  add("router_gate dgrad", KernelKind::router_gate, Phase::BackwardInput, {logits, w, update(kB, {T, h})}, {},
      flops, 4 * th + 4 * te);
  add("router_gate wgrad", KernelKind::router_gate, Phase::BackwardWeight,
      {logits, x, update(kB, {E, h}), none()}, {}, flops, 2 * th + 4 * te);
  const program::AttrSet choose = {
      {"experts", double(E)}, {"group_score_topk", 0}, {"group_topk", 0},         {"groups", 0},
      {"pre_softmax", 1},     {"renormalize", 1},      {"renormalize_single", 0}, {"scale", 1},
      {"score", 0},           {"sinkhorn", 0},         {"top_k", double(k)},      {"training", 1}};
  add("router_choose fwd", KernelKind::router_choose, Phase::Forward,
      {logits, none(), valid, none(), out(kI, {T, k}), out(kF, {T, k}), update(Dtype::I64, {E}),
       update(Dtype::F64, {4}), none()},
      choose, 0, 4 * te + 8 * tk);
  add("router_choose bwd", KernelKind::router_choose, Phase::BackwardInput,
      {in(kF, {T, k}), logits, idx, dlogits}, choose, 0, 8 * te + 8 * tk);
  const program::AttrSet aux = {{"experts", double(E)}, {"global_coef", 0},   {"hf", 0},
                                {"micro_coef", 0.01},   {"num_layers", 1},    {"score", 0},
                                {"seq_coef", 0},        {"top_k", double(k)}, {"z_coef", 0.001}};
  add("router_aux", KernelKind::router_aux, Phase::BackwardInput,
      {logits, valid, in(kI, {T}, {0}), in(Dtype::F64, {4}, {1}), none(), none(), update(kF, {T, E}),
       update(Dtype::F64, {4})},
      aux, 0, 12 * te);
  const program::AttrSet plan = {
      {"capacity", 0}, {"experts", double(E)}, {"pad", 0}, {"policy", 0}, {"top_k", double(k)}};
  add("dispatch_plan", KernelKind::dispatch_plan, Phase::Forward,
      {idx, in(kF, {T, k}), none(), out(kI, {E + 1}), out(kI, {R}), out(kI, {R}), out(kI, {T, k}),
       update(Dtype::I64, {1})},
      plan, 0, 16 * tk);
}

void add_rows_moving(CaseList& all, const Model& m, const Routing& routing, const std::string& base,
                     int64_t T) {
  const int64_t h = m.hidden, k = m.top_k, R = T * k;
  const double rh = double(R) * double(h), th = double(T) * double(h);
  const auto add = [&](const char* name, KernelKind kind, Phase phase, std::vector<Argument> arguments,
                       const program::AttrSet& attrs, double bytes) {
    all.push_back({"gather", base + " " + name, kind, phase, std::move(arguments), attrs, 0, bytes});
  };
  const Argument at = in(kI, {m.experts + 1}, routing.offsets), row_token = in(kI, {R}, routing.row_token),
                 row_slot = in(kI, {R}, routing.row_slot), token_row = in(kI, {T, k}, routing.token_row),
                 x = in(kB, {T, h}), rows = in(kB, {R, h}), y = out(kB, {T, h}), to_rows = out(kB, {R, h});
  add("permute fwd", KernelKind::permute, Phase::Forward,
      {x, in(kF, {T, k}), at, row_token, row_slot, token_row, to_rows, out(kF, {R})}, {}, 2 * rh + 2 * th);
  add("permute bwd", KernelKind::permute, Phase::BackwardInput,
      {rows, in(kF, {R}), token_row, y, out(kF, {T, k})}, {}, 2 * rh + 2 * th);
  add("combine fwd + residual", KernelKind::combine, Phase::Forward, {rows, token_row, x, none(), y}, {},
      2 * rh + 4 * th);
  add("combine bwd", KernelKind::combine, Phase::BackwardInput, {x, row_token, at, token_row, to_rows}, {},
      2 * rh + 2 * th);
  const program::AttrSet ranks = {{"copies", 1}, {"experts_per_rank", double(m.experts / 8)}};
  add("combine_ranks", KernelKind::combine_ranks, Phase::Forward, {rows, token_row, at, y}, ranks,
      2 * rh + 2 * th);
  add("permute_ranks", KernelKind::permute_ranks, Phase::BackwardInput,
      {rows, in(kF, {R}), token_row, at, y, out(kF, {T, k})}, ranks, 2 * rh + 2 * th);
  // Sorted rows to the order they were sent in, as between ranks: every row once.
  add("take_rows", KernelKind::take_rows, Phase::Forward,
      {rows, in(kI, {R}, routing.token_row), none(), to_rows}, {}, 4 * rh);
}

}  // namespace

void add_routing(CaseList& all) {
  for (const Model& m : models())
    for (int64_t T : token_counts(m)) {
      const std::string base = std::string(m.name) + " " + std::to_string(T);
      const Routing routing = routing_of(m, T, Load::Random);
      add_router(all, m, routing, base, T);
      add_rows_moving(all, m, routing, base, T);
    }
}

}  // namespace pleat::bench
