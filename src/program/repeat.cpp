#include "program/repeat.h"

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "base/checked.h"
#include "base/error.h"
#include "program/builder.h"
#include "program/value_name.h"

namespace pleat::program {
namespace {

// "mb1.L3.x" of another microbatch.
std::string renumbered(const std::string& name, int32_t from, int32_t to) {
  const std::string tag = fmt::format("mb{}.", from);
  PLEAT_CHECK(name.starts_with(tag), "'{}' is not named as a value of microbatch {}", name, from);
  return fmt::format("mb{}.{}", to, name.substr(tag.size()));
}

class Unroller {
 public:
  explicit Unroller(Program program)
      : from_(std::move(program)), range_(repeated(from_)), microbatch_(from_.repeat.microbatch) {}

  Program run() {
    const int64_t n = static_cast<int64_t>(from_.stages.size()), body = range_.end - range_.first;
    const int64_t all = base::checked_mul(body, from_.repeat.times - 1, "stages");
    if (n + all > kMaxStages)
      base::fail(
          "{} passes over {} stages are more than {} stages, and a program that is written out holds at most "
          "{}: "
          "fewer microbatches show the same",
          from_.repeat.times, body, kMaxStages, kMaxStages);
    out_.name = from_.name, out_.lanes = from_.lanes, out_.attrs = from_.attrs, out_.values = from_.values;
    const int32_t more = static_cast<int32_t>(from_.repeat.times - 1);
    for (Value& v : out_.values)
      if (v.microbatch > microbatch_) {
        v.name = renumbered(v.name, v.microbatch, v.microbatch + more);
        v.microbatch += more;
      }
    last_.assign(out_.lanes.size(), -1);
    const auto part = [&](StageId first, StageId end, int32_t by) {
      meet();
      for (StageId s = first; s < end; ++s) add(s, by);
    };
    part(0, range_.first, 0);
    for (int32_t pass = 0; pass < from_.repeat.times; ++pass) {
      values_.clear();
      part(range_.first, range_.end, pass);
    }
    part(range_.end, static_cast<StageId>(n), more);
    return std::move(out_);
  }

 private:
  // All lanes wait for all that stands before.
  void meet() {
    gate_.clear();
    for (const StageId last : last_)
      if (last >= 0) gate_.push_back(last);
    waiting_.assign(last_.size(), 1);
  }

  void add(StageId s, int32_t by) {
    Stage stage = from_.stages[static_cast<size_t>(s)];
    const bool inside = range_.holds(s);
    if (stage.microbatch >= 0 && (inside || stage.microbatch > microbatch_)) stage.microbatch += by;
    for (StageId& before : stage.after) before = now_.at(before);
    char& waits = waiting_[static_cast<size_t>(stage.lane)];
    if (waits) stage.after.insert(stage.after.end(), gate_.begin(), gate_.end());
    waits = 0;
    std::sort(stage.after.begin(), stage.after.end());
    stage.after.erase(std::unique(stage.after.begin(), stage.after.end()), stage.after.end());
    if (inside && by > 0) {
      for (Use& use : stage.uses) use.value = of_pass(use.value, by);
      stage.scratch = of_pass(stage.scratch, by);
    }
    const StageId at = static_cast<StageId>(out_.stages.size());
    last_[static_cast<size_t>(stage.lane)] = now_[s] = at;
    out_.stages.push_back(std::move(stage));
  }

  ValueId of_pass(ValueId value, int32_t by) {
    if (value == kNoValue || from_.values[static_cast<size_t>(value)].microbatch != microbatch_) return value;
    const auto [known, is_new] = values_.try_emplace(value, kNoValue);
    if (!is_new) return known->second;
    Value copy = from_.values[static_cast<size_t>(value)];
    copy.name = renumbered(copy.name, microbatch_, microbatch_ + by);
    copy.microbatch += by;
    if (copy.view_of != kNoValue) copy.view_of = of_pass(copy.view_of, by);
    if (copy.scale_of != kNoValue) copy.scale_of = of_pass(copy.scale_of, by);
    out_.values.push_back(std::move(copy));
    return values_[value] = static_cast<ValueId>(out_.values.size() - 1);
  }

  const Program from_;
  const StageRange range_;
  const int32_t microbatch_;
  Program out_;
  std::unordered_map<StageId, StageId> now_;     // where a stage, or its last pass, stands
  std::unordered_map<ValueId, ValueId> values_;  // of the pass that is written
  std::vector<StageId> last_, gate_;
  std::vector<char> waiting_;  // lanes that have not met the others yet
};

}  // namespace

StageRange repeated(const Program& program) {
  const StageId n = static_cast<StageId>(program.stages.size());
  if (!has_repeat(program)) return {n, n};
  const auto is_inside = [&](const Stage& s) { return s.microbatch == program.repeat.microbatch; };
  const auto first = std::find_if(program.stages.begin(), program.stages.end(), is_inside);
  const auto last = std::find_if(program.stages.rbegin(), program.stages.rend(), is_inside);
  return {static_cast<StageId>(first - program.stages.begin()),
          std::max(static_cast<StageId>(first - program.stages.begin()),
                   static_cast<StageId>(program.stages.rend() - last))};
}

Program unrolled(Program program) {
  if (!has_repeat(program)) return program;
  return Unroller(std::move(program)).run();
}

}  // namespace pleat::program
