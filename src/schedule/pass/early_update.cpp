#include "schedule/pass/early_update.h"

#include <algorithm>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "model/state.h"
#include "program/builder.h"
#include "program/edit.h"
#include "program/signature.h"

namespace pleat::schedule {
namespace {

using namespace program;

constexpr StageId kNowhere = -1;

class EarlyUpdate {
 public:
  explicit EarlyUpdate(Program program) : edit_(std::move(program)) {
    for (StageId s = 0; s < edit_.num_stages(); ++s) {
      const Stage& stage = edit_[s];
      if (stage.op == Op::grad_norm) norm_of_[signature::grad_norm::Update<Use>(stage.uses).g.value] = s;
      if (stage.op == Op::clip) {
        const signature::clip::Update<Use> clip(stage.uses);
        clip_of_[clip.parts.value] = s;
        if (edit_.program().values[size_t(clip.grad_scale.value)].life == Life::Result) whole_ = s;
      }
    }
    PLEAT_CHECK(whole_ != kNowhere, "a step without a norm of its gradients");
  }

  Program apply() {
    std::vector<Moved> moved;
    for (StageId s = 0; s < edit_.num_stages(); ++s)
      if (model::is_update(edit_[s].op)) moved.push_back(moved_of(s));
    // What moves does not hold anything up where it was.
    std::vector<char> moves(static_cast<size_t>(edit_.num_stages()), 0);
    for (const Moved& m : moved)
      for (const StageId s : {m.norm, m.clip, m.update})
        if (s != kNowhere) moves[size_t(s)] = 1;
    moves[size_t(whole_)] = 1;
    const StageId shared = shared_clip(moves);
    if (shared != kNowhere) moves[size_t(shared)] = 1;
    std::unordered_map<ValueId, Last> last;
    std::vector<std::pair<StageId, size_t>> order;
    for (StageId s = 0; s < edit_.num_stages(); ++s) {
      if (moves[size_t(s)]) continue;
      for (const Use& use : edit_[s].uses) {
        if (use.value == kNoValue) continue;
        Last& l = last[root(use.value)];
        l.use = s;
        if (use.access != Access::Read) l.write = s;
      }
    }
    const auto behind_all = [&](const Stage& stage) {
      StageId behind = kNowhere;
      for (const Use& use : stage.uses) {
        if (use.value == kNoValue) continue;
        const auto found = last.find(root(use.value));
        if (found == last.end() || is_parts(use.value)) continue;
        behind = std::max(behind, use.access == Access::Read ? found->second.write : found->second.use);
      }
      return behind;
    };
    if (shared != kNowhere) {
      Stage clip = edit_[shared];
      clip.after.clear();
      const StageId behind = behind_all(clip);
      for (const Use& use : clip.uses)
        if (use.value != kNoValue && use.access != Access::Read) last[root(use.value)] = {behind, behind};
      edit_.insert_before(behind + 1, std::move(clip));
      edit_.erase(shared);
    }
    for (Moved& m : moved) {
      StageId behind = kNowhere;
      for (const Stage& stage : m.stages) behind = std::max(behind, behind_all(stage));
      PLEAT_CHECK(behind != kNowhere, "nothing writes the gradient of {}", stage_name(m.stages.back()));
      order.emplace_back(behind, order.size());
    }
    for (const auto& [behind, index] : order) {
      Moved& m = moved[index];
      for (Stage& stage : m.stages) edit_.insert_before(behind + 1, std::move(stage));
      for (const StageId s : {m.norm, m.clip, m.update})
        if (s != kNowhere) edit_.erase(s);
    }
    return edit_.apply();
  }

 private:
  // The stages of one tensor: where they were (kNowhere: nowhere), and as they will be.
  struct Moved {
    StageId norm = kNowhere, clip = kNowhere, update = kNowhere;
    std::vector<Stage> stages;
  };
  struct Last {
    StageId use = kNowhere, write = kNowhere;
  };

  // The clip by the norm of the step before, which every update reads; kNowhere: there is none.
  StageId shared_clip(const std::vector<char>& moves) const {
    for (StageId s = 0; s < edit_.num_stages(); ++s)
      if (edit_[s].op == Op::clip && !moves[size_t(s)]) return s;
    return kNowhere;
  }

  ValueId root(ValueId v) const {
    const Value& value = edit_.program().values[size_t(v)];
    return value.view_of == kNoValue ? v : value.view_of;
  }
  bool is_parts(ValueId v) const {
    return root(v) == root(signature::clip::Update<Use>(edit_[whole_].uses).parts.value);
  }

  Moved moved_of(StageId s) {
    Moved out;
    out.update = s;
    Stage update = edit_[s];
    const auto norm = norm_of_.find(update.uses[0].value);
    PLEAT_CHECK(norm != norm_of_.end(), "{} updates by a gradient without a norm", stage_name(update));
    out.norm = norm->second;
    const ValueId parts = signature::grad_norm::Update<Use>(edit_[out.norm].uses).parts.value;
    Stage clip;
    if (const auto found = clip_of_.find(parts); found != clip_of_.end()) {
      out.clip = found->second;
      clip = edit_[out.clip];
    } else {
      clip = own_clip(update, parts);
    }
    const signature::clip::Update<Use> own(clip.uses), whole(edit_[whole_].uses);
    for (Use& use : update.uses) {
      if (use.value == whole.commit.value) use.value = own.commit.value;
      if (use.value == whole.grad_scale.value) use.value = own.grad_scale.value;
    }
    out.stages = {edit_[out.norm], std::move(clip), std::move(update)};
    for (Stage& stage : out.stages) stage.after.clear();
    return out;
  }

  // Says of one tensor whether its gradient, the loss and the overflow are as they should be, and scales nothing.
  Stage own_clip(const Stage& update, ValueId parts) {
    const signature::clip::Update<Use> whole(edit_[whole_].uses);
    const Value weight = edit_.program().values[size_t(weight_of(update))];  // a copy: values are added
    const auto add = [&](ValueId like, const char* what) {
      Value v = edit_.program().values[size_t(like)];
      v.name = weight.name + what, v.layer = weight.layer;
      v.life = Life::Step, v.owner = Owner::Workspace;
      return edit_.add(std::move(v));
    };
    Stage out = edit_[whole_];
    out.layer = update.layer, out.part = update.part + 1;
    const ValueId scale = add(whole.grad_scale.value, ".clip"), commit = add(whole.commit.value, ".finite");
    out.uses = {r(parts), whole.loss, whole.overflow, w(scale), w(commit)};
    out.attrs = edit_.attrs({{"clip", 0}});
    return out;
  }

  ValueId weight_of(const Stage& update) const {
    for (const Use& use : update.uses)
      if (use.value != kNoValue && use.access == Access::Update) return use.value;
    PLEAT_CHECK(false, "{} changes nothing", stage_name(update));
  }

  Edit edit_;
  StageId whole_ = kNowhere;                      // the norm of all
  std::unordered_map<ValueId, StageId> norm_of_;  // by gradient
  std::unordered_map<ValueId, StageId> clip_of_;  // by parts of the norm
};

}  // namespace

Program early_update(Program program) { return EarlyUpdate(std::move(program)).apply(); }

}  // namespace pleat::schedule
