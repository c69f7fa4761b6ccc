#include "train/inference.h"

#include <algorithm>
#include <cstring>

#include "interpret/check/check.h"
#include "model/rope.h"

namespace pleat::train {

Inference::Inference(const config::Config& config, const InferenceChoice& choice)
    : config_(config),
      choice_(choice),
      table_(model::make_parameters(config)),
      pool_(static_cast<int>(config.device.threads)) {
  int64_t bytes = 0;
  const auto planned = [&](program::Program program) {
    auto p = std::make_unique<Planned>();
    p->program = schedule::without_optimizer_state(std::move(program));
    interpret::require_ok(interpret::check(p->program), "program " + p->program.name);
    p->plan = interpret::plan(p->program);
    interpret::require_ok(interpret::check_plan(p->program, p->plan), "plan of program " + p->program.name);
    bytes = std::max(bytes, p->plan.arena_bytes);
    plans_.push_back(std::move(p));
    return plans_.back().get();
  };
  const Planned *prefill = nullptr, *decode = nullptr, *whole = nullptr, *score = nullptr;
  const int64_t B = choice.num_sequences, L = choice.max_length;
  if (B > 0 && choice.whole_sequences) {
    whole = planned(schedule::build_logits(model::inference_config(config_, B, L), table_, B));
  } else if (B > 0) {
    if (choice.prefill_rows > 1)
      prefill = planned(schedule::build_decode(config_, table_,
                                               {B, std::min(choice.prefill_rows, L), L, choice.all_logits}));
    decode = planned(schedule::build_decode(config_, table_, {B, 1, L, choice.all_logits}));
  }
  if (choice.score_tokens > 0) score = planned(schedule::build_score(config_, table_, choice.score_tokens));
  PLEAT_CHECK(!plans_.empty(), "a model needs at least one program");
  arena_ = std::make_unique<device::Arena>(bytes);
  const auto bind = [&](const Planned* p) {
    return p ? std::make_unique<interpret::Executor>(p->program, p->plan, arena_->data(), pool_) : nullptr;
  };
  prefill_ = bind(prefill), decode_ = bind(decode), whole_ = bind(whole), score_ = bind(score);
  const std::vector<double> frequencies = model::rope_frequencies(config_.model);
  for (interpret::Executor* e : {prefill_.get(), decode_.get(), whole_.get(), score_.get()}) {
    if (!e) continue;
    std::memcpy(e->data("rope.inv_freq"), frequencies.data(), frequencies.size() * sizeof(double));
  }
}

std::vector<checkpoint::Target> Inference::targets() {
  std::vector<checkpoint::Target> out;
  const Planned& p = *plans_.front();
  for (size_t i = 0; i < p.program.values.size(); ++i) {
    const program::Value& v = p.program.values[i];
    const bool state = v.owner == program::Owner::Weights || v.owner == program::Owner::Routing;
    if (v.life != program::Life::Persistent || !state || v.view_of != program::kNoValue) continue;
    out.push_back({v.name,
                   v.dtype,
                   v.shape,
                   {arena_->data() + p.plan.offset[i], static_cast<size_t>(program::num_bytes(v))}});
  }
  return out;
}

}  // namespace pleat::train
