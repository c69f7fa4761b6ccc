#include "base/error.h"
#include "config/validate.h"
#include "program/limits.h"

namespace pleat::config {

namespace {

// The nearest number to `value` that divides `whole`.
int64_t nearest_divisor(int64_t whole, int64_t value) {
  for (int64_t step = 0; step <= whole; ++step) {
    if (value - step >= 1 && value - step <= whole && whole % (value - step) == 0) return value - step;
    if (value + step <= whole && whole % (value + step) == 0) return value + step;
  }
  return 1;
}

void check_head_dim(const char* what, int64_t width, const char* way_out) {
  if (width > program::kMaxHeadDim)
    base::fail("{} = {} is more than attention takes; at most {} is possible: {}", what, width,
               program::kMaxHeadDim, way_out);
}

void check_latent_attention(const ModelConfig& m) {
  const std::pair<const char*, int64_t> needed[] = {{"kv_lora_rank", m.kv_lora_rank},
                                                    {"qk_nope_head_dim", m.qk_nope_head_dim},
                                                    {"qk_rope_head_dim", m.qk_rope_head_dim},
                                                    {"v_head_dim", m.v_head_dim}};
  for (const auto& [name, width] : needed)
    if (width <= 0) base::fail("model.attention = \"mla\" needs model.{} of at least 1, got {}", name, width);
  if (m.qk_rope_head_dim % 2 != 0)
    base::fail(
        "model.qk_rope_head_dim = {} is odd, but elements are rotated in pairs; the nearest even one is {}",
        m.qk_rope_head_dim, m.qk_rope_head_dim + 1);
  check_head_dim("model.qk_nope_head_dim + model.qk_rope_head_dim", m.qk_nope_head_dim + m.qk_rope_head_dim,
                 "make one of them smaller");
  const auto same_or_zero = [](const char* name, int64_t value, int64_t derived, const char* from) {
    if (value != 0 && value != derived)
      base::fail("model.{} = {} contradicts model.attention = \"mla\", where it is {} ({}); leave it out",
                 name, value, derived, from);
  };
  same_or_zero("num_kv_heads", m.num_kv_heads, m.num_heads, "model.num_heads");
  same_or_zero("head_dim", m.head_dim, m.qk_nope_head_dim + m.qk_rope_head_dim,
               "qk_nope_head_dim + qk_rope_head_dim");
  same_or_zero("rotary_dim", m.rotary_dim, m.qk_rope_head_dim, "qk_rope_head_dim");
  if (m.qk_norm)
    base::fail(
        "model.qk_norm = true has no meaning with model.attention = \"mla\", which norms its compressed "
        "vectors");
  if (m.attention_sinks) base::fail("model.attention_sinks = true needs model.attention = \"gqa\"");
}

void check_rope(const ModelConfig& m) {
  if ((m.rope_type == "llama3" || m.rope_type == "yarn") && m.rope_original_length <= 0)
    base::fail("model.rope_type = \"{}\" needs model.rope_original_length of at least 1, got {}", m.rope_type,
               m.rope_original_length);
  if (m.rope_type == "llama3" && m.rope_low_freq_factor >= m.rope_high_freq_factor)
    base::fail("model.rope_low_freq_factor = {} must be below model.rope_high_freq_factor = {}",
               m.rope_low_freq_factor, m.rope_high_freq_factor);
}

void check_heads(const ModelConfig& m) {
  if (m.attention == "mla") return check_latent_attention(m);
  if (m.num_kv_heads > 0 && m.num_heads % m.num_kv_heads != 0)
    base::fail("model.num_kv_heads = {} does not divide model.num_heads = {}; the nearest that does is {}",
               m.num_kv_heads, m.num_heads, nearest_divisor(m.num_heads, m.num_kv_heads));
  if (m.head_dim == 0 && m.hidden_size % m.num_heads != 0)
    base::fail(
        "model.hidden_size = {} is not a multiple of model.num_heads = {}, so model.head_dim must be given; "
        "or set "
        "model.num_heads = {}",
        m.hidden_size, m.num_heads, nearest_divisor(m.hidden_size, m.num_heads));
  const int64_t head_dim = m.head_dim > 0 ? m.head_dim : m.hidden_size / m.num_heads;
  check_head_dim("model.head_dim = model.hidden_size / model.num_heads", head_dim,
                 "give model.head_dim, or more model.num_heads");
  const int64_t rotary_dim = m.rotary_dim > 0 ? m.rotary_dim : head_dim;
  if (rotary_dim > head_dim)
    base::fail("model.rotary_dim = {} is larger than the head width {}; at most {} is possible", rotary_dim,
               head_dim, head_dim - head_dim % 2);
  if (rotary_dim % 2 != 0) {
    if (head_dim == 1)
      base::fail("model.head_dim = 1 leaves no pair of elements to rotate; at least 2 is needed");
    if (m.rotary_dim > 0)
      base::fail(
          "model.rotary_dim = {} is odd, but elements are rotated in pairs; the nearest even one is {}",
          rotary_dim, rotary_dim + 1 <= head_dim ? rotary_dim + 1 : rotary_dim - 1);
    base::fail(
        "the head width {} is odd, but elements are rotated in pairs; set model.rotary_dim = {} or an even "
        "model.head_dim",
        head_dim, head_dim - 1);
  }
}

}  // namespace

void validate_vocabulary(const Config& c) {
  if (c.model.vocab_size > 0 && c.model.padding_token >= c.model.vocab_size)
    base::fail("model.padding_token = {} is outside the vocabulary of {}; needed is -1 (none) to {}",
               c.model.padding_token, c.model.vocab_size, c.model.vocab_size - 1);
}

void validate_model(const Config& c) {
  check_heads(c.model);
  check_rope(c.model);
  resolve(c);  // judges what depends on the vocabulary, where that is known already
  if (c.model.activation == "clamped_swiglu" && num_moe_layers(c) < c.model.num_layers)
    base::fail(
        "model.activation = \"clamped_swiglu\" is for routed experts, but {} of {} layers are dense; make "
        "all layers MoE",
        c.model.num_layers - num_moe_layers(c), c.model.num_layers);
  if (c.model.activation == "clamped_swiglu" && c.moe.shared_ffn_hidden_size > 0)
    base::fail(
        "model.activation = \"clamped_swiglu\" does not go with moe.shared_ffn_hidden_size = {}; set it to 0",
        c.moe.shared_ffn_hidden_size);
  if (c.model.num_mtp_layers > 0 && c.train.seq_len <= c.model.num_mtp_layers)
    base::fail(
        "model.num_mtp_layers = {} looks {} tokens ahead and needs train.seq_len of at least {}, got {}",
        c.model.num_mtp_layers, c.model.num_mtp_layers, c.model.num_mtp_layers + 1, c.train.seq_len);
  const int64_t num_moe = num_moe_layers(c);
  if (c.moe.num_experts > 0 && c.model.leading_dense_layers > c.model.num_layers)
    base::fail("model.leading_dense_layers = {} is more than model.num_layers = {}",
               c.model.leading_dense_layers, c.model.num_layers);
  if (c.moe.num_experts > 0 && num_moe == 0)
    base::fail(
        "moe.num_experts = {} but no layer is MoE (model.leading_dense_layers = {}, model.num_layers = {}); "
        "make "
        "one MoE, or set moe.num_experts = 0",
        c.moe.num_experts, c.model.leading_dense_layers, c.model.num_layers);
  if (num_moe < c.model.num_layers && c.model.ffn_hidden_size == 0)
    base::fail(
        "model.ffn_hidden_size is needed: {} of {} layers are dense (moe.num_experts = {}); a usual width is "
        "{}",
        c.model.num_layers - num_moe, c.model.num_layers, c.moe.num_experts, c.model.hidden_size * 8 / 3);
}

}  // namespace pleat::config
