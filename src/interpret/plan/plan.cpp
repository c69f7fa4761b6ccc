#include "interpret/plan/plan.h"

#include <algorithm>
#include <numeric>

#include "base/checked.h"

namespace pleat::interpret {
namespace {

using namespace program;

int64_t padded_bytes(const Value& v) { return base::round_up(num_bytes(v), kArenaAlignment); }

// Lowest offset >= floor at which `bytes` fit between the given occupied spans (sorted by begin).
int64_t first_fit(std::vector<std::pair<int64_t, int64_t>>& occupied, int64_t floor, int64_t bytes) {
  std::sort(occupied.begin(), occupied.end());
  int64_t at = floor;
  for (const auto& [begin, end] : occupied) {
    if (begin - at >= bytes) break;
    at = std::max(at, end);
  }
  return at;
}

}  // namespace

std::vector<Lifetime> lifetimes(const Program& program, const Order& order) {
  std::vector<Lifetime> out(program.values.size());
  const size_t lanes = static_cast<size_t>(order.num_lanes());
  for (Lifetime& life : out) life.first.assign(lanes, -1), life.last.assign(lanes, -1);
  for (size_t s = 0; s < program.stages.size(); ++s) {
    const StageId id = static_cast<StageId>(s);
    const size_t lane = static_cast<size_t>(program.stages[s].lane);
    for (const Use& use : program.stages[s].uses) {
      if (use.value == kNoValue) continue;
      Lifetime& life = out[static_cast<size_t>(root_of(program, use.value))];
      life.used = true;
      if (life.first[lane] < 0) life.first[lane] = id;
      life.last[lane] = id;
      if (life.first_in_list < 0) life.first_in_list = id;
      life.last_in_list = id;
    }
  }
  for (size_t i = 0; i < out.size(); ++i) {
    const Value& v = program.values[i];
    if (v.view_of != kNoValue) continue;
    out[i].from_start = v.life == Life::Input || v.life == Life::Persistent;
    out[i].to_end = v.life == Life::Result || v.life == Life::Persistent;
    out[i].used |= v.life != Life::Step;
  }
  return out;
}

bool ordered(const Order& order, const Lifetime& a, const Lifetime& b) {
  if (a.to_end || b.from_start) return false;
  for (size_t la = 0; la < a.last.size(); ++la) {
    if (a.last[la] < 0) continue;
    for (size_t lb = 0; lb < b.first.size(); ++lb)
      if (b.first[lb] >= 0 && !order.before(a.last[la], b.first[lb])) return false;
  }
  return true;
}

Plan plan(const Program& program) {
  const Order order(program);
  const auto lives = lifetimes(program, order);
  const size_t n = program.values.size();
  Plan out;
  out.offset.assign(n, -1);

  std::vector<size_t> todo;
  for (size_t i = 0; i < n; ++i) {
    const Value& v = program.values[i];
    if (v.view_of != kNoValue || !lives[i].used) continue;
    out.total[static_cast<size_t>(v.owner)] += padded_bytes(v);
    if (v.life == Life::Persistent) {
      out.offset[i] = out.persistent_bytes;
      out.persistent_bytes += padded_bytes(v);
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
  for (size_t i : todo) {
    if (end_of(i) < 0) continue;
    change[static_cast<size_t>(begin_of(i))] += padded_bytes(program.values[i]);
    change[static_cast<size_t>(end_of(i)) + 1] -= padded_bytes(program.values[i]);
  }
  int64_t now = out.persistent_bytes;
  out.live_peak_bytes = now;
  for (size_t s = 0; s < program.stages.size(); ++s) {
    now += change[s];
    out.live.push_back(now);
    if (now > out.live_peak_bytes) out.live_peak_bytes = now, out.peak_stage = static_cast<StageId>(s);
  }
  for (size_t i = 0; i < n; ++i) {
    const Value& v = program.values[i];
    if (v.view_of != kNoValue || !lives[i].used) continue;
    if (v.life == Life::Persistent || (begin_of(i) <= out.peak_stage && out.peak_stage <= end_of(i)))
      out.at_peak[static_cast<size_t>(v.owner)] += padded_bytes(v);
  }

  // Large values first, each at the lowest offset free of everything it may be alive with. Among equals the
  // longer-lived comes first: it is the harder one to place.
  std::sort(todo.begin(), todo.end(), [&](size_t a, size_t b) {
    const int64_t ba = padded_bytes(program.values[a]), bb = padded_bytes(program.values[b]);
    if (ba != bb) return ba > bb;
    const int la = end_of(a) - begin_of(a), lb = end_of(b) - begin_of(b);
    return la != lb ? la > lb : a < b;
  });
  out.arena_bytes = out.persistent_bytes;
  std::vector<size_t> placed;
  std::vector<std::pair<int64_t, int64_t>> occupied;
  for (size_t i : todo) {
    const int64_t bytes = padded_bytes(program.values[i]);
    occupied.clear();
    for (size_t j : placed)
      if (!ordered(order, lives[i], lives[j]) && !ordered(order, lives[j], lives[i]))
        occupied.emplace_back(out.offset[j], out.offset[j] + padded_bytes(program.values[j]));
    out.offset[i] = first_fit(occupied, out.persistent_bytes, bytes);
    out.arena_bytes = std::max(out.arena_bytes, out.offset[i] + bytes);
    placed.push_back(i);
  }
  for (size_t i = 0; i < n; ++i) {
    const Value& v = program.values[i];
    if (v.view_of != kNoValue && out.offset[static_cast<size_t>(v.view_of)] >= 0)
      out.offset[i] = out.offset[static_cast<size_t>(v.view_of)] + v.offset;
  }
  return out;
}

}  // namespace pleat::interpret
