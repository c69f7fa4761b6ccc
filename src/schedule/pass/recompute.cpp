#include "schedule/pass/recompute.h"

#include <algorithm>
#include <unordered_map>

#include "base/error.h"
#include "program/edit.h"
#include "schedule/parts.h"

namespace pleat::schedule {
namespace {

using namespace program;

bool selected(const Stage& stage, const std::vector<std::string>& modules, const std::vector<bool>& layers) {
  if (stage.phase != Phase::Forward || stage.layer < 0 || stage.replay) return false;
  if (!layers.empty() && !layers[static_cast<size_t>(stage.layer)]) return false;
  return std::any_of(modules.begin(), modules.end(),
                     [&](const std::string& m) { return in_module(stage.op, m); });
}

bool is_backward(const Stage& s) {
  return s.phase == Phase::BackwardInput || s.phase == Phase::BackwardWeight;
}

// value -> the one forward stage that writes it, for values that selected stages produce.
std::unordered_map<ValueId, StageId> producers(const Program& program,
                                               const std::vector<std::string>& modules,
                                               const std::vector<bool>& layers) {
  std::unordered_map<ValueId, StageId> out;
  for (size_t s = 0; s < program.stages.size(); ++s) {
    if (!selected(program.stages[s], modules, layers)) continue;
    for (const Use& use : program.stages[s].uses)
      if (use.value != kNoValue && use.access == Access::Write &&
          program.values[static_cast<size_t>(use.value)].life == Life::Step)
        out[use.value] = static_cast<StageId>(s);
  }
  return out;
}

class Rebuilder {
 public:
  Rebuilder(Program program, const RecomputeOptions& options)
      : producers_(producers(program, options.modules, options.layers)), edit_(std::move(program)) {}

  Program run() {
    for (StageId s = 0; s < edit_.num_stages(); ++s) {
      // A stage of the backward reads rebuilt values; so does nothing else.
      if (!is_backward(edit_[s])) continue;
      for (Use& use : edit_[s].uses)
        if (use.access == Access::Read) use.value = rebuilt(use.value, s);
    }
    return edit_.apply();
  }

 private:
  // The value stage `reader` of the backward should read instead of v; what rebuilds it, unless it is there
  // already, comes right before the reader.
  ValueId rebuilt(ValueId v, StageId reader) {
    const auto producer = producers_.find(v);
    if (v == kNoValue || producer == producers_.end()) return v;
    if (const auto known = rebuilt_.find(v); known != rebuilt_.end()) return known->second;
    Stage again = edit_[producer->second];
    again.replay = 1;
    again.after.clear();
    for (Use& use : again.uses)
      if (use.access == Access::Read) use.value = rebuilt(use.value, reader);
    for (Use& use : again.uses) {
      if (use.value == kNoValue || use.access == Access::Read) continue;
      PLEAT_CHECK(use.access == Access::Write, "{} accumulates and cannot be replayed", stage_name(again));
      use.value = rebuilt_[use.value] = edit_.copy_of(use.value, ".again");
    }
    edit_.insert_before(reader, std::move(again));
    return rebuilt_.at(v);
  }

  std::unordered_map<ValueId, StageId> producers_;
  Edit edit_;
  std::unordered_map<ValueId, ValueId> rebuilt_;
};

}  // namespace

std::vector<ValueId> freed_by(const Program& program, const std::string& module,
                              const std::vector<bool>& layers) {
  const auto made = producers(program, {module}, layers);
  std::vector<ValueId> out;
  for (const Stage& stage : program.stages) {
    if (!is_backward(stage)) continue;
    for (const Use& use : stage.uses)
      if (use.value != kNoValue && use.access == Access::Read && made.count(use.value))
        out.push_back(use.value);
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

void require_freed(std::span<const Program> parts, const RecomputeOptions& options) {
  for (const std::string& module : options.modules)
    if (std::all_of(parts.begin(), parts.end(),
                    [&](const Program& p) { return freed_by(p, module, options.layers).empty(); }))
      base::fail(
          "recompute.modules names '{}', which would free nothing: no layer in recompute.layers keeps an "
          "output of "
          "that module for its backward. Remove it, or choose layers that have it",
          module);
}

void require_freed_by_ranks(const config::Config& c) {
  if (c.recompute.modules.empty()) return;
  require_freed(parts_of_ranks(c), {c.recompute.modules, config::recompute_layers(c)});
}

Program recompute(Program program, const RecomputeOptions& options) {
  if (!options.is_part) require_freed({&program, 1}, options);
  return Rebuilder(std::move(program), options).run();
}

}  // namespace pleat::schedule
