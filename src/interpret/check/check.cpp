#include "interpret/check/check.h"

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <set>

#include "base/error.h"
#include "interpret/check/check_repeat.h"
#include "program/message_calls.h"
#include "program/repeat.h"
#include "program/value_name.h"

namespace pleat::interpret {
namespace {

using namespace program;

// Which bytes of a value have been written so far. Almost always one span.
class Written {
 public:
  void add(int64_t begin, int64_t end) {
    if (begin >= end) return;
    if (more_.empty()) {
      if (begin_ == end_) {
        begin_ = begin, end_ = end;
        return;
      }
      if (begin <= end_ && begin_ <= end) {
        begin_ = std::min(begin, begin_), end_ = std::max(end, end_);
        return;
      }
      more_[begin_] = end_;
    }
    auto it = more_.upper_bound(begin);
    if (it != more_.begin() && std::prev(it)->second >= begin) --it, begin = it->first;
    while (it != more_.end() && it->first <= end) end = std::max(end, it->second), it = more_.erase(it);
    more_[begin] = end;
  }
  bool covers(int64_t begin, int64_t end) const {
    if (begin >= end) return true;
    if (more_.empty()) return begin_ <= begin && end <= end_;
    auto it = more_.upper_bound(begin);
    return it != more_.begin() && std::prev(it)->second >= end;
  }

 private:
  int64_t begin_ = 0, end_ = 0;
  std::map<int64_t, int64_t> more_;  // begin -> end, when there are several
};

// Which of many are equal. A table of places and parts of hashes, small enough to stay near the processor: a step has a
// hundred thousand stages, and after every pass all of them are checked.
class Seen {
 public:
  explicit Seen(size_t most) : slots_(std::bit_ceil(2 * most + 2)) {}
  // False where an equal one is there; same(place) compares with the one that was added with it.
  template <class Same>
  bool add(uint64_t hash, size_t place, const Same& same) {
    const uint32_t tag = static_cast<uint32_t>(hash >> 32);
    for (size_t i = hash & (slots_.size() - 1);; i = (i + 1) & (slots_.size() - 1)) {
      Slot& slot = slots_[i];
      if (slot.place == kFree) {
        slot = {tag, static_cast<uint32_t>(place)};
        return true;
      }
      if (slot.tag == tag && same(slot.place)) return false;
    }
  }

