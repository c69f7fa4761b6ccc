#include "schedule/pass/recompute.h"

#include <algorithm>
#include <unordered_map>

#include "base/error.h"

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
      : in_(std::move(program)), producers_(producers(in_, options.modules, options.layers)) {}

  Program run() {
    Program out = in_;
    out.stages.clear();
    out_ = &out;
    for (const Stage& stage : in_.stages) {
      Stage copy = stage;
      // A stage of the backward reads rebuilt values; so does nothing else.
      if (is_backward(stage))
        for (Use& use : copy.uses)
          if (use.access == Access::Read) use.value = rebuilt(use.value);
      out.stages.push_back(std::move(copy));
    }
    return out;
  }

 private:
  // The value a backward stage should read instead of v, emitting what rebuilds it if it is not there yet.
  ValueId rebuilt(ValueId v) {
    if (v == kNoValue) return v;
    const auto producer = producers_.find(v);
    if (producer == producers_.end()) return v;
    if (const auto known = rebuilt_.find(v); known != rebuilt_.end()) return known->second;
    Stage again = in_.stages[static_cast<size_t>(producer->second)];
    again.replay = 1;
    for (Use& use : again.uses)
      if (use.access == Access::Read) use.value = rebuilt(use.value);
    for (Use& use : again.uses) {
      if (use.value == kNoValue || use.access == Access::Read) continue;
      PLEAT_CHECK(use.access == Access::Write, "{} accumulates and cannot be replayed", stage_name(again));
      Value copy = in_.values[static_cast<size_t>(use.value)];
      copy.name += ".again";
      out_->values.push_back(std::move(copy));
      const ValueId fresh = static_cast<ValueId>(out_->values.size() - 1);
      rebuilt_[use.value] = fresh;
      use.value = fresh;
    }
    out_->stages.push_back(std::move(again));
    return rebuilt_.at(v);
  }

  Program in_;
  Program* out_ = nullptr;
  std::unordered_map<ValueId, StageId> producers_;
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

void require_freed(const Program& program, const RecomputeOptions& options) {
  for (const std::string& module : options.modules)
    if (freed_by(program, module, options.layers).empty())
      base::fail(
          "recompute.modules names '{}', which would free nothing: no layer in recompute.layers keeps an "
          "output of "
          "that module for its backward. Remove it, or choose layers that have it",
          module);
}

Program recompute(Program program, const RecomputeOptions& options) {
  if (!options.is_part) require_freed(program, options);
  return Rebuilder(std::move(program), options).run();
}

}  // namespace pleat::schedule
