// The run configuration as plain data: what one training run was asked to do. Nothing here knows TOML; the
// schema (schema.h) is the single table that ties every field to its key, range and meaning, and a test
// keeps the two in step. A Config that came out of `load` or `parse` has been validated as a whole, so the
// code that reads it needs no second check. Fields hold what was asked: a documented 0 means "derive it", and
// `resolve` returns a copy in which every such zero has been replaced by the value that is used.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace pleat::config {

struct ModelConfig {
  std::string dtype = "float32";  // float32 | float64
  int64_t vocab_size = 0;         // 0: taken from the tokenizer
  int64_t hidden_size = 256;
  int64_t num_layers = 4;
  int64_t num_heads = 8;
  int64_t num_kv_heads = 0;       // 0: num_heads
  int64_t head_dim = 0;           // 0: hidden_size / num_heads
  int64_t ffn_hidden_size = 0;    // dense SwiGLU width; needed when there are dense layers
  std::string attention = "gqa";  // gqa | mla
  int64_t q_lora_rank = 0;        // mla: width of the compressed query; 0: no compression
  int64_t kv_lora_rank = 0;       // mla: width of the compressed keys and values
  int64_t qk_nope_head_dim = 0;   // mla: part of a query/key head without position
  int64_t qk_rope_head_dim = 0;   // mla: rotated part, shared by all key heads
  int64_t v_head_dim = 0;         // mla: width of a value head
  double latent_norm_eps = 1e-6;  // mla: of the norms on the compressed vectors
  double attention_scale = 0.0;   // 0: 1 / sqrt(width of a query head)
  bool attention_sinks = false;
  double norm_eps = 1e-5;
  double rope_theta = 10000.0;
  int64_t rotary_dim = 0;  // 0: head_dim
  bool rope_interleaved = false;
  std::string rope_type = "default";   // default | linear | llama3 | yarn
  double rope_factor = 1.0;            // how much longer the context became
  int64_t rope_original_length = 0;    // context length before scaling
  double rope_low_freq_factor = 1.0;   // llama3
  double rope_high_freq_factor = 4.0;  // llama3
  double rope_beta_fast = 32.0;        // yarn
  double rope_beta_slow = 1.0;         // yarn
  bool rope_truncate = true;           // yarn: whole dimensions at the ends of the ramp
  double rope_attention_factor = 1.0;  // multiplies cosines and sines
  bool qk_norm = false;
  bool qk_norm_full = false;  // one norm over all heads instead of one per head
  bool qkv_bias = false;
  bool attn_out_bias = false;
  bool mlp_bias = false;
  int64_t sliding_window = 0;                // 0: full causal attention
  std::vector<int64_t> window_layers = {1};  // 0/1 pattern, repeated: which layers have the window
  std::string activation = "swiglu";         // swiglu | clamped_swiglu
  bool tie_embeddings = false;
  double init_std = 0.02;
  bool scale_residual_init = true;
  int64_t leading_dense_layers = 0;
  // One number n: layer i is MoE when i % n == 0. Several: a 0/1 flag per layer. Leading dense layers win.
  std::vector<int64_t> moe_layer_freq = {1};
  int64_t num_mtp_layers = 0;  // multi-token prediction: layers behind the last one, of its type
  int64_t padding_token = -1;  // its row of the embedding gets no gradient; -1: none

  bool operator==(const ModelConfig&) const = default;
};

