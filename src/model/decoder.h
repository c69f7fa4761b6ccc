// The decoder as stages: what every block reads, writes and keeps for its backward.
//
// A program declares the model's state once (weights, moments, router bias, constants: always the same list
// in the same order, so that all programs of a run agree on where it lies), then emits blocks per microbatch.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"
#include "model/parameters.h"
#include "program/builder.h"

namespace pleat::model {

using program::Builder;
using program::kNoValue;
using program::ValueId;

// Values of one parameter. A tied parameter shares weight and moments with the one it is tied to.
struct ParameterValues {
  ValueId weight = kNoValue, grad = kNoValue, moment1 = kNoValue, moment2 = kNoValue;
};

// The parameters of one layer by role; kNoValue where the layer has none. `d_` are their gradients.
struct LayerWeights {
  ValueId attn_norm = kNoValue, qkv = kNoValue, qkv_bias = kNoValue, q_norm = kNoValue, k_norm = kNoValue,
          sinks = kNoValue, attn_out = kNoValue, attn_out_bias = kNoValue, mlp_norm = kNoValue;
  // Latent attention; kv_down is kept as its two row blocks, the compressed part and the rotated key.
  ValueId q_down = kNoValue, q_down_norm = kNoValue, q_up = kNoValue, kv_down = kNoValue,
          kv_down_rope = kNoValue, kv_norm = kNoValue, kv_up = kNoValue;
  ValueId mlp_up = kNoValue, mlp_up_bias = kNoValue, mlp_down = kNoValue, mlp_down_bias = kNoValue;
  ValueId router = kNoValue, router_bias = kNoValue, expert_up = kNoValue, expert_up_bias = kNoValue,
          expert_down = kNoValue, expert_down_bias = kNoValue;
  ValueId shared_up = kNoValue, shared_down = kNoValue, shared_gate = kNoValue;
};

// Step-wide results of one MoE layer.
struct LayerRouting {
  ValueId expert_bias = kNoValue;                                                    // persistent, f32
  ValueId load = kNoValue, stats = kNoValue, dropped = kNoValue, losses = kNoValue;  // results
  ValueId global_counts = kNoValue, global_tokens = kNoValue;  // running or exact global aux loss
};

struct StepInputs {
  ValueId rng = kNoValue, norm = kNoValue, hyper = kNoValue;
};

struct MicrobatchInputs {
  ValueId tokens = kNoValue, labels = kNoValue, loss_mask = kNoValue, valid = kNoValue, positions = kNoValue,
          doc_start = kNoValue, token_index = kNoValue;
};

// What a forward leaves behind for its backward, one per (microbatch, layer).
struct Saved {
  ValueId x = kNoValue, attn_rstd = kNoValue, attn_normed = kNoValue, qkv = kNoValue, rotated = kNoValue,
          qk_rstd = kNoValue, attended = kNoValue, lse = kNoValue, x_mid = kNoValue, mlp_rstd = kNoValue,
          mlp_normed = kNoValue;
  ValueId q_compressed = kNoValue, q_rstd = kNoValue, q_normed = kNoValue, kv_compressed = kNoValue,
          kv_rstd = kNoValue, kv_normed = kNoValue;
  ValueId gate_up = kNoValue, activated = kNoValue;
  ValueId jittered = kNoValue, logits = kNoValue, idx = kNoValue, probs = kNoValue, offsets = kNoValue,
          row_token = kNoValue, row_slot = kNoValue, token_row = kNoValue, rows = kNoValue,
          row_probs = kNoValue;
  ValueId shared_gate_up = kNoValue, shared_activated = kNoValue, shared_out = kNoValue;
};

enum class Purpose : uint8_t { Train, Evaluate, Logits };

// Choose: the router decides. Record: it decides and the decisions are kept as results ("mb0.L1.routing").
// Replay: decisions are inputs of the same names, probabilities come from the current logits.
enum class RoutingUse : uint8_t { Choose, Record, Replay };

// Everything the block templates need to write stages into one program.
struct Decoder {
  Decoder(const config::Config& c, const std::vector<Parameter>& t, Builder& builder)
      : config(c), table(t), b(builder) {}

