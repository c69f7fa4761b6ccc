#include "layout/from_config.h"
#include "schedule/build.h"

namespace pleat::schedule {

program::Program build_training_step(const config::Config& config, const std::vector<model::Parameter>& table,
                                     const BuildOptions& options) {
  if (options.mesh.pp > 1) return build_pipeline_step(config, table, options);
  if (options.mesh.world() == 1) layout::require_one_rank(config);
  program::Builder builder("train");
  const int n = static_cast<int>(config.train.num_microbatches / options.mesh.dp);
  model::Decoder decoder = model::declare(
      config, table, builder, {model::Purpose::Train, n, options.routing, options.mesh, options.role});
  if (config.train.order == "gpipe") {
    for (int mb = 0; mb < n; ++mb) model::forward(decoder, mb);
    model::finish_counts(decoder);
    for (int mb = 0; mb < n; ++mb) model::backward(decoder, mb);
  } else {
    for (int mb = 0; mb < n; ++mb) {
      model::forward(decoder, mb);
      model::backward(decoder, mb);
    }
  }
  model::update(decoder);
  return builder.take();
}

program::Program build_evaluation(const config::Config& config, const std::vector<model::Parameter>& table,
                                  const BuildOptions& options) {
  if (options.mesh.pp > 1) return build_pipeline_evaluation(config, table, options);
  program::Builder builder("evaluate");
  model::Decoder decoder = model::declare(
      config, table, builder, {model::Purpose::Evaluate, 1, options.routing, options.mesh, options.role});
  model::forward(decoder, 0);
  model::finish_evaluation(decoder);
  return builder.take();
}

program::Program build_gather(const config::Config& config, const std::vector<model::Parameter>& table,
                              const BuildOptions& options) {
  program::Builder builder("gather");
  model::declare(config, table, builder,
                 {model::Purpose::Gather, 0, options.routing, options.mesh, options.role});
  return builder.take();
}

program::Program build_logits(const config::Config& config, const std::vector<model::Parameter>& table,
                              int64_t num_sequences) {
  program::Builder builder("logits");
  config::Config one = config;
  one.train.micro_batch = num_sequences;
  model::Decoder decoder =
      model::declare(one, table, builder, {model::Purpose::Logits, 1, model::RoutingUse::Choose, {}, {}});
  model::forward(decoder, 0);
  return builder.take();
}

}  // namespace pleat::schedule
