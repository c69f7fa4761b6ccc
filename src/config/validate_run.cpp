#include <algorithm>

#include "base/checked.h"
#include "base/error.h"
#include "base/text_name.h"
#include "config/resolve.h"
#include "config/schema.h"
#include "config/validate.h"
#include "program/limits.h"

namespace pleat::config {

namespace {

void check_schedule(const Config& c) {
  const OptimizerConfig& o = c.optimizer;
  if (o.schedule == "constant") return;
  if (o.min_lr > o.lr)
    base::fail("optimizer.min_lr = {} is larger than optimizer.lr = {}; it may be at most that", o.min_lr,
               o.lr);
  const int64_t decay_steps = resolve(c).optimizer.decay_steps;
  if (o.schedule == "wsd") {
    if (o.warmup_steps + decay_steps > c.train.steps)
      base::fail(
          "optimizer.warmup_steps = {} and a final decay of {} steps (optimizer.decay_steps = {}) do not fit "
          "into "
          "train.steps = {}",
          o.warmup_steps, decay_steps, o.decay_steps, c.train.steps);
  } else if (o.warmup_steps >= decay_steps) {
    base::fail(
        "optimizer.warmup_steps = {} leaves nothing to decay before step {} (optimizer.decay_steps = {}, "
        "train.steps = {}); at most {} is possible",
        o.warmup_steps, decay_steps, o.decay_steps, c.train.steps, decay_steps - 1);
  }
}

void check_sizes(const Config& c) {
  using program::kMaxRows, program::kMaxTokens;
  const int64_t tokens = base::checked_mul(c.train.micro_batch, c.train.seq_len, "tokens of a microbatch");
  if (tokens > kMaxTokens)
    base::fail(
        "train.micro_batch = {} times train.seq_len = {} is more than {} tokens; use more "
        "train.num_microbatches",
        c.train.micro_batch, c.train.seq_len, kMaxTokens);
  const int64_t copies = c.moe.num_experts > 0 ? std::max<int64_t>(1, c.moe.top_k) : 1;
  if (base::checked_mul(tokens, copies, "routed rows of a microbatch") > kMaxRows)
    base::fail(
        "train.micro_batch = {} times train.seq_len = {} times {} rows per token is more than {}; use more "
        "train.num_microbatches",
        c.train.micro_batch, c.train.seq_len, copies, kMaxRows);
  if (c.train.loss_chunk > tokens)
    base::fail("train.loss_chunk = {} is more than the {} tokens of a microbatch; at most that, or 0",
               c.train.loss_chunk, tokens);
  if (c.log.timeline_step > c.train.steps)
    base::fail("log.timeline_step = {} comes after the last step, train.steps = {}; at most that, or 0",
               c.log.timeline_step, c.train.steps);
}

void check_order(const Config& c) {
  if (c.train.order != "loop") return;
  if (c.model.num_mtp_layers > 0)
    base::fail(
        "train.order = \"loop\" repeats a microbatch, and model.num_mtp_layers = {} shifts the labels of all "
        "of them "
        "at the start of a step; needed is train.order = \"1f1b\", or no such layers",
        c.model.num_mtp_layers);
  if (c.device.kind == "cuda")
    base::fail(
        "train.order = \"loop\" needs device.kind = \"cpu\" (now \"cuda\"): a GPU runs a step as one graph; "
        "set "
        "\"1f1b\"");
}

void check_data(const Config& c) {
  const auto is_text = [](const std::string& path) { return base::names_text(path); };
  const DataConfig& d = c.data;
  const bool reads_text =
      is_text(d.train) || is_text(d.valid) || std::any_of(d.sources.begin(), d.sources.end(), is_text);
  if (d.tokenizer.empty())
    base::fail("data.tokenizer is empty; needed is \"byte\" or the path of a tokenizer");
  if (d.tokenizer == "byte" && c.model.vocab_size > 0 && c.model.vocab_size < 257 && reads_text)
    base::fail(
        "model.vocab_size = {} is too small for data.tokenizer = \"byte\" on text; needed is 257 or more, or "
        "0",
        c.model.vocab_size);
  if (d.jsonl_key.empty())
    base::fail("data.jsonl_key is empty; name the member that holds the text, as in \"text\"");
  if (!d.sources.empty() && !d.train.empty())
    base::fail("data.train and data.sources are both given; needed is one of them");
  if (d.sources.size() != d.weights.size())
    base::fail("data.sources names {} datasets and data.weights holds {} weights; needed is one for each",
               d.sources.size(), d.weights.size());
  if (std::any_of(d.sources.begin(), d.sources.end(), [](const std::string& path) { return path.empty(); }))
    base::fail("data.sources holds an empty path; name a dataset in each place");
  if (!d.sources.empty() && d.valid_split > 0)
    base::fail(
        "data.valid_split = {} holds out a share of data.train, but there is data.sources; set data.valid",
        d.valid_split);
  if (d.packing != "stream" && !d.isolate_documents)
    base::fail(
        "data.packing = \"{}\" keeps documents apart, but data.isolate_documents = false; needed is true, or "
        "packing = \"stream\"",
        d.packing);
  if (c.chat.template_name == "custom" && c.chat.assistant_prefix.empty() && c.chat.assistant_suffix.empty())
    base::fail(
        "chat.template = \"custom\" without chat.assistant_prefix or chat.assistant_suffix: nothing would be "
        "learned");
  if (c.log.run_dir.empty())
    base::fail("log.run_dir is empty; name the folder of the run, as in \"runs/default\"");
}

// A class that matches no parameter would be a setting without effect.
void check_freeze(const Config& c) {
  const bool experts = num_moe_layers(c) > 0;
  for (const std::string& name : c.optimizer.freeze) {
    std::string why;
    if ((name == "router" || name == "experts" || name == "shared_experts") && !experts)
      why = "no layer has experts";
    else if (name == "shared_experts" && c.moe.shared_ffn_hidden_size == 0)
      why = "moe.shared_ffn_hidden_size = 0";
    else if (name == "mlp" && num_moe_layers(c) == c.model.num_layers)
      why = "every layer has experts";
    else if (name == "head" && c.model.tie_embeddings)
      why = "the head is tied and belongs to the class embedding";
    else if (name == "mtp" && c.model.num_mtp_layers == 0)
      why = "model.num_mtp_layers = 0";
    if (!why.empty())
      base::fail("optimizer.freeze names \"{}\", which matches no parameter of this model: {}; remove it",
                 name, why);
  }
}

void check_recompute(const Config& c) {
  const std::vector<bool> layers = recompute_layers(c);
  bool any_moe = false;
  for (size_t layer = 0; layer < layers.size(); ++layer)
    any_moe = any_moe || (layers[layer] && is_moe_layer(c, static_cast<int64_t>(layer)));
  for (const std::string& module : c.recompute.modules) {
    if ((module == "experts" || module == "shared_experts") && !any_moe)
      base::fail(
          "recompute.modules holds \"{}\", but none of the layers {} is MoE; remove it, or name others",
          module, c.recompute.layers);
    if (module == "shared_experts" && c.moe.shared_ffn_hidden_size == 0)
      base::fail(
          "recompute.modules holds \"shared_experts\", but moe.shared_ffn_hidden_size = 0: there is none; "
          "remove it");
  }
}

// What is named must be there, without a bias: the products of codes have none.
void check_precision(const Config& c) {
  if (c.precision.recipe == "none") return;
  bool any = false, dense = false, experts = false;
  for (int64_t layer = 0; layer < num_all_layers(c); ++layer) {
    if (!has_low_precision(c, layer)) continue;
    any = true;
    (is_moe_layer(c, layer) ? experts : dense) = true;
  }
  if (!any)
    base::fail(
        "precision.wide_first = {} and precision.wide_last = {} leave no layer of {} to precision.recipe = "
        "\"{}\"",
        c.precision.wide_first, c.precision.wide_last, num_all_layers(c), c.precision.recipe);
  struct Module {
    const char* name;
    bool is_there;
    const char* what;  // has it
    bool biased;
    const char* bias;  // key
  };
  const bool mla = c.model.attention == "mla";
  const Module modules[] = {
      {"experts", experts, "a layer with experts", c.moe.expert_bias, "moe.expert_bias"},
      {"shared_experts", experts && c.moe.shared_ffn_hidden_size > 0,
       experts ? "moe.shared_ffn_hidden_size > 0" : "a layer with experts", false, ""},
      {"attention", true, "", c.model.attn_out_bias || (c.model.qkv_bias && !mla),
       c.model.attn_out_bias ? "model.attn_out_bias" : "model.qkv_bias"},
      {"latent", mla, "model.attention = \"mla\"", false, ""},
      {"mlp", dense, "a dense layer", c.model.mlp_bias, "model.mlp_bias"}};
  for (const Module& m : modules) {
    const auto& asked = c.precision.modules;
    const bool named = std::find(asked.begin(), asked.end(), m.name) != asked.end();
    if (named && !m.is_there)
      base::fail(
          "precision.modules holds \"{}\", but among the layers it is for none is such: needed {}; remove it",
          m.name, m.what);
    if ((named || asked.empty()) && m.is_there && m.biased)
      base::fail(
          "precision.recipe = \"{}\" has no products with a bias: {} = true; needed false, or "
          "precision.modules "
          "without \"{}\"",
          c.precision.recipe, m.bias, m.name);
  }
}

}  // namespace

void validate_run(const Config& c) {
  check_schedule(c);
  check_order(c);
  check_sizes(c);
  check_data(c);
  check_recompute(c);
  check_precision(c);
  check_freeze(c);
}

}  // namespace pleat::config