struct MoeConfig {
  int64_t num_experts = 0;  // 0: dense model
  int64_t top_k = 2;
  int64_t ffn_hidden_size = 0;         // width of one routed expert
  int64_t shared_ffn_hidden_size = 0;  // 0: no shared expert
  bool shared_gate = false;
  std::string score = "softmax";  // softmax | sigmoid | sqrtsoftplus
  bool pre_softmax = false;
  bool renormalize = true;          // sigmoid-like and pre-softmax scores
  bool renormalize_single = false;  // also with top_k = 1
  double scaling_factor = 1.0;
  int64_t num_groups = 0;
  int64_t group_topk = 0;
  int64_t group_score_topk = 0;          // scores summed for a group's score; 0: top_k / group_topk
  bool expert_bias = false;              // biases on both matrices of every routed expert
  std::string router_dtype = "float32";  // float32 | float64; always float64 with model.dtype = float64
  bool router_bias = false;
  std::vector<std::string> load_balancing = {"aux"};  // none | aux | seq_aux | global_aux | sinkhorn | bias
  std::vector<double> aux_coef = {1e-2};              // one per aux type, in load_balancing order
  std::string global_aux_form = "running";            // running | exact
  double bias_update_rate = 1e-3;
  double z_coef = 0.0;
  double input_jitter = 0.0;
  std::string aux_convention = "switch";  // switch | hf
  double capacity_factor = 0.0;           // 0: dropless
  std::string drop_policy = "probs";      // probs | position
  bool pad_to_capacity = false;
  double token_budget = 0.0;           // times the balanced rows of one rank; 0: the worst case
  std::string overflow = "stop";       // stop | drop | rerun: what a step past the budget means
  std::string force_routing = "none";  // none | balanced | skewed | loaded
  double force_bias_std = 0.0;         // negative: one draw per layer for the whole run
  double force_load = 1.0;             // loaded: rows of the fullest expert over the mean

  bool operator==(const MoeConfig&) const = default;
};

struct OptimizerConfig {
  struct GroupConfig {
    double lr_mult = 1.0;
    double weight_decay = -1.0;        // negative: unset, optimizer.weight_decay holds
    std::string grad_dtype = "unset";  // unset: optimizer.grad_dtype holds

    bool operator==(const GroupConfig&) const = default;
  };

  double lr = 3e-4;
  double min_lr = 3e-5;
  std::string schedule = "cosine";  // cosine | linear | wsd | constant
  int64_t warmup_steps = 0;
  int64_t decay_steps = 0;  // 0: the whole run; wsd: the length of the final decay
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  double clip = 1.0;               // 0: no clipping
  std::string clip_by = "global";  // global | tensor | previous: the norm that clip bounds
  std::string update_at = "end";   // end | backward: when weights move
  // With model.dtype = "bfloat16"; else both follow the model.
  std::string grad_dtype = "float32";    // float32 | bfloat16
  std::string moment_dtype = "float32";  // float32 | bfloat16 | block8
  // Of one moment, in a float32 model too: as moment_dtype, or unset, which leaves it to that.
  std::string moment1_dtype = "unset", moment2_dtype = "unset";
  std::string master = "float32";      // float32 | float24 | bfloat16: the weight that the update moves
  std::string state_space = "device";  // device | host
  int64_t state_bucket_mb = 64;        // states that move between host and device at a time
  bool decay_norms = false;
  bool decay_biases = false;
  bool decay_embeddings = true;
  std::vector<std::string> freeze;  // classes that are not trained, named as the keys of `groups`
  // Keyed by attention | router | shared_experts | experts | mlp | embedding | head | norm | mtp.
  std::map<std::string, GroupConfig> groups;

  bool operator==(const OptimizerConfig&) const = default;
};

struct TrainConfig {
  int64_t steps = 100;
  int64_t micro_batch = 1;       // sequences per microbatch
  int64_t num_microbatches = 1;  // microbatches per optimizer step
  int64_t seq_len = 128;
  int64_t seed = 1234;
  std::string order =
      "1f1b";  // 1f1b | gpipe (all forwards before the backwards) | loop (1f1b, written down as a loop)
  int64_t eval_every = 0;    // 0: only after the last step, when there is validation data
  int64_t eval_batches = 4;  // microbatches per evaluation
  int64_t loss_chunk = 0;    // rows of logits in memory at once; 0: chosen by resolve()
  int64_t max_refused_steps = 3;
  double mtp_loss_factor = 0.1;  // weight of the mean over the losses of multi-token prediction

  bool operator==(const TrainConfig&) const = default;
};

struct DataConfig {
  std::string train;                 // prefix of a .bin/.idx pair, or a .txt/.jsonl file to be prepared
  std::vector<std::string> sources;  // instead of train: a mixture, each as train
  std::vector<double> weights;       // one per source; only their ratios count
  std::string valid;
  std::string tokenizer = "byte";  // or the path of a tokenizer
  std::string end_of_document;     // token or id; empty: what the tokenizer's files say
  std::string jsonl_key = "text";
  std::string separator;           // cuts a .txt file into documents; empty: one document per file
  std::string packing = "stream";  // stream | whole (no document is cut)
  bool shuffle = true;
  bool isolate_documents = true;
  double valid_split = 0.0;  // share of train held out when valid is empty

