#include "resume/resume_support.h"

#include <algorithm>
#include <filesystem>
#include <limits>

#include "base/rng.h"
#include "checkpoint/save.h"
#include "data/byte_tokenizer.h"
#include "data/indexed_dataset.h"
#include "data/prepare.h"
#include "support/small_models.h"

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
  pleat::testing::write_file(prefix + ".txt", text);
  const data::PrepareResult result = data::prepare(options, data::ByteTokenizer{});
  PLEAT_CHECK(std::abs(result.train.num_tokens - num_tokens) <= 1 && result.train.num_documents > 2,
              "{} tokens, {} documents", result.train.num_tokens, result.train.num_documents);
}

std::string run_toml(const std::string& data, const std::string& run_dir, int64_t steps) {
  return fmt::format(R"({}
model.qkv_bias = true
moe.num_experts = 8
moe.shared_ffn_hidden_size = 16
moe.shared_gate = true
moe.score = "sigmoid"
moe.load_balancing = ["aux", "bias"]
moe.aux_coef = [0.01]
moe.bias_update_rate = 0.01
moe.z_coef = 1e-3
moe.input_jitter = 0.05
optimizer.lr = 1e-2
optimizer.min_lr = 1e-3
optimizer.warmup_steps = 2
train.steps = {}
train.num_microbatches = 2
data.train = "{}"
log.run_dir = "{}"
log.tensorboard = false
device.threads = 1
)",
                     pleat::testing::kRunModel, steps, data, run_dir);
}

config::Config resolved_config(const TemporaryFolder& folder, int64_t steps,
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
  for (const checkpoint::TensorRef& t : trainer.state().tensors) out[t.name] = t.bytes.copy();
  return out;
}

checkpoint::Loaded SavedRuns::saved(const checkpoint::StateView& state, const std::string& name) {
  const std::string directory = folder_.at(name);
  std::filesystem::remove_all(directory);
  std::filesystem::create_directories(directory);
  checkpoint::save(vfs_, directory, state, {});
  checkpoint::Found found = checkpoint::find_newest(vfs_, directory);
  PLEAT_CHECK(found.newest && found.skipped.empty());
  return *found.newest;
}

std::vector<std::string> SavedRuns::digests(Trainer& trainer, int64_t num_steps) {
  std::vector<std::string> out;
  for (int64_t i = 0; i < num_steps; ++i) trainer.step(), out.push_back(trainer.state_sha256());
  return out;
}

}  // namespace pleat::train::testing
