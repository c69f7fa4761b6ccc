#include "program/edit.h"
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
  return program::without_unused_values(
      std::move(p), [](const program::Value& v) { return v.owner == program::Owner::Optimizer; });
}

}  // namespace pleat::schedule
