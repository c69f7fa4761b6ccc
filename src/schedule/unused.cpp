// Programs without values that no stage uses.
#include "schedule/build.h"

namespace pleat::schedule {
namespace {

template <class Drop>
program::Program without_unused(program::Program p, Drop drop) {
  std::vector<char> used(p.values.size(), 0);
  for (const program::Stage& stage : p.stages)
    for (const program::Use& use : stage.uses)
      if (use.value != program::kNoValue) used[static_cast<size_t>(program::root_of(p, use.value))] = 1;
  std::vector<program::ValueId> renamed(p.values.size(), program::kNoValue);
  std::vector<program::Value> kept;
  for (size_t i = 0; i < p.values.size(); ++i) {
    const size_t root = static_cast<size_t>(program::root_of(p, static_cast<program::ValueId>(i)));
    if (!used[root] && drop(p.values[root])) continue;
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

}  // namespace

program::Program without_optimizer_state(program::Program p) {
  return without_unused(std::move(p),
                        [](const program::Value& v) { return v.owner == program::Owner::Optimizer; });
}

program::Program without_unused_values(program::Program p) {
  return without_unused(std::move(p), [](const program::Value&) { return true; });
}

}  // namespace pleat::schedule