  bool operator==(const DataConfig&) const = default;
};

// How the messages of chat data become text (data/chat/chat_template.h).
struct ChatConfig {
  std::string template_name = "none";  // none | chatml | llama3 | plain | custom
  std::string begin, end;              // around a conversation; these and all below: custom only
  std::string system_prefix, system_suffix;
  std::string user_prefix, user_suffix;
  std::string assistant_prefix, assistant_suffix;
  std::string tool_prefix, tool_suffix;

  bool operator==(const ChatConfig&) const = default;
};

struct CheckpointConfig {
  std::string dir;    // empty: <log.run_dir>/checkpoints
  int64_t every = 0;  // 0: only at the end
  int64_t keep = 2;
  bool keep_best = true;  // the one with the least validation loss, beside the newest `keep`
  bool save_at_end = true;
  std::string resume = "auto";  // auto | never | must

  bool operator==(const CheckpointConfig&) const = default;
};

struct LogConfig {
  std::string run_dir = "runs/default";
  int64_t console_every = 1;  // 0: no progress lines
  bool tensorboard = true;
  int64_t health_every = 10;    // 0: never
  int64_t timeline_step = 0;    // 0: the last step
  int64_t breakdown_every = 0;  // 0: never

  bool operator==(const LogConfig&) const = default;
};

struct RecomputeConfig {
  // norm | activation | core_attention | experts | shared_experts | layer
  std::vector<std::string> modules;
  std::string layers = "all";  // or ranges such as "0-3,7"

  bool operator==(const RecomputeConfig&) const = default;
};

// What is kept for the backward pass and waits for it in the host's memory (schedule/pass/offload.h).
struct OffloadConfig {
  // attn_norm | qkv | core_attention | attn_out | mlp_norm | expert_up | activation | layer
  std::vector<std::string> modules;
  std::string layers = "all";            // or ranges such as "0-3,7"
  double fraction = 1.0;                 // of the modules of the layers, in forward order
  int64_t keep_last = 1;                 // layers whose backward follows their forward at once
  int64_t ahead = 2;                     // halves of a layer that copies may run ahead or lag behind
  int64_t min_bytes = int64_t{1} << 20;  // smaller tensors stay

  bool operator==(const OffloadConfig&) const = default;
};

// Products in fewer bits than model.dtype (schedule/pass/low_precision.h).
struct PrecisionConfig {
  std::string recipe = "none";  // none | fp8 | mxfp8 | nvfp4
  // experts | shared_experts | attention | latent | mlp; empty: all there are
  std::vector<std::string> modules;
  int64_t wide_first = 0, wide_last = 0;  // layers at either end that stay in model.dtype

  bool operator==(const PrecisionConfig&) const = default;
};

// How the ranks of a run are divided; what is left over is data parallel (layout/layout.h).
struct ParallelConfig {
  int64_t tp = 1;   // tensor
  int64_t cp = 1;   // context
  int64_t pp = 1;   // pipeline stages
  int64_t vpp = 1;  // model chunks per pipeline stage
  int64_t ep = 1;   // expert
  int64_t etp = 1;  // tensor, inside an expert
  std::string order = "tp-cp-ep-dp-pp";
  std::string pipeline_layout;          // empty: layers evenly over pp x vpp chunks
  std::string dispatcher = "alltoall";  // how tokens reach experts on other ranks; or "allgather"
  std::string exchange = "auto";        // how alltoall moves rows: counted, padded, windows
  std::string context = "allgather";    // how context ranks see each other's rows; alltoall, ring
  int64_t bucket_mib = 128;             // gradients of several parameters in one message; 0: one by one
  int64_t optimizer_group = 0;          // replicas that share one optimizer state; 0: all
  int64_t ranks_per_node = 0;           // neighbours in rank order that share a machine; 0: not declared

  bool operator==(const ParallelConfig&) const = default;
};

// How ranks talk (comm/options.h).
struct CommConfig {
  double timeout = 300;  // seconds; 0: never
  bool check = false;
  bool mpi_native = false;
  int64_t exchange_sms = 0;  // of a GPU, whose worth of blocks a store into windows has at most; 0: all

