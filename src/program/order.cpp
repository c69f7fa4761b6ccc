#include "program/order.h"

#include <algorithm>

namespace pleat::program {
namespace {

struct Touch {
  StageId stage;
  int64_t begin, end;  // bytes of the root value
  bool writes;
};

}  // namespace

std::vector<std::vector<StageId>> data_edges(const Program& program) {
  std::vector<std::vector<Touch>> open(
      program.values.size());  // per root: accesses a later stage may still depend on
  std::vector<std::vector<StageId>> edges(program.stages.size());
  for (size_t s = 0; s < program.stages.size(); ++s) {
    const StageId id = static_cast<StageId>(s);
    for (const Use& use : program.stages[s].uses) {
      if (use.value == kNoValue) continue;
      const Value& value = program.values[static_cast<size_t>(use.value)];
      const int64_t begin = value.view_of == kNoValue ? 0 : value.offset;
      const Touch now{id, begin, begin + num_bytes(value), use.access != Access::Read};
      auto& touches = open[static_cast<size_t>(root_of(program, use.value))];
      for (const Touch& t : touches)
        if (t.stage != id && t.begin < now.end && now.begin < t.end && (t.writes || now.writes))
          edges[s].push_back(t.stage);
      // A write that covers an older access stands for it from now on.
      if (now.writes)
        std::erase_if(touches, [&](const Touch& t) {
          return t.stage != id && now.begin <= t.begin && t.end <= now.end;
        });
      touches.push_back(now);
    }
    std::sort(edges[s].begin(), edges[s].end());
    edges[s].erase(std::unique(edges[s].begin(), edges[s].end()), edges[s].end());
  }
  return edges;
}

Order::Order(const Program& program)
    : num_lanes_(static_cast<int>(std::max<size_t>(1, program.lanes.size()))) {
  const size_t n = program.stages.size();
  const size_t lanes = static_cast<size_t>(num_lanes_);
  lane_.resize(n);
  position_.resize(n);
  clock_.assign(n * lanes, -1);
  const auto edges = data_edges(program);
  std::vector<int> next(lanes, 0);
  std::vector<StageId> last(lanes, -1);
  for (size_t s = 0; s < n; ++s) {
    const size_t lane = static_cast<size_t>(program.stages[s].lane);
    lane_[s] = static_cast<int>(lane);
    position_[s] = next[lane]++;
    int* mine = &clock_[s * lanes];
    const auto join = [&](StageId p) {
      const size_t q = static_cast<size_t>(p);
      for (size_t l = 0; l < lanes; ++l) mine[l] = std::max(mine[l], clock_[q * lanes + l]);
      mine[lane_[q]] = std::max(mine[lane_[q]], position_[q]);
    };
    if (last[lane] >= 0) join(last[lane]);
    for (StageId p : edges[s]) join(p);
    last[lane] = static_cast<StageId>(s);
  }
}

bool Order::before(StageId a, StageId b) const { return clock(b, lane_of(a)) >= position_on_lane(a); }

}  // namespace pleat::program
