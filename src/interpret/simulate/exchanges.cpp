#include "interpret/simulate/exchanges.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace pleat::interpret {

using namespace program;

namespace {

struct Interval {
  int64_t start, end;
};

// Times with work on a compute lane, ascending, apart from each other.
std::vector<Interval> work_times(const Program& program, const Timeline& timeline) {
  std::vector<Interval> all, out;
  for (const Span& span : timeline.spans) {
    const Stage& stage = program.stages[static_cast<size_t>(span.stage)];
    if (!goes_to_others(stage.op) && program.lanes[static_cast<size_t>(stage.lane)].resource == "compute" &&
        span.end_ns > span.start_ns)
      all.push_back({span.start_ns, span.end_ns});
  }
  std::sort(all.begin(), all.end(), [](const Interval& a, const Interval& b) { return a.start < b.start; });
  for (const Interval& i : all) {
    if (!out.empty() && i.start <= out.back().end)
      out.back().end = std::max(out.back().end, i.end);
    else
      out.push_back(i);
  }
  return out;
}

int64_t overlap(const std::vector<Interval>& work, int64_t start, int64_t end) {
  int64_t sum = 0;
  auto it = std::lower_bound(work.begin(), work.end(), start,
                             [](const Interval& i, int64_t t) { return i.end <= t; });
  for (; it != work.end() && it->start < end; ++it)
    sum += std::min(end, it->end) - std::max(start, it->start);
  return sum;
}

}  // namespace

std::vector<Exchanged> exchanges(const Program& program, const Timeline& timeline, const SentBytes& sent) {
  const std::vector<Interval> work = work_times(program, timeline);
  std::vector<Exchanged> out;
  std::map<std::tuple<Op, Phase, Group, int>, size_t> rows;
  for (const Span& span : timeline.spans) {
    const Stage& stage = program.stages[static_cast<size_t>(span.stage)];
    if (!goes_to_others(stage.op)) continue;
    const auto [row, fresh] = rows.try_emplace({stage.op, stage.phase, stage.group, stage.lane}, out.size());
    if (fresh) {
      Exchanged& e = out.emplace_back();
      e.name = name_of(stage.op);
      e.phase = name_of(stage.phase);
      e.group = name_of(stage.group);
      e.lane = program.lanes[static_cast<size_t>(stage.lane)].name;
    }
    Exchanged& e = out[row->second];
    ++e.calls;
    e.bytes += sent(program, stage);
    e.ns += span.end_ns - span.start_ns;
    e.hidden_ns += overlap(work, span.start_ns, span.end_ns);
  }
  return out;
}

}  // namespace pleat::interpret
