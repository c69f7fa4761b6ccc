#include <algorithm>

#include "base/checked.h"
#include "base/error.h"
#include "layout/from_config.h"
#include "schedule/build.h"

namespace pleat::schedule {

void require_writable(const config::Config& config, const model::Mesh& mesh) {
  // A layer has at least this many stages per microbatch, forward and backward.
  constexpr int64_t kFewestStages = 16;
  const int64_t n =
      config.train.order == "loop" ? kLoopMicrobatches : config.train.num_microbatches / mesh.dp;
  const int64_t layers = std::max<int64_t>(1, config::num_all_layers(config) / mesh.pp);
  const int64_t stages = base::checked_mul(base::checked_mul(n, layers, "stages"), kFewestStages, "stages");
  if (stages > program::kMaxStages)
    base::fail(
        "train.num_microbatches = {}: {} microbatches of {} layers on a rank are more than {} stages, and a "
        "program holds at most {}; train.order = \"loop\" writes down three of them, and fewer microbatches "
        "with "
        "a larger train.micro_batch train on the same tokens",
        config.train.num_microbatches, n, layers, stages, program::kMaxStages);
}

program::Program build_training_step(const config::Config& config, const std::vector<model::Parameter>& table,
                                     const BuildOptions& options) {
  require_writable(config, options.mesh);
  if (options.mesh.pp > 1) return build_pipeline_step(config, table, options);
  if (options.mesh.world() == 1) layout::require_one_rank(config);
  program::Builder builder("train");
  const int64_t all = config.train.num_microbatches / options.mesh.dp;
  const bool loops = config.train.order == "loop";
  const int n = static_cast<int>(loops ? kLoopMicrobatches : all);
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
  program::Program program = builder.take();
  if (loops) program.repeat = {kRepeated, all - (n - 1)};
  return program;
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
