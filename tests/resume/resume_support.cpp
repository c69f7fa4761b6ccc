#include "resume/resume_support.h"

#include <algorithm>
#include <limits>

#include "base/rng.h"
#include "data/byte_tokenizer.h"
#include "data/indexed_dataset.h"
#include "data/prepare.h"

namespace pleat::train::testing {

std::string made_up_text(int64_t num_bytes, uint64_t seed) {
  const base::RandomStream random(seed, base::RandomUse::Test, 0, 0);
  uint64_t draw = 0;
  const auto below = [&](int64_t n) {
    return static_cast<int64_t>(random.uniform(draw++) * static_cast<double>(n));
  };
  std::string out;
  while (static_cast<int64_t>(out.size()) < num_bytes) {
    for (int64_t i = 2 + below(4); i > 0; --i) out += static_cast<char>('a' + below(1 + below(26)));
    out += below(14) == 0 ? "\n\n" : " ";
  }
  out.resize(static_cast<size_t>(num_bytes), 'z');
  return out;
}

void write_dataset(const std::string& prefix, int64_t num_tokens, uint64_t seed) {
  // A separator of two bytes becomes one end of document: cut the text until the count is right.
  std::string text = made_up_text(num_tokens * 2, seed);
  data::PrepareOptions options;
  options.inputs = {prefix + ".txt"};
  options.separator = "\n\n";
  options.output_prefix = prefix;
  int64_t length = 0, tokens = 1;
  while (tokens < num_tokens) {
    const bool cut = text.compare(static_cast<size_t>(length), 2, "\n\n") == 0;
    length += cut ? 2 : 1;
    ++tokens;
  }
  text.resize(static_cast<size_t>(length));
  text.back() = text[text.size() - 2] = 'q';  // no empty document at the end
  pleat::testing::write_text(prefix + ".txt", text);
  const data::PrepareResult result = data::prepare(options, data::ByteTokenizer{});
  PLEAT_CHECK(std::abs(result.train.num_tokens - num_tokens) <= 1 && result.train.num_documents > 2,
              "{} tokens, {} documents", result.train.num_tokens, result.train.num_documents);
}

std::string run_toml(const std::string& data, const std::string& run_dir, int64_t steps) {
  return fmt::format(R"(
[model]
hidden_size = 32
num_layers = 2
num_heads = 4
num_kv_heads = 2
qkv_bias = true
[moe]
num_experts = 8
top_k = 2
ffn_hidden_size = 16
shared_ffn_hidden_size = 16
shared_gate = true
score = "sigmoid"
load_balancing = ["aux", "bias"]
aux_coef = [0.01]
bias_update_rate = 0.01
z_coef = 1e-3
input_jitter = 0.05
[optimizer]
lr = 1e-2
min_lr = 1e-3
warmup_steps = 2
[train]
steps = {}
micro_batch = 2
num_microbatches = 2
seq_len = 32
[data]
train = "{}"
[log]
run_dir = "{}"
tensorboard = false
[device]
threads = 1
)",
                     steps, data, run_dir);
}

config::Config resolved_config(const TempFolder& folder, int64_t steps,
                               const std::vector<std::string>& sets) {
  return config::resolve(config::parse(run_toml(folder.at("data"), folder.at("run"), steps), sets));
}

TrainerHooks faults_at(std::vector<int64_t> steps) {
  TrainerHooks hooks;
  hooks.before_run = [steps = std::move(steps)](int64_t step, interpret::Executor& executor) {
    if (std::find(steps.begin(), steps.end(), step) != steps.end())
      static_cast<double*>(executor.data("norm"))[0] = std::numeric_limits<double>::quiet_NaN();
  };
  return hooks;
}

Tensors tensors_of(const Trainer& trainer) {
  Tensors out;
  for (const checkpoint::TensorRef& t : trainer.state().tensors)
    out[t.name].assign(t.bytes.begin(), t.bytes.end());
  return out;
}

}  // namespace pleat::train::testing