 private:
  static constexpr uint32_t kFree = UINT32_MAX;
  struct Slot {
    uint32_t tag = 0, place = kFree;
  };
  std::vector<Slot> slots_;
};

// The fields a stage's name is made of.
using NameKey = std::array<int32_t, 8>;
uint64_t hash_of(const NameKey& key) {
  uint64_t h = 0;
  for (const int32_t x : key) h = (h ^ static_cast<uint32_t>(x)) * 0x9e3779b97f4a7c15u, h ^= h >> 29;
  return h;
}
NameKey name_key(const Stage& s) {
  return {static_cast<int32_t>(s.op),
          static_cast<int32_t>(s.phase),
          s.model,
          s.microbatch,
          s.chunk,
          s.layer,
          s.part,
          s.replay};
}

void check_names(const Program& program, CheckReport& report) {
  Seen names(program.stages.size());
  for (size_t s = 0; s < program.stages.size(); ++s) {
    const NameKey key = name_key(program.stages[s]);
    if (!names.add(hash_of(key), s, [&](size_t other) { return name_key(program.stages[other]) == key; }))
      report.faults.push_back(fmt::format("{}: stage name is used twice", stage_name(program.stages[s])));
  }
}

void check_values(const Program& program, CheckReport& report) {
  Seen names(program.values.size());
  for (size_t i = 0; i < program.values.size(); ++i) {
    const Value& v = program.values[i];
    if (!names.add(std::hash<std::string_view>{}(v.name), i,
                   [&](size_t other) { return program.values[other].name == v.name; }))
      report.faults.push_back(fmt::format("value name '{}' is used twice", v.name));
    if (const NameParts said = read_name(v.name); said.microbatch != v.microbatch || said.layer != v.layer)
      report.faults.push_back(
          fmt::format("value '{}' is of microbatch {} and layer {}, its name says {} and {}", v.name,
                      v.microbatch, v.layer, said.microbatch, said.layer));
    if (std::any_of(v.shape.begin(), v.shape.end(), [](int64_t d) { return d < 0; }))
      report.faults.push_back(fmt::format("value '{}' has a negative dimension", v.name));
    if (v.view_of == kNoValue) continue;
    if (v.view_of < 0 || v.view_of >= static_cast<ValueId>(i)) {
      report.faults.push_back(
          fmt::format("value '{}' views value {}, which does not come before it", v.name, v.view_of));
      continue;
    }
    const Value& root = program.values[static_cast<size_t>(v.view_of)];
    if (root.space != v.space)
      report.faults.push_back(fmt::format("value '{}' lies in space {}, but what it views in {}", v.name,
                                          name_of(v.space), name_of(root.space)));
    if (root.view_of != kNoValue)
      report.faults.push_back(fmt::format("value '{}' is a view of a view", v.name));
    if (v.offset < 0 || v.offset > num_bytes(root) || num_bytes(v) > num_bytes(root) - v.offset)
      report.faults.push_back(fmt::format("value '{}' takes {} bytes from byte {} of '{}', which has {}",
                                          v.name, num_bytes(v), v.offset, root.name, num_bytes(root)));
  }
}

void check_arguments(const Program& program, const Stage& stage, CheckReport& report) {
  const auto& arguments = arguments_of(stage.op, stage.phase);
  // Names cost more than the check: made for faults only.
  const auto name = [&] { return stage_name(stage); };
  if (arguments.empty()) {
    report.faults.push_back(
        fmt::format("{}: {} has no phase {}", name(), name_of(stage.op), name_of(stage.phase)));
    return;
  }
  if (!takes(arguments, stage.uses.size())) {
    report.faults.push_back(
        fmt::format("{}: takes {} arguments, has {}", name(), arguments.size(), stage.uses.size()));
    return;
  }
  for (size_t i = 0; i < stage.uses.size(); ++i) {
    const Argument& a = argument_of(arguments, stage.uses.size(), i);
    const Use& use = stage.uses[i];
    if (use.value == kNoValue) {
      if (!a.optional) report.faults.push_back(fmt::format("{}: argument '{}' is missing", name(), a.name));
      continue;
    }
    const Value& v = program.values[static_cast<size_t>(use.value)];
    const bool writes = use.access != Access::Read;
    if (writes != a.output)
      report.faults.push_back(fmt::format("{}: argument '{}' is {}, but '{}' is {}", name(), a.name,
                                          a.output ? "an output" : "an input", v.name,
                                          writes ? "written" : "read"));
    if (use.access == Access::Update && !a.may_update)
      report.faults.push_back(
          fmt::format("{}: '{}' cannot be accumulated into '{}'", name(), a.name, v.name));
    if (use.access == Access::Write && a.in_place)
      report.faults.push_back(
          fmt::format("{}: '{}' is transformed in place, '{}' must be updated", name(), a.name, v.name));
    // What a view may do is decided by the bytes behind it.
    const Life life = program.values[static_cast<size_t>(root_of(program, use.value))].life;
    if (writes && life == Life::Input)
      report.faults.push_back(fmt::format("{}: writes input '{}'", name(), v.name));
    if (writes && life == Life::Persistent && stage.phase != Phase::Update)
      report.faults.push_back(fmt::format("{}: writes persistent '{}' outside phase update", name(), v.name));
  }
}

// Kernels see the device's memory, windows included, which only stores of other ranks write. Copies join the spaces, each in its direction and on a lane of the host's link; an
// exchange may read, on the host, how much goes where.
void check_spaces(const Program& program, const Stage& stage, CheckReport& report) {
  const auto& arguments = arguments_of(stage.op, stage.phase);
  const bool in = stage.op == Op::copy_in || stage.op == Op::fetch,
             out = stage.op == Op::copy_out || stage.op == Op::offload;
  if ((in || out) && program.lanes[static_cast<size_t>(stage.lane)].resource != "host_link")
    report.faults.push_back(
        fmt::format("{}: a copy between spaces needs a lane of resource host_link, not {}", stage_name(stage),
                    program.lanes[static_cast<size_t>(stage.lane)].resource));
  for (size_t i = 0; i < stage.uses.size() && takes(arguments, stage.uses.size()); ++i) {
    if (stage.uses[i].value == kNoValue) continue;
    const Value& v = program.values[static_cast<size_t>(stage.uses[i].value)];
    const Argument& a = argument_of(arguments, stage.uses.size(), i);
    const bool pinned = in ? !a.output : out ? a.output : false;
    if (class_of(stage.op) == OpClass::Host || a.on_host) continue;
    const bool stores = class_of(stage.op) == OpClass::Store && a.output;
    if (stores != (v.space == Space::Window) && a.output) {
      report.faults.push_back(
          fmt::format("{}: argument '{}' {}, '{}' lies in {}", stage_name(stage), a.name,
                      stores ? "must be a window" : "is written, and only stores write windows", v.name,
                      name_of(v.space)));
      continue;
    }
    if (v.space == Space::Window) continue;  // kernels read their own as they read the device's memory
    if (v.space != (pinned ? Space::Pinned : Space::Device))
      report.faults.push_back(
          fmt::format("{}: argument '{}' must lie in space {}, '{}' lies in {}", stage_name(stage), a.name,
                      name_of(pinned ? Space::Pinned : Space::Device), v.name, name_of(v.space)));
  }
}

// Codes of few bits are numbers only together with their scales: wherever a stage takes both, the scales are those of
// these codes (Value::scale_of), copies of either included.
void check_scales(const Program& program, CheckReport& report) {
  const auto value = [&](ValueId v) -> const Value& { return program.values[static_cast<size_t>(v)]; };
  const auto is_few_bits = [](const Value& v) {
    return v.scale_of != kNoValue || v.dtype == tensor::Dtype::E4M3 || v.dtype == tensor::Dtype::E2M1;
  };
  if (std::none_of(program.values.begin(), program.values.end(), is_few_bits)) return;
  std::vector<ValueId> copied_from(program.values.size(), kNoValue);
  const auto origin = [&](ValueId v) {
    return copied_from[static_cast<size_t>(v)] == kNoValue ? v : copied_from[static_cast<size_t>(v)];
  };
  for (const Value& v : program.values)
    if (v.scale_of != kNoValue && (v.scale_of < 0 || &v <= &value(v.scale_of))) {
      report.faults.push_back(
          fmt::format("'{}' has the scales of value {}, which does not come before it", v.name, v.scale_of));
      return;
    }
  for (const Stage& stage : program.stages) {
    const auto& arguments = arguments_of(stage.op, stage.phase);
    if (kernel_of(stage.op) == KernelKind::copy && stage.uses.size() == 2) {
      const ValueId from = stage.uses[0].value, to = stage.uses[1].value;
      copied_from[static_cast<size_t>(to)] = origin(from);
      if (value(from).scale_of != value(to).scale_of)
        report.faults.push_back(fmt::format("{}: '{}' and '{}' are scales of different codes",
                                            stage_name(stage), value(from).name, value(to).name));
    }
    for (size_t i = 1; i < stage.uses.size(); ++i) {
      const Argument& a = argument_of(arguments, stage.uses.size(), i);
      if (!a.scale) continue;
      const ValueId codes = stage.uses[i - 1].value, scale = stage.uses[i].value;
      if (codes == kNoValue && scale == kNoValue) continue;
      if (codes == kNoValue || scale == kNoValue) {
        report.faults.push_back(
            fmt::format("{}: argument '{}' needs codes and scales together", stage_name(stage), a.name));
        continue;
      }
      const ValueId of = value(scale).scale_of;
      if (of == kNoValue || origin(of) != origin(codes))
        report.faults.push_back(fmt::format(
            "{}: argument '{}': '{}' has the scales of {}, not of '{}'", stage_name(stage), a.name,
            value(scale).name, of == kNoValue ? "no codes" : "'" + value(of).name + "'", value(codes).name));
    }
  }
}

// The scratch of a stage is its own: bytes of the step on the device that no other stage names.
void check_scratch(const Program& program, CheckReport& report) {
  std::vector<StageId> owner(program.values.size(), -1);
  for (size_t s = 0; s < program.stages.size(); ++s) {
    const Stage& stage = program.stages[s];
    if (stage.scratch == kNoValue) continue;
    if (stage.scratch < 0 || stage.scratch >= static_cast<ValueId>(program.values.size())) {
      report.faults.push_back(fmt::format("{}: value {} does not exist", stage_name(stage), stage.scratch));
      continue;
    }
    const Value& v = program.values[static_cast<size_t>(stage.scratch)];
    StageId& of = owner[static_cast<size_t>(stage.scratch)];
    if (of >= 0)
      report.faults.push_back(fmt::format("{}: scratch '{}' is that of {}", stage_name(stage), v.name,
                                          stage_name(program.stages[static_cast<size_t>(of)])));
    of = static_cast<StageId>(s);
    if (v.view_of != kNoValue || v.life != Life::Step || v.space != Space::Device)
      report.faults.push_back(fmt::format(
          "{}: scratch '{}' must be a value of the step on the device, no view", stage_name(stage), v.name));
  }
  const auto is_used = [&](const Stage& stage, ValueId value) {
    if (value < 0 || value >= static_cast<ValueId>(owner.size())) return;
    const size_t root = static_cast<size_t>(root_of(program, value));
    if (owner[root] >= 0)
      report.faults.push_back(fmt::format("{}: uses '{}', the scratch of {}", stage_name(stage),
                                          program.values[static_cast<size_t>(value)].name,
                                          stage_name(program.stages[static_cast<size_t>(owner[root])])));
  };
  for (const Stage& stage : program.stages)
    for (const Use& use : stage.uses) is_used(stage, use.value);
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
  check_names(program, report);
  check_scratch(program, report);
  std::vector<Written> written(program.values.size());
  for (size_t i = 0; i < program.values.size(); ++i) {
    const Value& v = program.values[i];
    if (v.view_of == kNoValue && (v.life == Life::Input || v.life == Life::Persistent))
      written[i].add(0, num_bytes(v));
  }
  const StageRange range = repeated(program);
  for (size_t s = 0; s < program.stages.size(); ++s) {
    const Stage& stage = program.stages[s];
    const auto name = [&] { return stage_name(stage); };
    if (stage.lane < 0 || stage.lane >= static_cast<int>(program.lanes.size()))
      report.faults.push_back(fmt::format("{}: lane {} is not declared", name(), stage.lane));
    if (stage.attrs < 0 || stage.attrs >= static_cast<int32_t>(program.attrs.size()))
      report.faults.push_back(fmt::format("{}: attribute set {} does not exist", name(), stage.attrs));
    for (const StageId w : stage.after)
      if (w < 0 || w >= static_cast<StageId>(s))
        report.faults.push_back(
            fmt::format("{}: waits for stage {}, which does not come before it", name(), w));
    bool values_exist = true;
    for (const Use& use : stage.uses)
      if (use.value != kNoValue &&
          (use.value < 0 || use.value >= static_cast<ValueId>(program.values.size()))) {
        report.faults.push_back(fmt::format("{}: value {} does not exist", name(), use.value));
        values_exist = false;
      }
    if (!values_exist) continue;
    check_arguments(program, stage, report);
    check_spaces(program, stage, report);
    if (class_of(stage.op) == OpClass::Host)
      report.host_waits += static_cast<int>(passes_of(program, range, static_cast<StageId>(s)));
    for (const Use& use : stage.uses) {
      if (use.value == kNoValue || use.access == Access::Write) continue;
      const Value& v = program.values[static_cast<size_t>(use.value)];
      const int64_t begin = v.view_of == kNoValue ? 0 : v.offset;
      if (!written[static_cast<size_t>(root_of(program, use.value))].covers(begin, begin + num_bytes(v)))
        report.faults.push_back(fmt::format("{}: reads '{}' before all of it is written", name(), v.name));
    }
    for (const Use& use : stage.uses) {
      if (use.value == kNoValue || use.access == Access::Read) continue;
      const Value& v = program.values[static_cast<size_t>(use.value)];
      const int64_t begin = v.view_of == kNoValue ? 0 : v.offset;
      written[static_cast<size_t>(root_of(program, use.value))].add(begin, begin + num_bytes(v));
    }
  }
  if (report.ok()) check_scales(program, report);
  for (size_t i = 0; i < program.values.size(); ++i) {
    const Value& v = program.values[i];
    if (v.view_of == kNoValue && v.life == Life::Result && !written[i].covers(0, num_bytes(v)))
      report.faults.push_back(fmt::format("result '{}' is never fully written", v.name));
  }
  if (report.ok()) check_repeat(program, report);
  return report;
}

CheckReport check_host_waits(const Program& program, program::Meeting meeting) {
  CheckReport report;
  if (std::none_of(program.stages.begin(), program.stages.end(),
                   [](const Stage& s) { return is_exchange(s.op); }))
    return report;
  const bool blocking = meeting == program::Meeting::OnHost;
  const EdgeList edges = edge_list(program);
  const Order order(program, edges);
  std::vector<StageId> last(program.lanes.size(), -1);  // per lane, the stage before
  const auto calls = message_calls(program, edges);
  std::pair<StageId, StageId> previous{0, 0},
      current{0, 0};  // the call of an exchange before this one, and this one
  for (size_t s = 0; s < program.stages.size(); ++s) {
    const Stage& stage = program.stages[s];
    const StageId wait = std::exchange(last[static_cast<size_t>(stage.lane)], static_cast<StageId>(s));
    if (!is_exchange(stage.op)) continue;
    if (calls[s] != current) previous = std::exchange(current, calls[s]);
    for (StageId before = previous.first; !blocking && before < previous.second; ++before)
      if (!order.before(before, static_cast<StageId>(s)))
        report.faults.push_back(
            fmt::format("{}: not ordered behind {}, the exchange before it; ranks could wait in a circle",
                        stage_name(stage), stage_name(program.stages[static_cast<size_t>(before)])));
    const int counts = host_use(stage);
    if (!blocking && counts < 0) continue;
    if (wait < 0 || class_of(program.stages[static_cast<size_t>(wait)].op) != OpClass::Host) {
      report.faults.push_back(
          fmt::format("{}: no stage right before it on its lane at which the host waits", stage_name(stage)));
      continue;
    }
    for (const StageId before : edges[s]) {
      if (before == wait || order.before(before, wait)) continue;
      const Stage& other = program.stages[static_cast<size_t>(before)];
      const bool makes_counts =
          counts >= 0 && std::any_of(other.uses.begin(), other.uses.end(), [&](const Use& u) {
            return u.access != Access::Read && u.value == stage.uses[static_cast<size_t>(counts)].value;
          });
      if (blocking || makes_counts)
        report.faults.push_back(
            fmt::format("{}: the host has not waited for {}", stage_name(stage), stage_name(other)));
    }
  }
  return report;
}

CheckReport check_plan(const Program& program, const Plan& plan) {
  return check_plan(program, plan, Order(program));
}

CheckReport check_plan(const Program& program, const Plan& plan, const Order& order) {
  CheckReport report;
  const Lifetimes lives(program, order);
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
    const int64_t end = plan.offset[i] + num_bytes(v), arena = plan.of(v.space).arena_bytes;
    if (plan.offset[i] < 0 || end > arena)
      report.faults.push_back(fmt::format("'{}' lies at {}..{}, the arena of space {} has {} bytes", v.name,
                                          plan.offset[i], end, name_of(v.space), arena));
    if (num_bytes(v) > 0) placed.push_back(static_cast<ValueId>(i));
  }
  // Order of first use is an order of the program, and "before" passes on from one holder of a byte to the
  // next: it is enough that every value comes after the latest holder of each of its bytes.
  const auto rank = [&](ValueId v) {
    const Lifetime& life = lives[static_cast<size_t>(v)];
    return life.from_start          ? -1
           : life.first_in_list < 0 ? static_cast<StageId>(program.stages.size())
                                    : life.first_in_list;
  };
  std::stable_sort(placed.begin(), placed.end(), [&](ValueId a, ValueId b) { return rank(a) < rank(b); });
  struct Holder {
    int64_t end;
    ValueId value;
  };
  std::array<std::map<int64_t, Holder>, kNumSpaces> held_in;  // by begin; disjoint
  for (const ValueId v : placed) {
    const size_t i = static_cast<size_t>(v);
    std::map<int64_t, Holder>& held = held_in[static_cast<size_t>(program.values[i].space)];
    const int64_t begin = plan.offset[i], end = begin + num_bytes(program.values[i]);
    auto it = held.upper_bound(begin);
    if (it != held.begin() && std::prev(it)->second.end > begin) --it;
    while (it != held.end() && it->first < end) {
      const int64_t from = it->first;
      const Holder old = it->second;
      if (!lives.ordered(order, static_cast<size_t>(old.value), i))
        report.faults.push_back(fmt::format("'{}' and '{}' share bytes but may be alive together",
                                            program.values[static_cast<size_t>(old.value)].name,
                                            program.values[i].name));
      it = held.erase(it);
      if (from < begin) held.emplace(from, Holder{begin, old.value});
      if (old.end > end) it = held.emplace(end, Holder{old.end, old.value}).first;
    }
    held[begin] = {end, v};
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
