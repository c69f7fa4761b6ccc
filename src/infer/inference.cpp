#include "infer/inference.h"

#include <algorithm>

#include "model/decode.h"
#include "runtime/constants.h"
#include "schedule/build.h"

namespace pleat::infer {

struct Inference::Built {
  config::Config config;
  InferenceChoice choice;
  std::vector<model::Parameter> table;
  std::vector<runtime::Planned> programs = {};
  size_t prefill = kNone, decode = kNone, whole = kNone, score = kNone;

  size_t add(program::Program program) {
    programs.push_back(runtime::planned(schedule::without_optimizer_state(std::move(program))));
    return programs.size() - 1;
  }
};

Inference::Built Inference::build(const config::Config& config, const InferenceChoice& choice) {
  Built b{config, choice, model::make_parameters(config)};
  const int64_t B = choice.num_sequences, L = choice.max_length;
  if (B > 0 && choice.whole_sequences) {
    b.whole = b.add(schedule::build_logits(model::inference_config(config, B, L), b.table, B));
  } else if (B > 0) {
    if (choice.prefill_rows > 1)
      b.prefill = b.add(schedule::build_decode(config, b.table,
                                               {B, std::min(choice.prefill_rows, L), L, choice.all_logits}));
    b.decode = b.add(schedule::build_decode(config, b.table, {B, 1, L, choice.all_logits}));
  }
  if (choice.score_tokens > 0) b.score = b.add(schedule::build_score(config, b.table, choice.score_tokens));
  return b;
}

Inference::Inference(const config::Config& config, const InferenceChoice& choice)
    : Inference(build(config, choice)) {}

Inference::Inference(Built b)
    : Runtime(std::move(b.programs), {.num_threads = static_cast<int>(b.config.device.threads)}),
      config_(std::move(b.config)),
      choice_(b.choice),
      table_(std::move(b.table)),
      prefill_(b.prefill),
      decode_(b.decode),
      whole_(b.whole),
      score_(b.score) {
  runtime::write_constants(*this, config_.model, {});
}

std::vector<checkpoint::Target> Inference::weights() const {
  std::vector<checkpoint::Target> out;
  for (size_t i = 0; i < program().values.size(); ++i) {
    const program::Value& v = program().values[i];
    const bool state = v.owner == program::Owner::Weights || v.owner == program::Owner::Routing;
    if (v.life != program::Life::Persistent || !state || v.view_of != program::kNoValue) continue;
    out.push_back(target(v.name));
  }
  return out;
}

}  // namespace pleat::infer
