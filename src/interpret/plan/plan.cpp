#include "interpret/plan/plan.h"

#include <algorithm>

#include "interpret/plan/pack.h"
#include "program/repeat.h"

namespace pleat::interpret {

using namespace program;

Lifetimes::Lifetimes(const Program& program, const Order& order)
    : num_lanes_(order.num_lanes()), lives_(program.values.size()) {
  first_.assign(lives_.size() * static_cast<size_t>(num_lanes_), -1);
  last_.assign(first_.size(), -1);
  for (size_t s = 0; s < program.stages.size(); ++s) {
    const StageId id = static_cast<StageId>(s);
    const auto use_at = [&](ValueId value) {
      if (value == kNoValue) return;
      const size_t root = static_cast<size_t>(root_of(program, value));
      Lifetime& life = lives_[root];
      const size_t here = at(root, program.stages[s].lane);
      life.used = true;
      if (first_[here] < 0) first_[here] = id;
      last_[here] = id;
      if (life.first_in_list < 0) life.first_in_list = id;
      life.last_in_list = id;
    };
    for (const Use& use : program.stages[s].uses) use_at(use.value);
    use_at(program.stages[s].scratch);
  }
  keep_for_passes(program);
  for (size_t i = 0; i < lives_.size(); ++i) {
    const Value& v = program.values[i];
    if (v.view_of != kNoValue) continue;
    lives_[i].from_start = v.life == Life::Input || v.life == Life::Persistent;
    lives_[i].to_end = v.life == Life::Result || v.life == Life::Persistent;
    lives_[i].used |= v.life != Life::Step;
  }
}

// What a pass over repeated stages finds there, the next one needs too: it lives until the last pass is over.
void Lifetimes::keep_for_passes(const Program& program) {
  const StageRange range = repeated(program);
  if (range.first == range.end) return;
  std::vector<StageId> ends(static_cast<size_t>(num_lanes_), -1);  // of each lane among the repeated stages
  for (StageId s = range.first; s < range.end; ++s)
    ends[static_cast<size_t>(program.stages[static_cast<size_t>(s)].lane)] = s;
  std::vector<char> inside(lives_.size(), 0);
  for (StageId s = range.first; s < range.end; ++s)
    for (const Use& use : program.stages[static_cast<size_t>(s)].uses)
      if (use.value != kNoValue) inside[static_cast<size_t>(root_of(program, use.value))] = 1;
  for (size_t i = 0; i < lives_.size(); ++i) {
    const Value& v = program.values[i];
    // The host writes it before every pass, whether a stage reads it or not.
    inside[i] |= v.life == Life::Input && v.view_of == kNoValue && v.microbatch == program.repeat.microbatch;
    if (!inside[i]) continue;
    if (lives_[i].first_in_list < 0) lives_[i].first_in_list = range.first;
    const bool comes_in = lives_[i].first_in_list < range.first || v.life == Life::Input;
    if (!comes_in) continue;
    lives_[i].last_in_list = std::max(lives_[i].last_in_list, range.end - 1);
    for (int lane = 0; lane < num_lanes_; ++lane) {
      const StageId end = ends[static_cast<size_t>(lane)];
      const size_t here = at(i, lane);
      if (end < 0) continue;
      last_[here] = std::max(last_[here], end);
      if (first_[here] < 0) first_[here] = end;
    }
  }
}

bool Lifetimes::ordered(const Order& order, size_t a, size_t b) const {
  // Position in the list is an order of the program: what is first used later cannot come before.
  if (lives_[a].to_end || lives_[b].from_start) return false;
  if (lives_[a].last_in_list > lives_[b].first_in_list && lives_[b].first_in_list >= 0) return false;
  for (int la = 0; la < num_lanes_; ++la) {
    const StageId end = last(a, la);
    if (end < 0) continue;
    for (int lb = 0; lb < num_lanes_; ++lb) {
      const StageId begin = first(b, lb);
      if (begin >= 0 && !order.before(end, begin)) return false;
    }
  }
  return true;
}

Plan plan(const Program& program) { return plan(program, Order(program)); }
Plan plan(const Program& program, Packing packing) { return plan(program, Order(program), packing); }

namespace {

// Which values are the scratch of a stage.
std::vector<char> scratch_values(const Program& program) {
  std::vector<char> out(program.values.size(), 0);
  for (const Stage& stage : program.stages)
    if (stage.scratch != kNoValue) out[static_cast<size_t>(stage.scratch)] = 1;
  return out;
}

}  // namespace

Plan plan(const Program& program, const Order& order) {
  const std::vector<char> scratch = scratch_values(program);
  size_t roots = 0;
  for (size_t i = 0; i < scratch.size(); ++i)
    roots += program.values[i].view_of == kNoValue && program.values[i].space == Space::Device && !scratch[i];
  return plan(program, order, roots <= kMostValuesOneByOne ? Packing::OneByOne : Packing::Frames);
}

namespace {

// A value that is used and no view.
struct Resident {
  size_t value;
  int64_t bytes;  // padded
};

// `here`: all of the space, in the order of the program.
SpacePlan plan_space(const Program& program, const Order& order, const Lifetimes& lives, Packing packing,
                     Space space, const std::vector<Resident>& here, std::vector<int64_t>& offset) {
  SpacePlan out;
  std::vector<size_t> todo;
  for (const auto& [i, bytes] : here) {
    const Value& v = program.values[i];
    out.total[static_cast<size_t>(v.owner)] += bytes;
    if (v.life == Life::Persistent) {
      offset[i] = out.persistent_bytes;
      out.persistent_bytes += bytes;
    } else {
      todo.push_back(i);
    }
  }

  // Live bytes stage by stage, in list order: the bound the packing is measured against.
  std::vector<int64_t> change(program.stages.size() + 1, 0);
  const auto begin_of = [&](size_t i) {
    return lives[i].from_start ? 0 : std::max(0, lives[i].first_in_list);
  };
  const auto end_of = [&](size_t i) {
    return lives[i].to_end ? static_cast<StageId>(program.stages.size()) - 1 : lives[i].last_in_list;
  };
  for (const auto& [i, bytes] : here) {
    if (program.values[i].life == Life::Persistent || end_of(i) < 0) continue;
    change[static_cast<size_t>(begin_of(i))] += bytes;
    change[static_cast<size_t>(end_of(i)) + 1] -= bytes;
  }
  int64_t now = out.persistent_bytes;
  out.live_peak_bytes = now;
  out.live.reserve(program.stages.size());
  for (size_t s = 0; s < program.stages.size(); ++s) {
    now += change[s];
    out.live.push_back(now);
    if (now > out.live_peak_bytes) out.live_peak_bytes = now, out.peak_stage = static_cast<StageId>(s);
  }
  for (const auto& [i, bytes] : here) {
    const Value& v = program.values[i];
    if (v.life == Life::Persistent || (begin_of(i) <= out.peak_stage && out.peak_stage <= end_of(i)))
      out.at_peak[static_cast<size_t>(v.owner)] += bytes;
  }
  if (space == Space::Window) {  // who writes there is on other ranks, which no order of this one binds
    out.arena_bytes = out.persistent_bytes;
    for (const size_t i : todo) {
      offset[i] = out.arena_bytes;
      out.arena_bytes += padded_bytes(program.values[i]);
    }
    return out;
  }
  if (packing == Packing::Frames) {
    out.arena_bytes = pack_frames(program, order, lives, todo, out.persistent_bytes, offset);
    return out;
  }
  // Scratch moves no other value, and on one lane adds at most the largest of it to the arena. What is large goes
  // into what the others leave free; the rest lies behind them in one place, which so stays in a GPU's cache from
  // stage to stage.
  const std::vector<char> is_scratch = scratch_values(program);
  std::vector<size_t> others, large, hot;
  for (const size_t i : todo)
    (!is_scratch[i] ? others : padded_bytes(program.values[i]) > kHotScratchBytes ? large : hot).push_back(i);
  out.arena_bytes = pack_values(program, order, lives, others, out.persistent_bytes, offset);
  out.arena_bytes = std::max(out.arena_bytes,
                             pack_values(program, order, lives, large, out.persistent_bytes, offset, others));
  out.arena_bytes = pack_values(program, order, lives, hot, out.arena_bytes, offset);
  return out;
}

}  // namespace

Plan plan(const Program& program, const Order& order, Packing packing) {
  const Lifetimes lives(program, order);
  Plan out;
  out.offset.assign(program.values.size(), -1);
  std::array<std::vector<Resident>, kNumSpaces> in;
  for (size_t i = 0; i < program.values.size(); ++i)
    if (const Value& v = program.values[i]; v.view_of == kNoValue && lives[i].used)
      in[static_cast<size_t>(v.space)].push_back({i, padded_bytes(v)});
  const auto planned = [&](Space space) {
    return plan_space(program, order, lives, packing, space, in[static_cast<size_t>(space)], out.offset);
  };
  static_cast<SpacePlan&>(out) = planned(Space::Device);
  out.pinned = planned(Space::Pinned);
  out.window = planned(Space::Window);
  for (size_t i = 0; i < program.values.size(); ++i) {
    const Value& v = program.values[i];
    if (v.view_of != kNoValue && out.offset[static_cast<size_t>(v.view_of)] >= 0)
      out.offset[i] = out.offset[static_cast<size_t>(v.view_of)] + v.offset;
  }
  return out;
}

}  // namespace pleat::interpret
