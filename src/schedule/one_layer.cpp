#include "model/block/moe.h"
#include "program/edit.h"
#include "program/step_values.h"
#include "schedule/build.h"

namespace pleat::schedule {

program::Program build_moe_layer(const config::Config& config, const std::vector<model::Parameter>& table,
                                 LayerPart part) {
  using program::Life;
  using program::Owner;
  program::Builder builder("layer");
  model::Decoder d = model::declare(config, table, builder, {model::Purpose::Train});
  const std::vector<int64_t> shape = {d.num_tokens, config.model.hidden_size};
  d.saved[0][0].mlp_normed = builder.value("x", d.compute, shape, Owner::Inputs, Life::Persistent);
  model::routed_forward(d, 0, 0, program::kNoValue, program::kNoValue);
  if (part == LayerPart::Both) {
    const program::ValueId dy = builder.value("dy", d.compute, shape, Owner::Inputs, Life::Persistent);
    const auto [d_x, d_probs] = model::experts_backward(d, 0, 0, dy);
    model::route_backward(d, 0, 0, d_probs, d_x);
  }
  program::Program p = program::without_unused_values(builder.take());
  // The host gives the seed and reads the load; nothing else travels while the layer runs.
  for (program::Value& v : p.values) {
    if (v.life == Life::Input && v.name != program::step::rng.what) v.life = Life::Persistent;
    if (v.life == Life::Result && v.name != program::step::load.name(0).text) v.life = Life::Step;
  }
  return p;
}

}  // namespace pleat::schedule
