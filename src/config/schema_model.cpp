// Keys of [model]: the shape of the decoder.
#include "config/schema.h"
#include "program/limits.h"

namespace pleat::config {

namespace {

template <class Field>
Key key(const char* name, Field ModelConfig::*field, std::string meaning) {
  return make_key(std::string("model.") + name, &Config::model, field, std::move(meaning));
}

}  // namespace

Condition has_mla() {
  return {"model.attention = \"mla\"", {"model.attention"}, [](const Config& c) {
            return c.model.attention == "mla";
          }};
}

Condition has_mtp_layers() {
  return {"model.num_mtp_layers > 0", {"model.num_mtp_layers"}, [](const Config& c) {
            return c.model.num_mtp_layers > 0;
          }};
}

Condition has_dense_layers() {
  return {"some layer is dense",
          {"moe.num_experts", "model.moe_layer_freq", "model.leading_dense_layers"},
          [](const Config& c) { return num_moe_layers(c) < c.model.num_layers; }};
}

std::vector<Key> model_keys() {
  using M = ModelConfig;
  std::vector<Key> keys;
  keys.push_back(
      key("dtype", &M::dtype,
          "Element type of weights, activations, gradients and moments. float64 is for proofs: gradient "
          "checks and reference values; it is several times slower. bfloat16 weights and activations have "
          "float32 gradients and moments, unless optimizer.grad_dtype and moment_dtype say otherwise, and "
          "AdamW "
          "moves float32 weights: beside each bfloat16 weight the 16 bits it leaves out are kept. The "
          "CPU runs float32 and float64, a GPU bfloat16 and float32.")
          .one_of({"float32", "float64", "bfloat16"})
          .on_resume(OnResume::Free)
          .see({"moe.router_dtype", "device.kind"}));
  keys.push_back(
      key("vocab_size", &M::vocab_size,
          "Rows of the embedding and of the head. 0 takes the size of the tokenizer (257 for the byte "
          "tokenizer: 256 bytes and the end of a document). A larger number leaves rows unused.")
          .range(0, 1 << 28)
          .see({"data.tokenizer"}));
  keys.push_back(key("hidden_size", &M::hidden_size, "Width of the residual stream.").range(1, 1 << 20));
  keys.push_back(key("num_layers", &M::num_layers, "Number of decoder layers.")
                     .range(1, 4096)
                     .see({"model.moe_layer_freq", "model.leading_dense_layers"}));
  keys.push_back(key("num_heads", &M::num_heads, "Number of query heads of each attention layer.")
                     .range(1, 4096)
                     .see({"model.num_kv_heads", "model.head_dim"}));
  keys.push_back(
      key("num_kv_heads", &M::num_kv_heads,
          "Number of key/value heads (grouped-query attention); must divide model.num_heads. 0 gives "
          "every query head its own.")
          .range(0, 4096)
          .see({"model.num_heads"}));
  keys.push_back(
      key("head_dim", &M::head_dim,
          "Width of one attention head. 0 means model.hidden_size / model.num_heads; a given width "
          "need not multiply up to hidden_size.")
          .range(0, program::kMaxHeadDim)
          .see({"model.rotary_dim"}));
  keys.push_back(
      key("attention", &M::attention,
          "gqa: grouped-query attention. mla: multi-head latent attention (DeepSeek): keys and values are "
          "compressed to one narrow vector per token.")
          .one_of({"gqa", "mla"})
          .see({"model.kv_lora_rank", "model.q_lora_rank"}));
  keys.push_back(
      key("q_lora_rank", &M::q_lora_rank, "Width the query is compressed to. 0 projects it directly.")
          .range(0, 1 << 20)
          .when(has_mla()));
  keys.push_back(key("kv_lora_rank", &M::kv_lora_rank, "Width keys and values are compressed to.")
                     .range(0, 1 << 20)
                     .when(has_mla()));
  keys.push_back(key("qk_nope_head_dim", &M::qk_nope_head_dim,
                     "Part of each query and key head that carries no position.")
                     .range(0, program::kMaxHeadDim)
                     .when(has_mla()));
  keys.push_back(key("qk_rope_head_dim", &M::qk_rope_head_dim,
                     "Rotated part of each query head; the key's is shared by all heads.")
                     .range(0, program::kMaxHeadDim)
                     .when(has_mla()));
  keys.push_back(key("v_head_dim", &M::v_head_dim, "Width of a value head.")
                     .range(0, program::kMaxHeadDim)
                     .when(has_mla()));
  keys.push_back(key("latent_norm_eps", &M::latent_norm_eps,
                     "Added to the mean square in the norms of the compressed vectors; Hugging Face's "
                     "DeepSeek has 1e-6 there, whatever "
                     "its rms_norm_eps says.")
                     .above(0, 0.1)
                     .when(has_mla()));
  keys.push_back(key("attention_scale", &M::attention_scale,
                     "Factor on query-key products. 0 is 1 / sqrt(width of a query head).")
                     .range(0, 1e3));
  keys.push_back(key("attention_sinks", &M::attention_sinks,
                     "A learned logit per head takes part in the softmax and takes attention away from all "
                     "tokens (gpt-oss)."));
  keys.push_back(
      key("ffn_hidden_size", &M::ffn_hidden_size,
          "Inner width of the SwiGLU of dense layers. Has no default: it must be given when some layer "
          "is dense.")
          .range(0, 1 << 24)
          .when(has_dense_layers())
          .see({"moe.ffn_hidden_size", "model.leading_dense_layers", "model.moe_layer_freq"}));
  keys.push_back(
      key("norm_eps", &M::norm_eps, "Added to the mean square inside every RMS norm.").above(0, 0.1));
  keys.push_back(
      key("rope_theta", &M::rope_theta, "Base of the rotary position frequencies.").above(1, 1e12));
  keys.push_back(
      key("rotary_dim", &M::rotary_dim,
          "How many leading elements of each head are rotated; even, at most model.head_dim. 0 rotates "
          "the whole head.")
          .range(0, 4096)
          .see({"model.head_dim", "model.rope_interleaved"}));
  keys.push_back(
      key("rope_interleaved", &M::rope_interleaved,
          "Rotated pairs are neighbours (0,1), (2,3), ... instead of element i with i + rotary_dim / 2."));
  keys.push_back(
      key("rope_type", &M::rope_type,
          "How rotary frequencies are stretched for longer contexts. default: not at all; linear: all by "
          "rope_factor; llama3: low ones only; yarn: a ramp between both.")
          .one_of({"default", "linear", "llama3", "yarn"})
          .see({"model.rope_factor", "model.rope_original_length"}));
  const auto when_type = [](std::initializer_list<const char*> types) {
    std::vector<std::string> names(types.begin(), types.end());
    std::string text = "model.rope_type is ";
    for (size_t i = 0; i < names.size(); ++i) text += (i ? " or " : "") + names[i];
    return Condition{text, {"model.rope_type"}, [names](const Config& c) {
                       for (const std::string& n : names)
                         if (c.model.rope_type == n) return true;
                       return false;
                     }};
  };
  keys.push_back(
      key("rope_factor", &M::rope_factor, "How many times longer the context is than before scaling.")
          .range(1, 1e6)
          .when(when_type({"linear", "llama3", "yarn"})));
  keys.push_back(key("rope_original_length", &M::rope_original_length, "Context length before scaling.")
                     .range(0, 1 << 30)
                     .when(when_type({"llama3", "yarn"})));
  keys.push_back(key("rope_low_freq_factor", &M::rope_low_freq_factor,
                     "Wavelengths above rope_original_length divided by this are stretched in full.")
                     .above(0, 1e6)
                     .when(when_type({"llama3"})));
  keys.push_back(key("rope_high_freq_factor", &M::rope_high_freq_factor,
                     "Wavelengths below rope_original_length divided by this stay as they are.")
                     .above(0, 1e6)
                     .when(when_type({"llama3"})));
  keys.push_back(key("rope_beta_fast", &M::rope_beta_fast,
                     "Rotations over rope_original_length above which a frequency stays as it is.")
                     .above(0, 1e6)
                     .when(when_type({"yarn"})));
  keys.push_back(
      key("rope_beta_slow", &M::rope_beta_slow, "Rotations below which a frequency is stretched in full.")
          .above(0, 1e6)
          .when(when_type({"yarn"})));
  keys.push_back(
      key("rope_truncate", &M::rope_truncate, "Ends of the yarn ramp are rounded to whole dimensions.")
          .when(when_type({"yarn"})));
  keys.push_back(key("rope_attention_factor", &M::rope_attention_factor,
                     "Multiplies cosines and sines (yarn's temperature).")
                     .above(0, 1e3));
  keys.push_back(
      key("qk_norm", &M::qk_norm, "RMS norm over each query and key head before the rotation (Qwen3)."));
  keys.push_back(key("qk_norm_full", &M::qk_norm_full,
                     "The QK norm covers all query heads together and all key heads together instead of each "
                     "head (OLMoE).")
                     .when({"model.qk_norm = true", {"model.qk_norm"}, [](const Config& c) {
                              return c.model.qk_norm;
                            }}));
  keys.push_back(key("qkv_bias", &M::qkv_bias, "Bias on the query, key and value projections (Qwen2)."));
  keys.push_back(key("attn_out_bias", &M::attn_out_bias, "Bias on the attention output projection."));
  keys.push_back(key("mlp_bias", &M::mlp_bias,
                     "Biases on both matrices of dense SwiGLU layers. Experts and shared experts have none.")
                     .when(has_dense_layers()));
  keys.push_back(key("sliding_window", &M::sliding_window,
                     "A token attends to itself and this many minus one tokens before it. 0 is full causal "
                     "attention.")
                     .range(0, 1 << 30));
  keys.push_back(key("window_layers", &M::window_layers,
                     "Which layers have the sliding window: a pattern of 0 and 1, repeated over the layers.")
                     .range(0, 1)
                     .when({"model.sliding_window > 0", {"model.sliding_window"}, [](const Config& c) {
                              return c.model.sliding_window > 0;
                            }}));
  keys.push_back(key("activation", &M::activation,
                     "swiglu: silu(gate) * up. clamped_swiglu: gpt-oss's gate * sigmoid(1.702 gate) * (up + "
                     "1) with both "
                     "clamped at 7; routed experts only.")
                     .one_of({"swiglu", "clamped_swiglu"}));
  keys.push_back(key("tie_embeddings", &M::tie_embeddings, "The head uses the embedding's weights."));
  keys.push_back(key("padding_token", &M::padding_token,
                     "The row of this token in the embedding gets no gradient from the embedding, only from "
                     "a tied head, "
                     "as transformers does with pad_token_id. -1: no token.")
                     .range(-1, 1 << 28)
                     .see({"model.vocab_size", "model.tie_embeddings"}));
  keys.push_back(key("init_std", &M::init_std, "Standard deviation of the normal numbers weights start from.")
                     .above(0, 10));
  keys.push_back(key("scale_residual_init", &M::scale_residual_init,
                     "Matrices that write to the residual stream start smaller by sqrt(2 * num_layers)."));
  keys.push_back(
      key("leading_dense_layers", &M::leading_dense_layers,
          "The first layers are dense whatever model.moe_layer_freq says (DeepSeek's first_k_dense).")
          .range(0, 4096)
          .when(has_experts())
          .see({"model.ffn_hidden_size", "model.moe_layer_freq"}));
  keys.push_back(
      key("moe_layer_freq", &M::moe_layer_freq,
          "Which layers are MoE: one number n makes layer i MoE when i % n == 0; a list with one 0 or 1 "
          "per layer names them.")
          .range(0, 4096)
          .when(has_experts())
          .see({"model.leading_dense_layers", "model.ffn_hidden_size"}));
  keys.push_back(
      key("num_mtp_layers", &M::num_mtp_layers,
          "Multi-token prediction: layer d of these predicts the token d steps after the next one, from the "
          "hidden state of the layer before it and the embedding of the token d steps ahead. Each is a layer "
          "like the last of the decoder; embedding and head are shared. They train with the model and take "
          "no "
          "part in its logits.")
          .range(0, 16)
          .see({"train.mtp_loss_factor"}));
  return keys;
}

}  // namespace pleat::config
