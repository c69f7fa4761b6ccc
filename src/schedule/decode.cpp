#include <algorithm>

#include "schedule/build.h"

namespace pleat::schedule {

program::Program build_decode(const config::Config& config, const std::vector<model::Parameter>& table,
                              const model::DecodeShape& shape) {
  program::Builder builder(shape.num_new > 1 ? "prefill" : "decode");
  const config::Config used = model::inference_config(config, shape.num_sequences, shape.num_new);
  model::Decoder decoder = model::declare(used, table, builder, {model::Purpose::Logits});
  model::decode(decoder, shape);
  return builder.take();
}

program::Program build_score(const config::Config& config, const std::vector<model::Parameter>& table,
                             int64_t num_tokens) {
  program::Builder builder("score");
  const config::Config used = model::inference_config(config, 1, num_tokens);
  model::Decoder decoder = model::declare(used, table, builder, {model::Purpose::Logits});
  model::score(decoder);
  return builder.take();
}

program::Program without_optimizer_state(program::Program p) {
  std::vector<char> used(p.values.size(), 0);
  for (const program::Stage& stage : p.stages)
    for (const program::Use& use : stage.uses)
      if (use.value != program::kNoValue) used[static_cast<size_t>(program::root_of(p, use.value))] = 1;
  std::vector<program::ValueId> renamed(p.values.size(), program::kNoValue);
  std::vector<program::Value> kept;
  for (size_t i = 0; i < p.values.size(); ++i) {
    const size_t root = static_cast<size_t>(program::root_of(p, static_cast<program::ValueId>(i)));
    if (p.values[root].owner == program::Owner::Optimizer && !used[root]) continue;
    renamed[i] = static_cast<program::ValueId>(kept.size());
    kept.push_back(p.values[i]);
    if (kept.back().view_of != program::kNoValue)
      kept.back().view_of = renamed[static_cast<size_t>(kept.back().view_of)];
  }
  p.values = std::move(kept);
  for (program::Stage& stage : p.stages)
    for (program::Use& use : stage.uses)
      if (use.value != program::kNoValue) use.value = renamed[static_cast<size_t>(use.value)];
  return p;
}

}  // namespace pleat::schedule
