// Keys of [model]: the shape of the decoder.
#include "config/schema.h"

namespace pleat::config {

namespace {

template <class Field>
Key key(const char* name, Field ModelConfig::*field, std::string meaning) {
  return make_key(std::string("model.") + name, &Config::model, field, std::move(meaning));
}

}  // namespace

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
          "checks and reference values; it is several times slower.")
          .one_of({"float32", "float64"})
          .see({"moe.router_dtype"}));
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
          .range(0, 4096)
          .see({"model.rotary_dim"}));
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
      key("qk_norm", &M::qk_norm, "RMS norm over each query and key head before the rotation (Qwen3)."));
  keys.push_back(key("qkv_bias", &M::qkv_bias, "Bias on the query, key and value projections (Qwen2)."));
  keys.push_back(key("attn_out_bias", &M::attn_out_bias, "Bias on the attention output projection."));
  keys.push_back(key("mlp_bias", &M::mlp_bias,
                     "Biases on both matrices of dense SwiGLU layers. Experts and shared experts have none.")
                     .when(has_dense_layers()));
  keys.push_back(key("sliding_window", &M::sliding_window,
                     "A token attends to itself and this many minus one tokens before it. 0 is full causal "
                     "attention.")
                     .range(0, 1 << 30));
  keys.push_back(key("tie_embeddings", &M::tie_embeddings, "The head uses the embedding's weights."));
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
  return keys;
}

}  // namespace pleat::config
