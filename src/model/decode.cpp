#include "model/decode.h"

#include <algorithm>

#include "base/checked.h"
#include "model/block/attention_attrs.h"
#include "model/block/attention_parts.h"
#include "model/words.h"

namespace pleat::model {

using program::Life;
using tensor::Dtype;

namespace {

struct Caches {
  ValueId lengths = kNoValue, num_new = kNoValue;
  std::vector<ValueId> rows;  // per layer
};

// How a layer's heads lie in its cache rows (kernels/cached_attention).
struct CacheLayout {
  int64_t kv_heads, head_dim, v_head_dim, v_column, column;
};

CacheLayout cache_layout(const config::ModelConfig& m) {
  if (m.attention == "mla") return {1, m.kv_lora_rank + m.qk_rope_head_dim, m.kv_lora_rank, 0, 0};
  return {m.num_kv_heads, m.head_dim, m.head_dim, m.num_kv_heads * m.head_dim, m.num_heads * m.head_dim};
}

Caches declare_caches(Decoder& d, const DecodeShape& shape) {
  const auto& m = d.config.model;
  Caches out;
  for (int layer = 0; layer < m.num_layers; ++layer)
    out.rows.push_back(
        d.b.value(program::tagged("cache", -1, layer), d.compute,
                  {shape.num_sequences, cache_capacity(m, layer, shape.max_length), cache_width(m)},
                  Owner::Activations, Life::Persistent));
  out.lengths = d.b.input(program::step::lengths, {shape.num_sequences});
  out.num_new = d.b.input(program::step::num_new, {shape.num_sequences});
  return out;
}

// Attention over the cache, then the new rows into it: a ring's oldest rows are still needed until then.
void attend(Decoder& d, int layer, const Caches& caches, ValueId queries, ValueId rows, ValueId out) {
  const auto& m = d.config.model;
  const CacheLayout at = cache_layout(m);
  program::AttrSet attrs = attention_attrs(m, layer);
  const double window = has_window(m, layer) ? double(m.sliding_window) : 0.0;
  for (program::Attr& a : attrs) {
    if (a.key == "kv_heads") a.number = double(at.kv_heads);
    if (a.key == "head_dim") a.number = double(at.head_dim);
    if (a.key == "v_head_dim") a.number = double(at.v_head_dim);
  }
  attrs.push_back({"v_column", double(at.v_column)});
  attrs.push_back({"column", double(at.column)});
  const ValueId cache = caches.rows[size_t(layer)], sinks = d.weights[size_t(layer)].sinks;
  d.b.forward(Op::cached_attention,
              {r(queries), r(rows), r(cache), r(caches.lengths), r(caches.num_new), r(sinks), w(out)}, attrs);
  d.b.update(Op::cache_append, {r(rows), r(caches.lengths), r(caches.num_new), u(cache)},
             {{"column", double(at.column)}, {"window", window}});
}

ValueId cached_attention_forward(Decoder& d, int layer, const Caches& caches, ValueId x) {
  attention_input(d, 0, layer, x);
  const auto& m = d.config.model;
  Saved& s = d.saved[0][size_t(layer)];
  s.attended = d.activation("attended", {d.num_tokens, m.num_heads * m.head_dim});
  attend(d, layer, caches, s.rotated, s.rotated, s.attended);
  return attention_output(d, 0, layer);
}

ValueId cached_latent_attention_forward(Decoder& d, int layer, const Caches& caches, ValueId x) {
  const auto [query, key_rope] = latent_attention_input(d, 0, layer, x);
  const auto& m = d.config.model;
  const ValueId kv_up = d.weights[size_t(layer)].kv_up;
  Saved& s = d.saved[0][size_t(layer)];
  const int64_t T = d.num_tokens, H = m.num_heads, rank = m.kv_lora_rank;
  const ValueId absorbed = d.activation("query_absorbed", {T, H * (rank + m.qk_rope_head_dim)});
  const ValueId latent = d.activation("latent", {T, rank + m.qk_rope_head_dim});
  const ValueId attended_latent = d.activation("attended_latent", {T, H * rank});
  s.attended = d.activation("attended", {T, H * m.v_head_dim});
  const program::AttrSet attrs = latent_attrs(m);
  d.b.forward(Op::mla_absorb, {r(query), r(kv_up), r(d.cos_sin[0]), w(absorbed)}, attrs);
  d.b.forward(Op::mla_latent, {r(s.kv_normed), r(key_rope), r(d.cos_sin[0]), w(latent)}, attrs);
  attend(d, layer, caches, absorbed, latent, attended_latent);
  d.b.forward(Op::mla_expand, {r(attended_latent), r(kv_up), w(s.attended)}, attrs);
  return attention_output(d, 0, layer);
}

}  // namespace

config::Config inference_config(const config::Config& config, int64_t num_sequences, int64_t length) {
  config::Config out = config;
  out.train.micro_batch = num_sequences;
  out.train.seq_len = length;
  out.moe.capacity_factor = 0;
  out.moe.pad_to_capacity = false;
  out.moe.force_routing = "none";
  return out;
}

int64_t cache_width(const config::ModelConfig& m) {
  return m.attention == "mla" ? m.kv_lora_rank + m.qk_rope_head_dim : 2 * m.num_kv_heads * m.head_dim;
}

int64_t cache_capacity(const config::ModelConfig& m, int layer, int64_t max_length) {
  return has_window(m, layer) ? std::min(max_length, m.sliding_window) : max_length;
}

int64_t cache_bytes(const config::ModelConfig& m, int64_t max_length) {
  int64_t tokens = 0;
  for (int layer = 0; layer < m.num_layers; ++layer) tokens += cache_capacity(m, layer, max_length);
  return tokens * cache_width(m) * (m.dtype == "float64" ? 8 : 4);
}

void decode(Decoder& d, const DecodeShape& shape) {
  PLEAT_CHECK(d.num_tokens == shape.num_sequences * shape.num_new, "{} tokens for {} x {}", d.num_tokens,
              shape.num_sequences, shape.num_new);
  const auto& m = d.config.model;
  const Caches caches = declare_caches(d, shape);
  ValueId x = embedding_forward(d, 0);
  for (int layer = 0; layer < m.num_layers; ++layer) {
    x = m.attention == "mla" ? cached_latent_attention_forward(d, layer, caches, x)
                             : cached_attention_forward(d, layer, caches, x);
    x = config::is_moe_layer(d.config, layer) ? moe_forward(d, 0, layer, x)
                                              : dense_mlp_forward(d, 0, layer, x);
  }
  int64_t rows = d.num_tokens;
  ValueId normed = final_norm_forward(d, 0, x);
  if (!shape.all_logits && shape.num_new > 1) {
    rows = shape.num_sequences;
    const ValueId wanted = d.b.input(program::step::logit_rows, {rows});
    const ValueId selected = d.activation("selected", {rows, m.hidden_size});
    d.b.forward(Op::select_rows, {r(wanted), r(normed), none(), w(selected)});
    normed = selected;
  }
  const ValueId logits =
      d.b.value(program::step::logits.name(0), d.compute, {rows, m.vocab_size}, Owner::Results, Life::Result);
  project_logits(d, normed, logits);
}

void score(Decoder& d) {
  const int64_t T = d.num_tokens, chunk = std::max<int64_t>(1, std::min(d.config.train.loss_chunk, T));
  const ValueId labels = d.b.input(program::step::labels, {T}, 0);
  const ValueId mask = d.b.input(program::step::loss_mask, {T}, 0);
  const ValueId log_prob = d.b.result(program::step::log_prob, {T});
  const ValueId best = d.b.result(program::step::best, {T});
  const ValueId normed = final_norm_forward(d, 0, layers_forward(d, 0));
  for (int64_t begin = 0, part = 0; begin < T; begin += chunk, ++part) {
    const int64_t rows = std::min(chunk, T - begin);
    const std::string tag = fmt::format("[{}]", part);
    const auto piece = [&](ValueId v) { return d.b.rows(v, begin, rows, tag); };
    d.b.at({0, -1, static_cast<int>(part)});
    const ValueId logits =
        d.activation("logits" + tag, d.compute, {rows, d.config.model.vocab_size}, Owner::Workspace);
    project_logits(d, piece(normed), logits);
    d.b.forward(Op::token_score,
                {r(logits), r(piece(labels)), r(piece(mask)), w(piece(log_prob)), w(piece(best))});
  }
}

}  // namespace pleat::model
