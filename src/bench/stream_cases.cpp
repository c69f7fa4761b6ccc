// Norms, rotations and activations. Bytes: every input once, every output once.
#include "bench/case_shapes.h"

namespace pleat::bench {
namespace {

using program::KernelKind;
using program::Phase;
using tensor::Dtype;

void add_norms(CaseList& all, const std::string& base, int64_t T, int64_t h) {
  const double th = double(T) * double(h), t4 = 4 * double(T);
  const program::AttrSet eps = {{"eps", 1e-6}};
  const auto add = [&](const char* name, KernelKind kind, Phase phase, std::vector<Argument> arguments,
                       double bytes) {
    all.push_back({"stream", base + " " + name, kind, phase, std::move(arguments), eps, 0, bytes});
  };
  const Argument rows = in(kB, {T, h}), w = in(kB, {h}), rstd = in(kF, {T});
  add("rmsnorm fwd", KernelKind::rmsnorm, Phase::Forward, {rows, w, out(kB, {T, h}), out(kF, {T})},
      4 * th + t4);
  add("rmsnorm dgrad + residual", KernelKind::rmsnorm, Phase::BackwardInput,
      {rows, rows, w, rstd, rows, out(kB, {T, h})}, 8 * th + t4);
  add("rmsnorm wgrad", KernelKind::rmsnorm, Phase::BackwardWeight, {rows, rows, rstd, update(kB, {h})},
      4 * th + t4);
  add("rmsnorm_back + residual", KernelKind::rmsnorm_back, Phase::BackwardInput,
      {rows, rows, w, rstd, rows, out(kB, {T, h}), update(kB, {h})}, 8 * th + t4);
}

void add_rotation(CaseList& all, const Model& m, const std::string& base, int64_t T) {
  const int64_t d = m.head_dim, W = m.packed(), normed = m.heads + m.kv_heads;
  const bool norms = m.qk_norm != Model::Norm::None, full = m.qk_norm == Model::Norm::Full;
  const int64_t num_norms = full ? 2 : normed, q_size = full ? m.heads * d : d,
                k_size = full ? m.kv_heads * d : d;
  const program::AttrSet attrs = {{"heads", double(m.heads)},
                                  {"kv_heads", double(m.kv_heads)},
                                  {"head_dim", double(d)},
                                  {"rotary_dim", double(d)},
                                  {"interleaved", 0},
                                  {"full_norm", full ? 1.0 : 0.0},
                                  {"eps", 1e-6}};
  const Argument rows = in(kB, {T, W}), table = in(kF, {T, d}), to = out(kB, {T, W});
  const auto given = [&](Argument a) { return norms ? a : none(); };
  const Argument q = given(in(kB, {q_size})), k = given(in(kB, {k_size})),
                 rstd = given(in(kF, {T, num_norms}));
  const double t = double(T), tw = t * double(W), small = 4 * t * double(d + (norms ? num_norms : 0));
  const double qk = norms ? 2 * t * double(normed * d) : 0;  // the norms' input, read again by gradients
  const auto add = [&](const char* name, KernelKind kind, Phase phase, std::vector<Argument> arguments,
                       double bytes) {
    all.push_back({"stream", base + " " + name, kind, phase, std::move(arguments), attrs, 0, bytes});
  };
  add("qk_rope fwd", KernelKind::qk_rope, Phase::Forward,
      {rows, table, q, k, to, given(out(kF, {T, num_norms}))}, 4 * tw + small);
  add("qk_rope dgrad", KernelKind::qk_rope, Phase::BackwardInput, {rows, table, given(rows), q, k, rstd, to},
      4 * tw + qk + small);
  if (!norms) return;
  const Argument dq = update(kB, {q_size}), dk = update(kB, {k_size});
  add("qk_rope wgrad", KernelKind::qk_rope, Phase::BackwardWeight, {rows, table, rows, rstd, dq, dk},
      2 * qk + small);
  add("qk_rope_back", KernelKind::qk_rope_back, Phase::BackwardInput,
      {rows, table, rows, q, k, rstd, to, dq, dk}, 4 * tw + qk + small);
}

// DeepSeek-V3's heads: 128 columns as they are and 64 that are rotated.
void add_latent(CaseList& all, const Model& m, const std::string& base, int64_t T) {
  const int64_t H = m.heads, rope = 64, nope = m.head_dim - rope;
  const program::AttrSet attrs = {{"heads", double(H)},
                                  {"nope_dim", double(nope)},
                                  {"rope_dim", double(rope)},
                                  {"v_dim", double(m.v_dim)},
                                  {"interleaved", 1}};
  const std::vector<int64_t> q = {T, H * m.head_dim}, kv = {T, H * (nope + m.v_dim)}, pe = {T, rope},
                             packed = {T, m.packed()};
  const double bytes = double(T) * (2 * double(q[1] + kv[1] + pe[1] + packed[1]) + 4 * double(rope));
  all.push_back({"stream",
                 base + " mla_pack fwd",
                 KernelKind::mla_pack,
                 Phase::Forward,
                 {in(kB, q), in(kB, kv), in(kB, pe), in(kF, pe), out(kB, packed)},
                 attrs,
                 0,
                 bytes});
  all.push_back({"stream",
                 base + " mla_pack bwd",
                 KernelKind::mla_pack,
                 Phase::BackwardInput,
                 {in(kB, packed), in(kF, pe), out(kB, q), out(kB, kv), out(kB, pe)},
                 attrs,
                 0,
                 bytes});
}

void add_activations(CaseList& all, const Model& m, const std::string& base, int64_t T) {
  const int64_t R = T * m.top_k, f = m.ffn, h = m.hidden;
  const double rf = double(R) * double(f), tf = double(T) * double(f), th = double(T) * double(h);
  const program::AttrSet silu = {{"activation", 0}};
  const auto add = [&](const char* name, KernelKind kind, Phase phase, std::vector<Argument> arguments,
                       const program::AttrSet& attrs, double bytes) {
    all.push_back({"stream", base + " " + name, kind, phase, std::move(arguments), attrs, 0, bytes});
  };
  const Argument at = in(Dtype::I32, {m.experts + 1}, routing_of(m, T, Load::Even).offsets);
  add("expert_swiglu fwd", KernelKind::expert_swiglu, Phase::Forward,
      {in(kB, {R, 2 * f}), in(kF, {R}), at, out(kB, {R, f})}, silu, 6 * rf);
  add("expert_swiglu bwd", KernelKind::expert_swiglu, Phase::BackwardInput,
      {in(kB, {R, f}), in(kB, {R, 2 * f}), in(kF, {R}), at, out(kB, {R, 2 * f}), out(kF, {R})}, silu,
      10 * rf);
  add("swiglu fwd", KernelKind::swiglu, Phase::Forward, {in(kB, {T, 2 * f}), out(kB, {T, f})}, silu, 6 * tf);
  add("swiglu bwd", KernelKind::swiglu, Phase::BackwardInput,
      {in(kB, {T, f}), in(kB, {T, 2 * f}), out(kB, {T, 2 * f})}, silu, 10 * tf);
  const Argument x = in(kB, {T, h}), w = in(kB, {h}), y = out(kB, {T, h});
  add("sigmoid_gate fwd", KernelKind::sigmoid_gate, Phase::Forward, {x, w, x, y}, {}, 6 * th);
  add("sigmoid_gate dgrad", KernelKind::sigmoid_gate, Phase::BackwardInput, {x, x, w, x, y, y}, {}, 10 * th);
  add("sigmoid_gate wgrad", KernelKind::sigmoid_gate, Phase::BackwardWeight, {x, x, w, x, update(kB, {h})},
      {}, 6 * th);
  add("add_rows", KernelKind::add_rows, Phase::Forward, {x, none(), x, x, y}, {}, 8 * th);
}

}  // namespace

void add_streams(CaseList& all) {
  for (const Model& m : models())
    for (int64_t T : token_counts(m)) {
      const std::string base = std::string(m.name) + " " + std::to_string(T);
      add_norms(all, base, T, m.hidden);
      if (m.latent())
        add_latent(all, m, base, T);
      else
        add_rotation(all, m, base, T);
      add_activations(all, m, base, T);
    }
}

}  // namespace pleat::bench
