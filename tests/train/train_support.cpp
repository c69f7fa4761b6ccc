#include "train/train_support.h"

#include "base/hash.h"

namespace pleat::train::testing {

runtime::ProgramChoice train_only() {
  runtime::ProgramChoice c;
  c.evaluate = false;
  return c;
}

config::Config small_config(const std::string& extra, const std::vector<std::string>& sets) {
  const std::string text = R"(
[model]
dtype = "float64"
vocab_size = 37
hidden_size = 16
num_layers = 2
num_heads = 4
num_kv_heads = 2
head_dim = 6
[moe]
num_experts = 5
top_k = 2
ffn_hidden_size = 12
[train]
micro_batch = 2
num_microbatches = 2
seq_len = 9
loss_chunk = 7
[device]
threads = 2
)" + extra;
  return config::resolve(config::parse(text, sets));
}

Snapshot snapshot(const runtime::Programs& programs) {
  Snapshot out;
  for (const checkpoint::TensorRef& t : programs.tensors()) out[t.name] = t.bytes.copy();
  return out;
}

std::string digest(const Snapshot& s) {
  base::Sha256 sha;
  for (const auto& [name, bytes] : s) sha.update(name).update(bytes);
  return sha.hex();
}

std::vector<double> doubles_of(const std::vector<std::byte>& bytes) {
  std::vector<double> out(bytes.size() / sizeof(double));
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

void copy_state(const runtime::Programs& from, Runtime& to) {
  for (const checkpoint::TensorRef& t : from.tensors())
    std::memcpy(to.executor().data(t.name), t.bytes.host().data(), t.bytes.host().size());
  const program::Program& p = from.train_plan().program;
  for (size_t i = 0; i < p.values.size(); ++i)
    if (p.values[i].name == "rope.inv_freq")
      std::memcpy(to.executor().data("rope.inv_freq"), from.arena().data() + from.train_plan().plan.offset[i],
                  static_cast<size_t>(program::num_bytes(p.values[i])));
}

Snapshot snapshot(const Runtime& bound) {
  Snapshot out;
  for (size_t i = 0; i < bound.program().values.size(); ++i) {
    const program::Value& v = bound.program().values[i];
    if (v.life != program::Life::Persistent) continue;
    const auto* data = static_cast<const std::byte*>(bound.executor().data(static_cast<program::ValueId>(i)));
    out[v.name].assign(data, data + program::num_bytes(v));
  }
  return out;
}

program::Program with_gradients_kept(program::Program p) {
  return runtime::with_results(std::move(p),
                               [](const program::Value& v) { return v.owner == program::Owner::Gradients; });
}

Snapshot gradients(const program::Program& p, interpret::Executor& executor) {
  Snapshot out;
  for (size_t i = 0; i < p.values.size(); ++i) {
    const program::Value& v = p.values[i];
    if (v.owner != program::Owner::Gradients) continue;
    const auto* data = static_cast<const std::byte*>(executor.data(static_cast<program::ValueId>(i)));
    out[v.name].assign(data, data + program::num_bytes(v));
  }
  return out;
}

}  // namespace pleat::train::testing
