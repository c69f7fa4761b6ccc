// The decoder as stages: what every block reads, writes and keeps for its backward.
//
// A program declares the model's state once (weights, optimizer, router bias, constants: always the same list
// in the same order, so that all programs of a run agree on where it lies), then emits blocks per microbatch.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "model/mesh.h"
#include "model/parameters.h"
#include "model/shard.h"
#include "model/state.h"
#include "program/builder.h"

namespace pleat::model {

using program::Builder;
using program::kNoValue;
using program::ValueId;

// Values of one parameter, as this rank holds it. A tied parameter shares weight and states with the one it
// is tied to where both are here. `reduced`: the gradient summed over all ranks that hold a part of the sum;
// with several, only this rank's share of the elements.
struct ParameterValues {
  ValueId weight = kNoValue, grad = kNoValue, reduced = kNoValue;
  program::Op update{};  // with `states` as optimizer_of lists them
  std::vector<ValueId> states;
  bool here = false;
  Ownership own;
};
// What a value of a parameter is called: "layers.3.attn.qkv.weight", with suffix ".grad".
inline program::ValueName value_name(const Parameter& p, const std::string& suffix = "") {
  return {p.name + suffix, -1, p.layer};
}

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
  // Layers of multi-token prediction.
  ValueId mtp_embed_norm = kNoValue, mtp_hidden_norm = kNoValue, mtp_embed_proj = kNoValue,
          mtp_hidden_proj = kNoValue, mtp_final_norm = kNoValue;
};

// Step-wide results of one MoE layer.
struct LayerRouting {
  ValueId expert_bias = kNoValue;                                                    // persistent, f32
  ValueId load = kNoValue, stats = kNoValue, dropped = kNoValue, losses = kNoValue;  // results
  ValueId overflow = kNoValue;                                 // this layer of Decoder::overflow
  ValueId global_counts = kNoValue, global_tokens = kNoValue;  // running or exact global aux loss
};

struct StepInputs {
  ValueId rng = kNoValue, norm = kNoValue, hyper = kNoValue;
};

struct MicrobatchInputs {
  ValueId tokens = kNoValue, labels = kNoValue, loss_mask = kNoValue, valid = kNoValue, positions = kNoValue,
          doc_start = kNoValue, token_index = kNoValue;
  // Several ranks hold a microbatch: facts of all its rows in natural order, where natural row t lies among
  // the rows gathered from the ranks (and back), and the natural rows this rank owns.
  ValueId all_valid = kNoValue, order = kNoValue, inverse_order = kNoValue, context_row = kNoValue,
          own_row = kNoValue, piece = kNoValue;
  ValueId all_tokens = kNoValue, all_labels = kNoValue,
          all_loss_mask = kNoValue;  // shifted ones need neighbours
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
  // Experts on several ranks: the local plan (offsets above), those of all ranks, and what the rows of this
  // rank's experts need.
  ValueId all_offsets = kNoValue, expert_offsets = kNoValue, source_row = kNoValue, sorted_row = kNoValue,
          expert_row_token = kNoValue, expert_token_row = kNoValue;
  ValueId send_row = kNoValue, returned_row = kNoValue;  // of padded parts
  // Through windows: tokens each rank sends to each, where this rank's lie there, and the rows of those that came.
  ValueId token_offsets = kNoValue, token_slot = kNoValue, all_tokens = kNoValue, token_rows = kNoValue;
  // Context ranks: keys and values of all rows, or of its own (ring), or all rows of some heads.
  ValueId context_kv = kNoValue, context_qkv = kNoValue, context_out = kNoValue;
  ValueId shared_gate_up = kNoValue, shared_activated = kNoValue, shared_out = kNoValue;
};

// One depth of multi-token prediction (block/mtp.cpp) in one microbatch, and over the step.
struct MtpSaved {
  ValueId tokens = kNoValue, labels = kNoValue, mask = kNoValue;  // shifted by the depth
  ValueId hidden = kNoValue, embedded = kNoValue, embed_rstd = kNoValue, embed_normed = kNoValue,
          hidden_rstd = kNoValue, hidden_normed = kNoValue;
  ValueId final_x = kNoValue, final_rstd = kNoValue, final_normed = kNoValue, d_final_normed = kNoValue;
};
struct MtpDepth {
  ValueId count = kNoValue, norm = kNoValue;  // rows this depth predicts in the step; weight / count
  ValueId loss = kNoValue;                    // result "L4.mtp_loss", {sum, tokens}
  std::vector<MtpSaved> saved;                // per microbatch
};