  bool operator==(const CommConfig&) const = default;
};

struct DeviceConfig {
  std::string kind = "cpu";  // cpu | cuda
  int64_t threads = 0;       // 0: all cores
  bool graph = true;         // cuda: the step as one captured graph
  bool in_order = false;     // stages one after the other instead of lanes side by side
  bool deterministic_attention = true;
  std::string matmul_choices;  // cuda: matmul_choices.json of another run

  bool operator==(const DeviceConfig&) const = default;
};

struct Config {
  ModelConfig model;
  MoeConfig moe;
  OptimizerConfig optimizer;
  TrainConfig train;
  DataConfig data;
  ChatConfig chat;
  CheckpointConfig checkpoint;
  LogConfig log;
  PrecisionConfig precision;
  RecomputeConfig recompute;
  OffloadConfig offload;
  ParallelConfig parallel;
  CommConfig comm;
  DeviceConfig device;

  // What the text said: key path -> value as written, for `resolved`, and remarks for the console (such as a
  // --set key given twice). Neither is part of the configuration: equality and digest ignore them.
  std::map<std::string, std::string> asked;
  std::vector<std::string> notes;

  bool operator==(const Config& other) const {
    return model == other.model && moe == other.moe && optimizer == other.optimizer && train == other.train &&
           data == other.data && chat == other.chat && checkpoint == other.checkpoint && log == other.log &&
           precision == other.precision && recompute == other.recompute && offload == other.offload &&
           parallel == other.parallel && comm == other.comm && device == other.device;
  }
};

// Reads, parses and validates a file of at most 1 MiB. `sets` are "key=value" overrides with TOML values,
// applied in order after the file; a bare word is taken as a string where the key wants one, and "key=" takes
// a key back to its default. Throws base::Error naming key, value, what is needed and the nearest valid name.
Config load(const std::string& path, const std::vector<std::string>& sets = {});

// The same from text; `source_name` stands in messages about syntax.
Config parse(std::string_view toml_text, const std::vector<std::string>& sets = {},
             std::string_view source_name = "config");

// Throws when values are out of range or contradict each other. `load` and `parse` have done this already;
// for a Config built or changed in code. Keys in `asked` that have no effect are refused as well.
void validate(const Config& config);

// A copy with every derivable zero replaced by the value used (kv heads, head_dim, rotary_dim, threads,
// decay_steps, loss_chunk, checkpoint.dir, timeline_step ...). model.vocab_size stays 0 unless
// data.tokenizer is "byte" or the caller filled it from the tokenizer before. Idempotent.
Config resolve(const Config& config);

struct ResolvedRow {
  std::string key;
  std::string asked;  // as written, or "default"
  std::string used;
  std::string why;
};

// One row per key, in schema order: what was asked, what is used, and why they differ where they do.
std::vector<ResolvedRow> resolved(const Config& config);

// Meaning, type, default, allowed values, when it applies, related keys; of a section: its keys; of the empty
// key: the sections. Throws with the nearest name for anything else.
std::string explain(std::string_view key);

// Canonical text with every key that has an effect here; parses back to an equal Config.
std::string to_toml(const Config& config);

// SHA-256 (64 hex digits) of the canonical text: of what is asked, not of how it was written.
std::string digest(const Config& config);

// "key: a -> b" for every key whose value differs, in schema order.
std::vector<std::string> differences(const Config& a, const Config& b);

// Every key path of the schema, in order.
std::vector<std::string> all_keys();

// Always false in a dense model (moe.num_experts = 0). A layer of multi-token prediction (an index from
// model.num_layers on) is what the last decoder layer is.
bool is_moe_layer(const Config& config, int64_t layer);
int64_t num_moe_layers(const Config& config);                     // among the decoder's own layers
int64_t num_all_layers(const Config& config);                     // with those of multi-token prediction
int64_t last_own_layer(const ModelConfig& model, int64_t layer);  // the layer itself, at most the last one

// Layers named by recompute.layers as one flag per layer.
std::vector<bool> recompute_layers(const Config& config);
// The same of offload.layers.
std::vector<bool> offload_layers(const Config& config);

// Whether products of that layer may be in few bits; layers of multi-token prediction come last.
bool has_low_precision(const Config& config, int64_t layer);

}  // namespace pleat::config
