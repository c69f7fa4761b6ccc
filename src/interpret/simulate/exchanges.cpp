#include "interpret/simulate/exchanges.h"

#include <map>
#include <tuple>

#include "interpret/simulate/intervals.h"

namespace pleat::interpret {

using namespace program;

namespace {

// Times with work on a compute lane.
Intervals work_times(const Program& program, const Timeline& timeline) {
  Intervals all;
  for (const Span& span : timeline.spans) {
    const Stage& stage = program.stages[static_cast<size_t>(span.stage)];
    if (!goes_to_others(stage.op) && program.lanes[static_cast<size_t>(stage.lane)].resource == "compute")
      all.push_back({span.start_ns, span.end_ns});
  }
  return united(std::move(all));
}

}  // namespace

std::vector<Exchanged> exchanges(const Program& program, const Timeline& timeline, const SentBytes& sent) {
  const Intervals work = work_times(program, timeline);
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
    e.hidden_ns += covered(work, span.start_ns, span.end_ns);
  }
  return out;
}

}  // namespace pleat::interpret