// Gather: nothing but the weights from their owners to all who compute with them.
enum class Purpose : uint8_t { Train, Evaluate, Logits, Gather };

// Choose: the router decides. Record: it decides and the decisions are kept as results ("mb0.L1.routing").
// Replay: decisions are inputs of the same names, probabilities come from the current logits.
enum class RoutingUse : uint8_t { Choose, Record, Replay };

// Parameters whose gradients are summed, and whose weights are gathered, in one message (buckets.cpp).
struct Bucket {
  std::vector<size_t> parameters;  // of the table, in the order in which their gradients become ready
  size_t num_waiting = 0;          // gradients that are not complete yet
};

// Everything the block templates need to write stages into one program.
struct Decoder {
  Decoder(const config::Config& c, const std::vector<Parameter>& t, Builder& builder)
      : config(c), table(t), b(builder) {}

  const config::Config& config;
  const std::vector<Parameter>& table;
  Builder& b;
  Purpose purpose{};
  tensor::Dtype compute{}, router{};
  tensor::Dtype wide{};  // row statistics: compute, or f32 where that is narrower
  Mesh mesh;
  Role role;
  int64_t num_tokens = 0;                // rows of a microbatch this rank owns between the blocks
  int64_t attention_tokens = 0;          // rows the ranks of a tensor group work on together
  int64_t microbatch_tokens = 0;         // rows of the whole microbatch
  int64_t routed_rows = 0;               // rows this rank's tokens may take
  int64_t expert_rows = 0;               // rows this rank's experts may get: the budget
  int64_t most_expert_rows = 0;          // rows they could get
  ValueId coords = kNoValue;             // with several ranks only
  int side_lane = 0;                     // where shared experts run
  int reduce_lane = 0, gather_lane = 0;  // with replicas only
  int ring_lane = 0;                     // where keys and values travel between context ranks
  RoutingUse routing_use{};

  std::vector<ParameterValues> parameters;  // in table order
  std::vector<Bucket> buckets;
  std::vector<LayerWeights> weights, grads;
  std::vector<LayerRouting> routing;
  ValueId inv_freq = kNoValue, embedding = kNoValue, d_embedding = kNoValue, final_norm = kNoValue,
          d_final_norm = kNoValue, head = kNoValue, d_head = kNoValue;
  StepInputs step;
  std::vector<MicrobatchInputs> inputs;
  ValueId loss = kNoValue, parts = kNoValue, grad_scale = kNoValue, commit = kNoValue;
  ValueId overflow = kNoValue;  // a budget that a step may exceed: what every layer asked for (overflow.h)
  std::vector<ValueId> logits_out;  // Purpose::Logits

  // Per microbatch.
  std::vector<std::vector<ValueId>> chunk_in, chunk_out;  // [chunk][microbatch]; d_chunk_*: their gradients
  std::vector<std::vector<ValueId>> d_chunk_in;
  std::vector<ValueId> cos_sin, final_x, final_rstd, final_normed, d_final_normed, hf_counts, hf_tokens;
  std::vector<std::vector<Saved>> saved;  // [microbatch][layer], layers of multi-token prediction included
  std::vector<MtpDepth> mtp;              // where the head is; empty unless training

  // Layers of multi-token prediction live where the head is, and bring the embedding there.
  bool holds_layer(int layer) const {
    return layer >= config.model.num_layers ? role.has_head() : role.has_layer(layer);
  }
  bool embeds() const { return role.has_embedding() || (config.model.num_mtp_layers > 0 && role.has_head()); }

  ValueId activation(const std::string& what, std::vector<int64_t> shape);  // "mb0.L1.what", compute type
  ValueId activation(const std::string& what, tensor::Dtype dtype, std::vector<int64_t> shape,
                     program::Owner owner);
  // `most`: rows there could be; shape[0] is how many have room.
  ValueId routed(const std::string& what, tensor::Dtype dtype, std::vector<int64_t> shape,
                 program::Owner owner, int64_t most);
  ValueId statistic(const std::string& what, std::vector<int64_t> shape);  // wide type
  program::ValueName here(const std::string& what) const;
};

// Declares lanes, state, inputs and results. num_microbatches inputs are declared.
struct DeclareOptions {
  Purpose purpose = Purpose::Train;
  int num_microbatches = 1;  // of this rank
  RoutingUse routing_use = RoutingUse::Choose;
  Mesh mesh = {};
  std::optional<Role> role = {};  // absent: the whole model
};
Decoder declare(const config::Config& config, const std::vector<Parameter>& table, Builder& b,
                const DeclareOptions& options);

