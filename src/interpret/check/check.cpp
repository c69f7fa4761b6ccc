#include "interpret/check/check.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"

namespace pleat::interpret {
namespace {

using namespace program;

// Which bytes of a value have been written so far.
class Written {
 public:
  void add(int64_t begin, int64_t end) {
    if (begin >= end) return;
    auto it = spans_.upper_bound(begin);
    if (it != spans_.begin() && std::prev(it)->second >= begin) --it, begin = it->first;
    while (it != spans_.end() && it->first <= end) end = std::max(end, it->second), it = spans_.erase(it);
    spans_[begin] = end;
  }
  bool covers(int64_t begin, int64_t end) const {
    if (begin >= end) return true;
    auto it = spans_.upper_bound(begin);
    return it != spans_.begin() && std::prev(it)->second >= end;
  }

 private:
  std::map<int64_t, int64_t> spans_;
};

void check_values(const Program& program, CheckReport& report) {
  std::set<std::string> names;
  for (size_t i = 0; i < program.values.size(); ++i) {
    const Value& v = program.values[i];
    if (!names.insert(v.name).second)
      report.faults.push_back(fmt::format("value name '{}' is used twice", v.name));
    if (std::any_of(v.shape.begin(), v.shape.end(), [](int64_t d) { return d < 0; }))
      report.faults.push_back(fmt::format("value '{}' has a negative dimension", v.name));
    if (v.view_of == kNoValue) continue;
    if (v.view_of < 0 || v.view_of >= static_cast<ValueId>(i)) {
      report.faults.push_back(
          fmt::format("value '{}' views value {}, which does not come before it", v.name, v.view_of));
      continue;
    }
    const Value& root = program.values[static_cast<size_t>(v.view_of)];
    if (root.view_of != kNoValue)
      report.faults.push_back(fmt::format("value '{}' is a view of a view", v.name));
    if (v.offset < 0 || v.offset > num_bytes(root) || num_bytes(v) > num_bytes(root) - v.offset)
      report.faults.push_back(fmt::format("value '{}' takes {} bytes from byte {} of '{}', which has {}",
                                          v.name, num_bytes(v), v.offset, root.name, num_bytes(root)));
  }
}

void check_arguments(const Program& program, const Stage& stage, CheckReport& report) {
  const auto& arguments = arguments_of(stage.op, stage.phase);
  const std::string name = stage_name(stage);
  if (arguments.empty()) {
    report.faults.push_back(
        fmt::format("{}: {} has no phase {}", name, name_of(stage.op), name_of(stage.phase)));
    return;
  }
  if (arguments.size() != stage.uses.size()) {
    report.faults.push_back(
        fmt::format("{}: takes {} arguments, has {}", name, arguments.size(), stage.uses.size()));
    return;
  }
  for (size_t i = 0; i < arguments.size(); ++i) {
    const Argument& a = arguments[i];
    const Use& use = stage.uses[i];
    if (use.value == kNoValue) {
      if (!a.optional) report.faults.push_back(fmt::format("{}: argument '{}' is missing", name, a.name));
      continue;
    }
    const Value& v = program.values[static_cast<size_t>(use.value)];
    const bool writes = use.access != Access::Read;
    if (writes != a.output)
      report.faults.push_back(fmt::format("{}: argument '{}' is {}, but '{}' is {}", name, a.name,
                                          a.output ? "an output" : "an input", v.name,
                                          writes ? "written" : "read"));
    if (use.access == Access::Update && !a.may_update)
      report.faults.push_back(fmt::format("{}: '{}' cannot be accumulated into '{}'", name, a.name, v.name));
    if (use.access == Access::Write && a.in_place)
      report.faults.push_back(
          fmt::format("{}: '{}' is transformed in place, '{}' must be updated", name, a.name, v.name));
    // What a view may do is decided by the bytes behind it.
    const Life life = program.values[static_cast<size_t>(root_of(program, use.value))].life;
    if (writes && life == Life::Input)
      report.faults.push_back(fmt::format("{}: writes input '{}'", name, v.name));
    if (writes && life == Life::Persistent && stage.phase != Phase::Update)
      report.faults.push_back(fmt::format("{}: writes persistent '{}' outside phase update", name, v.name));
  }
}

}  // namespace

CheckReport check(const Program& program) {
  CheckReport report;
  check_values(program, report);
  std::set<std::string> lanes;
  for (const Lane& lane : program.lanes)
    if (!lanes.insert(lane.name).second)
      report.faults.push_back(fmt::format("lane name '{}' is used twice", lane.name));
  // Everything below follows views to their bytes.
  if (!report.ok()) return report;
  std::vector<Written> written(program.values.size());
  for (size_t i = 0; i < program.values.size(); ++i) {
    const Value& v = program.values[i];
    if (v.view_of == kNoValue && (v.life == Life::Input || v.life == Life::Persistent))
      written[i].add(0, num_bytes(v));
  }
  std::set<std::string> names;
  for (const Stage& stage : program.stages) {
    const std::string name = stage_name(stage);
    if (!names.insert(name).second)
      report.faults.push_back(fmt::format("{}: stage name is used twice", name));
    if (stage.lane < 0 || stage.lane >= static_cast<int>(program.lanes.size()))
      report.faults.push_back(fmt::format("{}: lane {} is not declared", name, stage.lane));
    if (stage.attrs < 0 || stage.attrs >= static_cast<int32_t>(program.attrs.size()))
      report.faults.push_back(fmt::format("{}: attribute set {} does not exist", name, stage.attrs));
    bool values_exist = true;
    for (const Use& use : stage.uses)
      if (use.value != kNoValue &&
          (use.value < 0 || use.value >= static_cast<ValueId>(program.values.size()))) {
        report.faults.push_back(fmt::format("{}: value {} does not exist", name, use.value));
        values_exist = false;
      }
    if (!values_exist) continue;
    check_arguments(program, stage, report);
    for (const Use& use : stage.uses) {
      if (use.value == kNoValue || use.access == Access::Write) continue;
      const Value& v = program.values[static_cast<size_t>(use.value)];
      const int64_t begin = v.view_of == kNoValue ? 0 : v.offset;
      if (!written[static_cast<size_t>(root_of(program, use.value))].covers(begin, begin + num_bytes(v)))
        report.faults.push_back(fmt::format("{}: reads '{}' before all of it is written", name, v.name));
      if (v.space == Space::Host && use.access == Access::Read) ++report.host_waits;
    }
    for (const Use& use : stage.uses) {
      if (use.value == kNoValue || use.access == Access::Read) continue;
      const Value& v = program.values[static_cast<size_t>(use.value)];
      const int64_t begin = v.view_of == kNoValue ? 0 : v.offset;
      written[static_cast<size_t>(root_of(program, use.value))].add(begin, begin + num_bytes(v));
    }
  }
  for (size_t i = 0; i < program.values.size(); ++i) {
    const Value& v = program.values[i];
    if (v.view_of == kNoValue && v.life == Life::Result && !written[i].covers(0, num_bytes(v)))
      report.faults.push_back(fmt::format("result '{}' is never fully written", v.name));
  }
  return report;
}

CheckReport check_plan(const Program& program, const Plan& plan) {
  CheckReport report;
  const Order order(program);
  const auto lives = lifetimes(program, order);
  std::vector<ValueId> placed;
  for (size_t i = 0; i < program.values.size(); ++i) {
    const Value& v = program.values[i];
    if (v.view_of != kNoValue) {
      const int64_t root = plan.offset[static_cast<size_t>(v.view_of)];
      if (root >= 0 && plan.offset[i] != root + v.offset)
        report.faults.push_back(fmt::format("'{}' lies at {}, but what it views puts it at {}", v.name,
                                            plan.offset[i], root + v.offset));
      continue;
    }
    if (!lives[i].used) continue;
    const int64_t end = plan.offset[i] + num_bytes(v);
    if (plan.offset[i] < 0 || end > plan.arena_bytes)
      report.faults.push_back(fmt::format("'{}' lies at {}..{}, the arena has {} bytes", v.name,
                                          plan.offset[i], end, plan.arena_bytes));
    if (num_bytes(v) > 0) placed.push_back(static_cast<ValueId>(i));
  }
  std::sort(placed.begin(), placed.end(), [&](ValueId a, ValueId b) {
    return plan.offset[static_cast<size_t>(a)] < plan.offset[static_cast<size_t>(b)];
  });
  // Sweep by address: `open` holds the values that reach beyond the current start.
  std::vector<ValueId> open;
  for (ValueId b : placed) {
    const size_t bi = static_cast<size_t>(b);
    std::erase_if(open, [&](ValueId a) {
      return plan.offset[static_cast<size_t>(a)] + num_bytes(program.values[static_cast<size_t>(a)]) <=
             plan.offset[bi];
    });
    for (ValueId a : open) {
      const size_t ai = static_cast<size_t>(a);
      if (!ordered(order, lives[ai], lives[bi]) && !ordered(order, lives[bi], lives[ai]))
        report.faults.push_back(fmt::format("'{}' and '{}' share bytes but may be alive together",
                                            program.values[ai].name, program.values[bi].name));
    }
    open.push_back(b);
  }
  return report;
}

void require_ok(const CheckReport& report, const std::string& what) {
  if (report.ok()) return;
  std::string text;
  for (size_t i = 0; i < std::min<size_t>(report.faults.size(), 20); ++i) text += "\n  " + report.faults[i];
  if (report.faults.size() > 20) text += fmt::format("\n  and {} more", report.faults.size() - 20);
  base::fail_with(base::ExitCode::Internal, "{} has {} faults:{}", what, report.faults.size(), text);
}

}  // namespace pleat::interpret
