#include "config/resolve.h"

#include <sched.h>

#include <algorithm>
#include <thread>

#include "base/error.h"
#include "config/schema.h"
#include "config/validate.h"

namespace pleat::config {

namespace {

// 256 bytes and the end of a document.
constexpr int64_t kByteVocabulary = 257;
// Elements of logits kept at once when train.loss_chunk is left to us: 16 MiB in float32, which stays near
// the caches and still gives the head's matrix products full tiles.
constexpr int64_t kLossChunkElements = int64_t{4} << 20;
constexpr int64_t kLossChunkStep = 64;
// On a GPU fewer rows leave most of it without work, whatever the vocabulary.
constexpr int64_t kLossChunkOfGpu = 4096;

using Reasons = std::map<std::string, std::string>;

void resolve_model(Config& c, Reasons& why) {
  ModelConfig& m = c.model;
  if (m.vocab_size == 0 && c.data.tokenizer == "byte") {
    m.vocab_size = kByteVocabulary;
    why["model.vocab_size"] = "size of the byte tokenizer";
  }
  if (m.attention == "mla") {
    m.num_kv_heads = m.num_heads;
    m.head_dim = m.qk_nope_head_dim + m.qk_rope_head_dim;
    m.rotary_dim = m.qk_rope_head_dim;
    for (const char* key : {"model.num_kv_heads", "model.head_dim", "model.rotary_dim"})
      why[key] = "the widths of latent attention";
  }
  if (m.num_kv_heads == 0) {
    m.num_kv_heads = m.num_heads;
    why["model.num_kv_heads"] = "model.num_heads";
  }
  if (m.head_dim == 0) {
    m.head_dim = m.hidden_size / m.num_heads;
    why["model.head_dim"] = "model.hidden_size / model.num_heads";
  }
  if (m.rotary_dim == 0) {
    m.rotary_dim = m.head_dim;
    why["model.rotary_dim"] = "model.head_dim";
  }
  if (c.moe.num_experts > 0 && m.dtype == "float64" && c.moe.router_dtype != "float64") {
    c.moe.router_dtype = "float64";
    why["moe.router_dtype"] = "a float64 model has a float64 router";
  }
}

void resolve_schedule(Config& c, Reasons& why) {
  OptimizerConfig& o = c.optimizer;
  if (o.decay_steps > 0 || o.schedule == "constant") return;
  if (o.schedule == "wsd") {
    o.decay_steps = (c.train.steps + 9) / 10;
    why["optimizer.decay_steps"] = "a tenth of train.steps";
  } else {
    o.decay_steps = c.train.steps;
    why["optimizer.decay_steps"] = "train.steps";
  }
}

void resolve_run(Config& c, Reasons& why) {
  TrainConfig& t = c.train;
  if (t.loss_chunk == 0 && c.model.vocab_size > 0) {
    const int64_t rows = kLossChunkElements / c.model.vocab_size / kLossChunkStep * kLossChunkStep;
    const bool gpu = c.device.kind == "cuda";
    t.loss_chunk =
        std::min(std::max(rows, gpu ? kLossChunkOfGpu : kLossChunkStep), t.micro_batch * t.seq_len);
    why["train.loss_chunk"] = gpu ? "about 4 Mi logits at once, at least 4096 rows, at most one microbatch"
                                  : "about 4 Mi logits at once, at most one microbatch";
  }
  if (c.data.packing != "stream" && !c.asked.contains("data.packing"))
    why["data.packing"] = "all training data are conversations";
  if (c.checkpoint.dir.empty()) {
    c.checkpoint.dir = c.log.run_dir + (c.log.run_dir.ends_with('/') ? "checkpoints" : "/checkpoints");
    why["checkpoint.dir"] = "inside log.run_dir";
  }
  if (c.log.timeline_step == 0) {
    c.log.timeline_step = t.steps;
    why["log.timeline_step"] = "the last step";
  }
  if (c.device.threads == 0) {
    c.device.threads = usable_cores();
    why["device.threads"] = "all cores this process may run on";
  }
}

std::string reason(const Key& key, const Config& config, const Reasons& why) {
  if (const Condition* unmet = key.unmet(config)) return "not used: applies when " + unmet->text;
  if (const auto found = why.find(key.path); found != why.end()) return found->second;
  if (config.asked.contains(key.path)) return "as asked";
  return key.get(config) == key.default_value() ? "default" : "set by the program";
}

}  // namespace

int64_t threads_of_rank(const Config& config, int64_t ranks_here) {
  return std::max<int64_t>(1, config.device.threads / ranks_here);
}

int64_t usable_cores() {
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof cores, &cores) == 0) return CPU_COUNT(&cores);
  return std::max<int64_t>(1, std::thread::hardware_concurrency());
}

Config resolve_with_reasons(const Config& config, Reasons& why) {
  Config out = config;
  resolve_model(out, why);
  validate_vocabulary(out);
  resolve_schedule(out, why);
  resolve_run(out, why);
  return out;
}

Config resolve(const Config& config) {
  Reasons why;
  return resolve_with_reasons(config, why);
}

std::vector<ResolvedRow> resolved(const Config& config) {
  Reasons why;
  const Config used = resolve_with_reasons(config, why);
  std::vector<ResolvedRow> rows;
  for (const Key& key : schema()) {
    // Groups nobody mentioned would be sixteen rows of nothing.
    if (!key.present(used)) continue;
    const auto asked = config.asked.find(key.path);
    rows.push_back({key.path, asked == config.asked.end() ? "default" : asked->second,
                    key.unmet(used) ? "-" : to_text(key.get(used)), reason(key, used, why)});
  }
  return rows;
}

}  // namespace pleat::config