// One microbatch through one chunk of this rank's layers; emits the head's backward right behind each loss
// chunk when training. What a neighbour needs or gives is in d.chunk_in, d.chunk_out and d.d_chunk_in.
void forward(Decoder& d, int microbatch, int chunk = 0);
// Its parts: rotary table and embedding; those and the chunk's layers; the norm before the head.
ValueId embedding_forward(Decoder& d, int microbatch);
ValueId layers_forward(Decoder& d, int microbatch, int chunk = 0);
ValueId final_norm_forward(Decoder& d, int microbatch, ValueId x);
// The same chunk back, from the gradient of what its forward gave (kNoValue where the head is).
void backward(Decoder& d, int microbatch, int chunk = 0, ValueId d_out = program::kNoValue);
// Once all forwards of the step are written, before the first backward: counts that span microbatches.
void finish_counts(Decoder& d);
// Sums that ranks share after a forward-only program.
void finish_evaluation(Decoder& d);
// Tied gradients, norm, clip, update of what this rank owns, router bias. The weights are whole again after
// the gather that begins the next step.
void update(Decoder& d);

// Sums over replicas (buckets.cpp). A training step begins with the weights from their owners, and sums the
// gradients of a bucket as soon as the last of them is complete, both on lanes of their own.
std::vector<Bucket> make_buckets(const Decoder& d);
void gather_weights(Decoder& d);
// The gradients of the parameters of `layer` are complete; -1: of those outside the layers except the
// embedding, which has uses at both ends.
void gradients_ready(Decoder& d, int layer);
void embedding_gradient_ready(Decoder& d);

// The blocks (model/block): x in, x out; gradient of x out in, gradient of x in out.
ValueId attention_forward(Decoder& d, int mb, int layer, ValueId x);
ValueId attention_backward(Decoder& d, int mb, int layer, ValueId dy);
ValueId latent_attention_forward(Decoder& d, int mb, int layer, ValueId x);
ValueId latent_attention_backward(Decoder& d, int mb, int layer, ValueId dy);
ValueId dense_mlp_forward(Decoder& d, int mb, int layer, ValueId x);
ValueId dense_mlp_backward(Decoder& d, int mb, int layer, ValueId dy);
ValueId moe_forward(Decoder& d, int mb, int layer, ValueId x);
ValueId moe_backward(Decoder& d, int mb, int layer, ValueId dy);
// Attention and MLP of one layer, of whichever kind.
ValueId layer_forward(Decoder& d, int mb, int layer, ValueId x);
ValueId layer_backward(Decoder& d, int mb, int layer, ValueId dy);
// Rows of the table for the rows this rank owns; tokens are those of all its tensor group's rows.
ValueId embed(Decoder& d, ValueId tokens, const std::string& name);
void embed_backward(Decoder& d, ValueId tokens, ValueId dx, const std::string& name);
void head_forward(Decoder& d, int mb, ValueId x);
// What every use of the model takes as its logits: of training and evaluation, of decoding, of scoring.
void project_logits(Decoder& d, ValueId normed, ValueId logits);
// The vocabulary projection of `normed` and its loss, in chunks of rows; in training gives d_normed.
struct LossValues {
  ValueId labels = kNoValue, mask = kNoValue, norm = kNoValue, loss = kNoValue;
};
ValueId head_loss(Decoder& d, program::Place place, ValueId normed, const LossValues& values);
ValueId head_backward(Decoder& d, int mb);
// Multi-token prediction: shifted inputs of all microbatches, once per step; then behind the head's forward;
// then before the head's backward, adding to the gradient of the final norm's output.
void mtp_prepare(Decoder& d);
void mtp_forward(Decoder& d, int mb);
void mtp_backward(Decoder& d, int mb);

// Coefficients of the auxiliary losses a config asks for; all zero means the stage is not emitted.
struct AuxCoefficients {
  double micro = 0, sequence = 0, global = 0, z = 0;
  bool hf = false;
  bool any() const { return micro != 0 || sequence != 0 || global != 0 || z != 0; }
};
AuxCoefficients aux_coefficients(const config::Config& config);
bool balances_by(const config::Config& config, const std::string& type);
// Rows an expert may take of `num_tokens` tokens routed together; 0: dropless.
int64_t expert_capacity(const config::Config& config, int64_t num_tokens);

}  // namespace pleat::model