  const config::Config& config;
  const std::vector<Parameter>& table;
  Builder& b;
  Purpose purpose{};
  tensor::Dtype compute{}, router{};
  int64_t num_tokens = 0;   // per microbatch
  int64_t routed_rows = 0;  // rows of expert buffers
  int side_lane = 0;        // where shared experts run
  RoutingUse routing_use{};

  std::vector<ParameterValues> parameters;  // in table order
  std::vector<LayerWeights> weights, grads;
  std::vector<LayerRouting> routing;
  ValueId inv_freq = kNoValue, embedding = kNoValue, d_embedding = kNoValue, final_norm = kNoValue,
          d_final_norm = kNoValue, head = kNoValue, d_head = kNoValue;
  StepInputs step;
  std::vector<MicrobatchInputs> inputs;
  ValueId loss = kNoValue, parts = kNoValue, grad_scale = kNoValue, commit = kNoValue;
  std::vector<ValueId> logits_out;  // Purpose::Logits

  // Per microbatch.
  std::vector<ValueId> cos_sin, final_x, final_rstd, final_normed, d_final_normed, hf_counts, hf_tokens;
  std::vector<std::vector<Saved>> saved;

  ValueId activation(const std::string& what, std::vector<int64_t> shape);  // "mb0.L1.what", compute type
  ValueId activation(const std::string& what, tensor::Dtype dtype, std::vector<int64_t> shape,
                     program::Owner owner);
  ValueId routed(const std::string& what, tensor::Dtype dtype, std::vector<int64_t> shape,
                 program::Owner owner);
  std::string here(const std::string& what) const;
};

// Declares lanes, state, inputs and results. num_microbatches inputs are declared.
Decoder declare(const config::Config& config, const std::vector<Parameter>& table, Builder& b,
                Purpose purpose, int num_microbatches, RoutingUse routing_use = RoutingUse::Choose);

// One microbatch through the whole model; emits the head's backward right behind each loss chunk when
// training.
void forward(Decoder& d, int microbatch);
// Its parts: rotary table and embedding; those and all layers; the norm before the head.
ValueId embedding_forward(Decoder& d, int microbatch);
ValueId layers_forward(Decoder& d, int microbatch);
ValueId final_norm_forward(Decoder& d, int microbatch, ValueId x);
// From the gradient of the final norm's output down to the embedding.
void backward(Decoder& d, int microbatch);
// Tied gradients, norm, clip, AdamW, router bias.
void update(Decoder& d);

// The blocks (model/block): x in, x out; gradient of x out in, gradient of x in out.
ValueId attention_forward(Decoder& d, int mb, int layer, ValueId x);
ValueId attention_backward(Decoder& d, int mb, int layer, ValueId dy);
ValueId latent_attention_forward(Decoder& d, int mb, int layer, ValueId x);
ValueId latent_attention_backward(Decoder& d, int mb, int layer, ValueId dy);
ValueId dense_mlp_forward(Decoder& d, int mb, int layer, ValueId x);
ValueId dense_mlp_backward(Decoder& d, int mb, int layer, ValueId dy);
ValueId moe_forward(Decoder& d, int mb, int layer, ValueId x);
ValueId moe_backward(Decoder& d, int mb, int layer, ValueId dy);
void head_forward(Decoder& d, int mb, ValueId x);
ValueId head_backward(Decoder& d, int mb);

// Coefficients of the auxiliary losses a config asks for; all zero means the stage is not emitted.
struct AuxCoefficients {
  double micro = 0, sequence = 0, global = 0, z = 0;
  bool hf = false;
  bool any() const { return micro != 0 || sequence != 0 || global != 0 || z != 0; }
};
AuxCoefficients aux_coefficients(const config::Config& config);
bool balances_by(const config::Config& config, const std::string& type);
int64_t expert_capacity(const config::Config& config);  // rows an expert may take per microbatch; 0: dropless

}  // namespace pleat::model
