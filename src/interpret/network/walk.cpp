#include "interpret/network/walk.h"

#include <algorithm>
#include <map>

#include "program/message_calls.h"

namespace pleat::interpret {

using namespace program;

namespace {

// What the stages of one program wait for inside it.
struct Waits {
  const EdgeList* edges;
  std::vector<StageId> lane, shared;  // previous on the lane; previous on what lanes share
  // LaneUse::OneForCommunication: everything, stage by stage in one list.
  std::vector<size_t> begin;
  std::vector<StageId> all;
};

// A call of several messages starts when all of them can, and has ended when all of them have.
void wait_by_calls(const Program& program, Waits& w) {
  const auto calls = message_calls(program, *w.edges);
  const auto take = [&](StageId before, StageId own_first) {
    if (before < 0 || before >= own_first) return;
    const auto [first, end] = calls[static_cast<size_t>(before)];
    for (StageId s = first; s < end; ++s) w.all.push_back(s);
  };
  w.begin.assign(1, 0);
  for (size_t s = 0; s < calls.size(); ++s) {
    const auto [first, end] = calls[s];
    for (StageId member = first; member < end; ++member) {
      const size_t m = static_cast<size_t>(member);
      take(w.lane[m], first);
      take(w.shared[m], first);
      for (const StageId before : (*w.edges)[m]) take(before, first);
    }
    w.begin.push_back(w.all.size());
  }
}

Waits waits_of(const Node& node, LaneUse use) {
  const Program& program = *node.program;
  Waits out{node.edges.get(), {}, {}, {}, {}};
  const size_t n = program.stages.size();
  out.lane.assign(n, -1);
  out.shared.assign(n, -1);
  std::vector<StageId> last(program.lanes.size(), -1);
  StageId last_shared = -1;
  for (size_t s = 0; s < n; ++s) {
    const Stage& stage = program.stages[s];
    StageId& before = last[static_cast<size_t>(stage.lane)];
    out.lane[s] = before;
    before = static_cast<StageId>(s);
    const bool shares = use == LaneUse::OneForCommunication ? is_exchange(stage.op)
                        : use == LaneUse::OneForCompute
                            ? program.lanes[static_cast<size_t>(stage.lane)].resource == "compute"
                            : false;
    if (!shares) continue;
    out.shared[s] = last_shared;
    last_shared = static_cast<StageId>(s);
  }
  if (use == LaneUse::OneForCommunication) wait_by_calls(program, out);
  return out;
}

class Walker {
 public:
  Walker(const Network& network, const Meetings& meetings, LaneUse lanes, const Duration& duration)
      : n_(network), m_(meetings), duration_(duration) {
    std::map<const Program*, const Waits*> known;
    storage_.reserve(n_.nodes.size());
    for (const Node& node : n_.nodes) {
      const Waits*& waits = known[node.program];
      if (!waits) waits = &storage_.emplace_back(waits_of(node, lanes));
      waits_.push_back(waits);
    }
    state_.assign(m_.meetings.size() + n_.num_stages(), kNew);
    if (duration_) end_.assign(state_.size(), 0), start_.assign(state_.size(), 0);
  }

  Walk run() {
    Walk out;
    for (size_t node = 0; node < n_.nodes.size(); ++node)
      for (size_t s = 0; s < n_.nodes[node].program->stages.size(); ++s)
        if (!visit({static_cast<int>(node), static_cast<StageId>(s)}, out.cycle)) return out;
    if (!duration_) return out;
    out.start_ns.resize(n_.num_stages());
    out.end_ns.resize(n_.num_stages());
    for (size_t p = 0; p < n_.num_stages(); ++p)
      out.start_ns[p] = start_[event(p)], out.end_ns[p] = end_[event(p)];
    return out;
  }

 private:
  enum : uint8_t { kNew, kOpen, kDone };
  struct Frame {
    size_t event;
    At entered;  // the stage through which the event was reached, for the text of a cycle
    uint32_t member = 0, wait = 0;
    int64_t ready = 0;
  };

  size_t position(At at) const {
    return n_.first[static_cast<size_t>(at.node)] + static_cast<size_t>(at.stage);
  }
  size_t event(size_t position) const {
    const int meeting = m_.of[position];
    return meeting >= 0 ? static_cast<size_t>(meeting) : m_.meetings.size() + position;
  }

  // The i-th thing a stage waits for: -1 none there, -2 no more.
  StageId wait(At at, uint32_t i) const {
    const Waits& w = *waits_[static_cast<size_t>(at.node)];
    const size_t s = static_cast<size_t>(at.stage);
    if (!w.begin.empty()) return w.begin[s] + i < w.begin[s + 1] ? w.all[w.begin[s] + i] : -2;
    if (i == 0) return w.lane[s];
    if (i == 1) return w.shared[s];
    const auto edges = (*w.edges)[s];
    return i - 2 < edges.size() ? edges[i - 2] : -2;
  }

  bool visit(At root, std::vector<At>& cycle) {
    if (state_[event(position(root))] == kDone) return true;
    stack_.clear();
    open(root);
    while (!stack_.empty()) {
      Frame& f = stack_.back();
      const bool meets = f.event < m_.meetings.size();
      const size_t members = meets ? m_.meetings[f.event].size() : 1;
      if (f.member == members) {
        close(f);
        stack_.pop_back();
        continue;
      }
      const At here = meets ? m_.meetings[f.event][f.member] : f.entered;
      const StageId before = wait(here, f.wait);
      if (before == -2) {
        ++f.member, f.wait = 0;
        continue;
      }
      if (before == -1) {
        ++f.wait;
        continue;
      }
      const At dep{here.node, before};
      const size_t e = event(position(dep));
      if (state_[e] == kDone) {
        if (duration_) f.ready = std::max(f.ready, end_[e]);
        ++f.wait;
      } else if (state_[e] == kNew) {
        open(dep);
      } else {
        size_t from = stack_.size();
        while (stack_[from - 1].event != e) --from;
        for (size_t i = from - 1; i < stack_.size(); ++i) {
          const Frame& g = stack_[i];
          cycle.push_back(g.event < m_.meetings.size() ? m_.meetings[g.event][g.member] : g.entered);
        }
        return false;
      }
    }
    return true;
  }

  void open(At at) {
    const size_t e = event(position(at));
    state_[e] = kOpen;
    stack_.push_back({e, at});
  }

  void close(const Frame& f) {
    state_[f.event] = kDone;
    if (!duration_) return;
    const Program& program = *n_.nodes[static_cast<size_t>(f.entered.node)].program;
    start_[f.event] = f.ready;
    end_[f.event] = f.ready + duration_(program, program.stages[static_cast<size_t>(f.entered.stage)]);
  }

  const Network& n_;
  const Meetings& m_;
  const Duration& duration_;
  std::vector<Waits> storage_;
  std::vector<const Waits*> waits_;
  std::vector<uint8_t> state_;
  std::vector<int64_t> start_, end_;
  std::vector<Frame> stack_;
};

}  // namespace

Walk walk(const Network& network, const Meetings& meetings, LaneUse lanes, const Duration& duration) {
  return Walker(network, meetings, lanes, duration).run();
}

}  // namespace pleat::interpret
