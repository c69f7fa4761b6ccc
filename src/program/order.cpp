#include "program/order.h"

#include <algorithm>

#include "program/repeat.h"

namespace pleat::program {
namespace {

struct Touch {
  StageId stage;
  int64_t begin, end;  // bytes of the root value
};

// Where stages that are repeated begin and end, every lane waits for all that stands before.
class Gates {
 public:
  explicit Gates(const Program& program) : program_(program), range_(repeated(program)) {
    if (has_repeat(program)) last_.assign(program.lanes.size(), -1);
  }
  void pass(StageId s, std::vector<StageId>& waits) {
    if (last_.empty()) return;
    if (s == range_.first || s == range_.end) {
      before_.clear();
      for (const StageId last : last_)
        if (last >= 0) before_.push_back(last);
      waiting_.assign(last_.size(), 1);
    }
    const size_t lane = static_cast<size_t>(program_.stages[static_cast<size_t>(s)].lane);
    if (!waiting_.empty() && waiting_[lane]) {
      waits.insert(waits.end(), before_.begin(), before_.end());
      waiting_[lane] = 0;
    }
    last_[lane] = s;
  }

 private:
  const Program& program_;
  const StageRange range_;
  std::vector<StageId> last_, before_;  // the last stage of each lane: so far, and before the gate
  std::vector<char> waiting_;           // lanes that have not passed the gate
};

}  // namespace

EdgeList edge_list(const Program& program) {
  // Per root: accesses a later stage may still depend on. Reads never wait for reads, so that a weight read a
  // thousand times costs nothing until it is written.
  struct Open {
    std::vector<Touch> reads, writes;
  };
  std::vector<Open> open(program.values.size());
  EdgeList out;
  out.begin_.reserve(program.stages.size() + 1);
  out.from_.reserve(program.stages.size() * 4);
  std::vector<StageId> mine;
  Gates gates(program);
  for (size_t s = 0; s < program.stages.size(); ++s) {
    const StageId id = static_cast<StageId>(s);
    const Stage& stage = program.stages[s];
    mine.assign(stage.after.begin(), stage.after.end());
    gates.pass(id, mine);
    for (const Use& use : stage.uses) {
      if (use.value == kNoValue) continue;
      const Value& value = program.values[static_cast<size_t>(use.value)];
      const int64_t begin = value.view_of == kNoValue ? 0 : value.offset;
      const Touch now{id, begin, begin + num_bytes(value)};
      Open& touches = open[static_cast<size_t>(root_of(program, use.value))];
      const auto wait_for = [&](const std::vector<Touch>& list) {
        for (const Touch& t : list)
          if (t.stage != id && t.begin < now.end && now.begin < t.end) mine.push_back(t.stage);
      };
      wait_for(touches.writes);
      if (use.access == Access::Read) {
        touches.reads.push_back(now);
        continue;
      }
      wait_for(touches.reads);
      // A write that covers an older access stands for it from now on.
      for (auto* list : {&touches.reads, &touches.writes})
        std::erase_if(
            *list, [&](const Touch& t) { return t.stage != id && now.begin <= t.begin && t.end <= now.end; });
      touches.writes.push_back(now);
    }
    std::sort(mine.begin(), mine.end());
    mine.erase(std::unique(mine.begin(), mine.end()), mine.end());
    out.from_.insert(out.from_.end(), mine.begin(), mine.end());
    out.begin_.push_back(out.from_.size());
  }
  return out;
}

std::vector<std::vector<StageId>> data_edges(const Program& program) {
  const EdgeList edges = edge_list(program);
  std::vector<std::vector<StageId>> out(edges.size());
  for (size_t s = 0; s < out.size(); ++s) out[s].assign(edges[s].begin(), edges[s].end());
  return out;
}

Order::Order(const Program& program) : Order(program, edge_list(program)) {}

Order::Order(const Program& program, const EdgeList& edges)
    : num_lanes_(static_cast<int>(std::max<size_t>(1, program.lanes.size()))) {
  const size_t n = program.stages.size();
  const size_t lanes = static_cast<size_t>(num_lanes_);
  lane_.resize(n);
  position_.resize(n);
  clock_.assign(n * lanes, -1);
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
