#include "interpret/check/check_windows.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "program/repeat.h"

namespace pleat::interpret {

using namespace program;

namespace {

// Of the bytes behind a root value: the last store, and what used them since.
struct WindowUses {
  StageId store = -1;
  std::vector<StageId> uses;  // the store among them
  ValueId used_as = kNoValue;
};

class WindowWalk {
 public:
  WindowWalk(const Program& program, const Order& order) : p_(program), order_(order) {}

  // A meeting behind `from` (-1: any) and before `to`.
  bool divides(StageId from, StageId to, Group group) const {
    for (auto m = meetings_.rbegin(); m != meetings_.rend(); ++m) {
      if (!is_meeting_of(stage(*m), group) || !order_.before(*m, to)) continue;
      if (from < 0 || order_.before(from, *m)) return true;
      if (*m < from) return false;  // further back there are only earlier ones
    }
    return false;
  }

  // found(stage, value, bytes as they were) at every store into a window; read(stage, value, bytes) at every other use.
  template <class Found, class Read>
  void run(Found&& found, Read&& read) {
    for (size_t s = 0; s < p_.stages.size(); ++s) {
      const StageId id = static_cast<StageId>(s);
      const Stage& at = p_.stages[s];
      const bool meets = class_of(at.op) == OpClass::Collective,
                 only_meets = kernel_of(at.op) == KernelKind::meet;
      if (class_of(at.op) == OpClass::Host) continue;  // it waits for what is there, and looks at nothing
      for (const Use& use : at.uses) {
        if (use.value == kNoValue || p_.values[static_cast<size_t>(use.value)].space != Space::Window)
          continue;
        WindowUses& bytes = bytes_[root_of(p_, use.value)];
        if (class_of(at.op) == OpClass::Store && use.access != Access::Read) {
          found(id, use.value, bytes);
          bytes = {id, {id}, use.value};
        } else if (!only_meets) {  // a meeting names what it is about, and touches nothing
          read(id, use.value, bytes);
          bytes.uses.push_back(id);
          bytes.used_as = use.value;
        }
      }
      if (meets) meetings_.push_back(id);
    }
  }

  const Stage& stage(StageId s) const { return p_.stages[static_cast<size_t>(s)]; }
  const std::string& name(ValueId v) const { return p_.values[static_cast<size_t>(v)].name; }

 private:
  const Program& p_;
  const Order& order_;
  std::map<ValueId, WindowUses> bytes_;
  std::vector<StageId> meetings_;
};

}  // namespace

bool is_meeting_of(const Stage& stage, Group group) {
  if (stage.group != group && stage.group != Group::World) return false;
  switch (kernel_of(stage.op)) {
    case KernelKind::meet:
    case KernelKind::all_gather:
    case KernelKind::all_reduce:
    case KernelKind::reduce_scatter:
      return true;
    default:  // others may be done with a rank before all have come
      return false;
  }
}

std::vector<UnmetStore> unmet_stores(const Program& program, const Order& order) {
  std::vector<UnmetStore> out;
  WindowWalk walk(program, order);
  walk.run(
      [&](StageId store, ValueId, const WindowUses& bytes) {
        const Group group = walk.stage(store).group;
        if (std::none_of(bytes.uses.begin(), bytes.uses.end(),
                         [&](StageId use) { return !walk.divides(use, store, group); }))
          return;
        // One meeting put before a stage does for all it stores, behind the uses of all of these.
        if (out.empty() || out.back().store != store) out.push_back({store, bytes.used_as, {}});
        std::vector<StageId>& uses = out.back().uses;
        uses.insert(uses.end(), bytes.uses.begin(), bytes.uses.end());
      },
      [](StageId, ValueId, const WindowUses&) {});
  return out;
}

CheckReport check_windows(const Program& program) {
  CheckReport report;
  if (std::none_of(program.values.begin(), program.values.end(),
                   [](const Value& v) { return v.space == Space::Window; }))
    return report;
  if (has_repeat(program) && program.repeat.times > 1) {  // two passes show what one meets of the one before
    Program twice = program;
    twice.repeat.times = 2;
    return check_windows(unrolled(std::move(twice)));
  }
  const Order order(program, edge_list(program));
  WindowWalk walk(program, order);
  const auto fault = [&](std::string text) { report.faults.push_back(std::move(text)); };
  walk.run(
      [&](StageId store, ValueId v, const WindowUses& bytes) {
        const Stage& at = walk.stage(store);
        if (bytes.uses.empty() && !walk.divides(-1, store, at.group))
          fault(fmt::format("{}: stores into '{}' of other ranks before any meeting of group {}",
                            stage_name(at), walk.name(v), name_of(at.group)));
        for (const StageId use : bytes.uses)
          if (!walk.divides(use, store, at.group))
            fault(fmt::format(
                "{}: stores into '{}' of other ranks, where {} may not be over: no meeting of group {} "
                "between them",
                stage_name(at), walk.name(v), stage_name(walk.stage(use)), name_of(at.group)));
      },
      [&](StageId use, ValueId v, const WindowUses& bytes) {
        if (bytes.store < 0) {
          fault(fmt::format("{}: reads window '{}', which nobody has stored into",
                            stage_name(walk.stage(use)), walk.name(v)));
        } else if (!walk.divides(bytes.store, use, walk.stage(bytes.store).group)) {
          fault(fmt::format(
              "{}: reads window '{}', which {} of other ranks may not have written: no meeting of group "
              "{} between them",
              stage_name(walk.stage(use)), walk.name(v), stage_name(walk.stage(bytes.store)),
              name_of(walk.stage(bytes.store).group)));
        }
      });
  return report;
}

}  // namespace pleat::interpret
