#include "interpret/simulate/shared_time.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <queue>

#include "base/error.h"

namespace pleat::interpret {

using namespace program;

namespace {

constexpr size_t kProcessor = static_cast<size_t>(Resource::Processor);

// Who waits for a stage inside its program: data, declared waits, the next on its lane.
struct Followers {
  std::vector<uint32_t> begin;
  std::vector<StageId> all;
  std::vector<uint32_t> num_waits;  // of each stage
};

Followers followers_of(const Node& node) {
  const Program& program = *node.program;
  const size_t n = program.stages.size();
  Followers out;
  out.begin.assign(n + 1, 0);
  out.num_waits.assign(n, 0);
  std::vector<StageId> before(n, -1), last(program.lanes.size(), -1);
  for (size_t s = 0; s < n; ++s) {
    StageId& previous = last[static_cast<size_t>(program.stages[s].lane)];
    before[s] = previous;
    previous = static_cast<StageId>(s);
  }
  const auto each = [&](const auto& take) {
    for (size_t s = 0; s < n; ++s) {
      for (const StageId from : (*node.edges)[s]) take(from, s);
      if (before[s] >= 0) take(before[s], s);
    }
  };
  each([&](StageId from, size_t to) { ++out.begin[static_cast<size_t>(from) + 1], ++out.num_waits[to]; });
  for (size_t s = 0; s < n; ++s) out.begin[s + 1] += out.begin[s];
  out.all.resize(out.begin[n]);
  std::vector<uint32_t> at(out.begin.begin(), out.begin.end() - 1);
  each([&](StageId from, size_t to) { out.all[at[static_cast<size_t>(from)]++] = static_cast<StageId>(to); });
  return out;
}

// The largest level such that all who take at most it of a capacity have room: of those who want less, what they want.
double fair_level(std::vector<float>& wants, double capacity) {
  double sum = 0;
  for (const float w : wants) sum += w;
  if (sum <= capacity * (1 + 1e-6)) return 1e30;
  std::sort(wants.begin(), wants.end());
  double left = capacity;
  for (size_t i = 0; i < wants.size(); ++i) {
    const double equal = left / static_cast<double>(wants.size() - i);
    if (wants[i] > equal) return equal;
    left -= wants[i];
  }
  return 1e30;
}

class SharedWalk {
 public:
  SharedWalk(const Network& network, const Meetings& meetings, const StageTimes& times,
             const SharedMachine& machine)
      : n_(network), m_(meetings), machine_(machine) {
    const size_t num_nodes = n_.nodes.size(), num_events = m_.meetings.size() + n_.num_stages();
    std::map<const Program*, const Followers*> known;
    storage_.reserve(num_nodes);
    for (const Node& node : n_.nodes) {
      const Followers*& f = known[node.program];
      if (!f) f = &storage_.emplace_back(followers_of(node));
      followers_.push_back(f);
    }
    waits_.assign(num_events, 0);
    time_.resize(num_events);
    start_.assign(num_events, -1);
    end_.assign(num_events, -1);
    for (size_t node = 0; node < num_nodes; ++node) {
      const Program& program = *n_.nodes[node].program;
      for (size_t s = 0; s < program.stages.size(); ++s) {
        const size_t e = event(node, static_cast<StageId>(s));
        const StageTime t = times(program, program.stages[s]);
        waits_[e] += followers_[node]->num_waits[s];
        // Those who meet are done when the last of them is; of resources each takes its own shares.
        if (t.alone_ns() >= time_[e].alone_ns()) time_[e] = t;
        time_[own_event(node, static_cast<StageId>(s))] = t;
        if (t.host_ns > 0)
          issues_.resize(num_nodes), issues_[node].push_back({static_cast<StageId>(s), t.host_ns});
      }
    }
    for (const std::vector<Issue>& list : issues_)
      for (const Issue& issue : list)
        ++waits_[event(static_cast<size_t>(&list - issues_.data()), issue.stage)];
    running_.resize(num_nodes);
    levels_.assign(num_nodes, Levels{});
    dirty_.assign(num_nodes, 0);
    num_processors_ = num_nodes;
    if (!machine_.processor_of.empty())
      num_processors_ =
          static_cast<size_t>(*std::max_element(machine_.processor_of.begin(), machine_.processor_of.end())) +
          1;
    of_processor_.resize(num_processors_);
    for (size_t node = 0; node < num_nodes; ++node) of_processor_[processor(node)].push_back(node);
  }

  Walk run() {
    now_ = machine_.start_ns;
    for (size_t e = waits_.size(); e-- > 0;)
      if (waits_[e] == 0 && exists(e)) ready_.push_back(e);
    for (size_t node = 0; node < issues_.size(); ++node) issue_next(node);
    begin_ready();
    settle();
    while (!queue_.empty()) {
      now_ = queue_.top().at;
      while (!queue_.empty() && queue_.top().at == now_) {
        const Due due = queue_.top();
        queue_.pop();
        if (due.what == Due::Issued) {
          issued(due.id);
        } else if (due.what == Due::Flows) {
          flow(due.id);
        } else if (flows_[due.slot].event == due.id && flows_[due.slot].version == due.version) {
          leave(due.slot);
          finish(due.id);
        }
        begin_ready();
      }
      settle();
    }
    Walk out;
    out.start_ns.resize(n_.num_stages()), out.end_ns.resize(n_.num_stages());
    for (size_t node = 0; node < n_.nodes.size(); ++node)
      for (size_t s = 0; s < n_.nodes[node].program->stages.size(); ++s) {
        const size_t e = event(node, static_cast<StageId>(s)), p = n_.first[node] + s;
        if (end_[e] < 0)
          base::fail_with(base::ExitCode::Internal, "the programs would hang: {} never starts",
                          describe(n_, {static_cast<int>(node), static_cast<StageId>(s)}));
        out.start_ns[p] = start_[e], out.end_ns[p] = end_[e];
      }
    return out;
  }

 private:
  struct Issue {
    StageId stage;
    int64_t ns;
  };
  // A stage or meeting that flows.
  struct Flow {
    size_t event = SIZE_MAX;
    uint32_t version = 0;
    double left_ns = 0, speed = 0;
    int64_t since = 0;
  };
  // What of a flow a node runs.
  struct Running {
    uint32_t slot;
    StageId stage;
  };
  struct Due {
    int64_t at = 0;
    enum What : uint8_t { Flows, Ends, Issued } what = Flows;
    size_t id = 0;  // event; of Issued the node
    uint32_t slot = 0, version = 0;
    bool operator>(const Due& o) const { return at != o.at ? at > o.at : id > o.id; }
  };
  using Levels = std::array<double, kNumResources>;

  size_t event(size_t node, StageId s) const {
    const size_t position = n_.first[node] + static_cast<size_t>(s);
    const int meeting = m_.of[position];
    return meeting >= 0 ? static_cast<size_t>(meeting) : m_.meetings.size() + position;
  }
  // As if it met nobody: there the shares of a stage are kept.
  size_t own_event(size_t node, StageId s) const {
    return m_.meetings.size() + n_.first[node] + static_cast<size_t>(s);
  }
  const StageTime& own(size_t node, StageId s) const { return time_[own_event(node, s)]; }
  bool exists(size_t e) const { return e < m_.meetings.size() || m_.of[e - m_.meetings.size()] < 0; }
  size_t processor(size_t node) const {
    return machine_.processor_of.empty() ? node : static_cast<size_t>(machine_.processor_of[node]);
  }
  // Every (node, stage) of an event.
  template <class F>
  void for_members(size_t e, const F& f) const {
    if (e < m_.meetings.size()) {
      for (const At& at : m_.meetings[e]) f(static_cast<size_t>(at.node), at.stage);
      return;
    }
    const size_t position = e - m_.meetings.size();
    const size_t node =
        static_cast<size_t>(std::upper_bound(n_.first.begin(), n_.first.end(), position) - n_.first.begin()) -
        1;
    f(node, static_cast<StageId>(position - n_.first[node]));
  }

  // A list and no recursion: a step may begin with a million stages that take no time.
  void begin_ready() {
    while (!ready_.empty()) {
      const size_t e = ready_.back();
      ready_.pop_back();
      begin(e);
    }
  }

  void begin(size_t e) {
    start_[e] = now_;
    const StageTime& t = time_[e];
    if (t.fixed_ns > 0)
      queue_.push({now_ + t.fixed_ns, Due::Flows, e, 0, 0});
    else
      flow(e);
  }

  void flow(size_t e) {
    const StageTime& t = time_[e];
    if (t.flow_ns <= 0) return finish(e);
    uint32_t slot = 0;
    if (free_.empty()) {
      slot = static_cast<uint32_t>(flows_.size());
      flows_.emplace_back();
    } else {
      slot = free_.back();
      free_.pop_back();
    }
    Flow& f = flows_[slot];
    f.event = e, f.left_ns = static_cast<double>(t.flow_ns), f.speed = 0, f.since = now_;
    for_members(e, [&](size_t node, StageId s) {
      running_[node].push_back({slot, s});
      touch(node);
    });
  }

  void leave(uint32_t slot) {
    for_members(flows_[slot].event, [&](size_t node, StageId) {
      auto& list = running_[node];
      list.erase(std::find_if(list.begin(), list.end(), [&](const Running& r) { return r.slot == slot; }));
      touch(node);
    });
    ++flows_[slot].version;
    flows_[slot].event = SIZE_MAX;
    free_.push_back(slot);
  }

  void finish(size_t e) {
    end_[e] = now_;
    for_members(e, [&](size_t node, StageId s) {
      const Followers& f = *followers_[node];
      for (uint32_t i = f.begin[static_cast<size_t>(s)]; i < f.begin[static_cast<size_t>(s) + 1]; ++i) {
        const size_t next = event(node, f.all[i]);
        if (--waits_[next] == 0) ready_.push_back(next);
      }
      if (node < issues_.size() && waiting_host_.size() > node && waiting_host_[node] == s) {
        waiting_host_[node] = -1;
        issue_next(node);
      }
    });
  }

  // The host of a node issues its stages in the order of the list, and where it waits, it goes on behind that stage.
  void issue_next(size_t node) {
    next_issue_.resize(issues_.size(), 0);
    if (next_issue_[node] < issues_[node].size())
      queue_.push({now_ + issues_[node][next_issue_[node]].ns, Due::Issued, node, 0, 0});
  }

  void issued(size_t node) {
    const StageId s = issues_[node][next_issue_[node]++].stage;
    const size_t e = event(node, s);
    if (--waits_[e] == 0) ready_.push_back(e);
    // A host wait is no launch: it has no issue of its own, and stands in the list before what it holds back.
    const Program& program = *n_.nodes[node].program;
    const StageId next =
        next_issue_[node] < issues_[node].size() ? issues_[node][next_issue_[node]].stage : -1;
    for (StageId between = s + 1; next >= 0 && between < next; ++between) {
      if (class_of(program.stages[static_cast<size_t>(between)].op) != OpClass::Host) continue;
      if (end_[event(node, between)] >= 0) continue;
      waiting_host_.resize(issues_.size(), -1);
      waiting_host_[node] = between;
      return;
    }
    issue_next(node);
  }

  void touch(size_t node) {
    const size_t p = processor(node);
    for (const size_t other : of_processor_[p])
      if (!dirty_[other]) dirty_[other] = 1, touched_.push_back(other);
  }

  // New levels of all nodes whose flows changed, then the speed of every flow on them.
  void settle() {
    if (touched_.empty()) return;
    for (const size_t node : touched_) {
      for (size_t r = 0; r < kNumResources; ++r) {
        if (r == kProcessor && of_processor_[processor(node)].front() != node) continue;
        wants_.clear();
        const auto collect = [&](size_t from) {
          for (const Running& running : running_[from])
            if (const float w = own(from, running.stage).share[r]; w > 0) wants_.push_back(w);
        };
        if (r != kProcessor) {
          collect(node);
          levels_[node][r] = wants_.size() < 2 ? 1e30 : fair_level(wants_, 1);
          continue;
        }
        const auto& sharers = of_processor_[processor(node)];
        for (const size_t from : sharers) collect(from);
        const double level = fair_level(wants_, machine_.processors);
        const double crowd = crowding(wants_);
        for (const size_t to : sharers)
          levels_[to][r] = level, crowd_.resize(n_.nodes.size(), 1), crowd_[to] = crowd;
      }
    }
    for (const size_t node : touched_)
      for (const Running& running : running_[node]) set_speed(running.slot);
    for (const size_t node : touched_) dirty_[node] = 0;
    touched_.clear();
  }

  double crowding(const std::vector<float>& wants) const {
    if (machine_.crowd.empty()) return 1;
    double busy = 0;
    for (const float w : wants) busy += w;
    const double k =
        std::clamp(std::min(busy, machine_.processors), 1.0, static_cast<double>(machine_.crowd.size()));
    const size_t low = static_cast<size_t>(std::floor(k)) - 1;
    const size_t high = std::min(low + 1, machine_.crowd.size() - 1);
    const double between = k - std::floor(k);
    return machine_.crowd[low] * (1 - between) + machine_.crowd[high] * between;
  }

  void set_speed(uint32_t slot) {
    Flow& f = flows_[slot];
    double speed = 1, crowd = 1;
    for_members(f.event, [&](size_t node, StageId s) {
      const StageTime& t = own(node, s);
      for (size_t r = 0; r < kNumResources; ++r)
        if (t.share[r] > 0 && levels_[node][r] < t.share[r])
          speed = std::min(speed, levels_[node][r] / static_cast<double>(t.share[r]));
      if (t.crowds && t.share[kProcessor] > 0 && !crowd_.empty()) crowd = std::max(crowd, crowd_[node]);
    });
    speed /= crowd;  // those who meet go at the pace of the slowest
    if (speed == f.speed) return;
    f.left_ns -= static_cast<double>(now_ - f.since) * f.speed;
    f.since = now_, f.speed = speed;
    ++f.version;
    const int64_t left = std::max<int64_t>(0, std::llround(f.left_ns / speed));
    queue_.push({now_ + left, Due::Ends, f.event, slot, f.version});
  }

  const Network& n_;
  const Meetings& m_;
  const SharedMachine& machine_;
  std::vector<Followers> storage_;
  std::vector<const Followers*> followers_;
  std::vector<uint32_t> waits_;
  std::vector<StageTime> time_;
  std::vector<int64_t> start_, end_;
  std::vector<size_t> ready_;
  std::vector<std::vector<Issue>> issues_;
  std::vector<size_t> next_issue_;
  std::vector<StageId> waiting_host_;
  std::vector<std::vector<Running>> running_;  // per node
  std::vector<Levels> levels_;
  std::vector<double> crowd_;
  std::vector<char> dirty_;
  std::vector<size_t> touched_;
  size_t num_processors_ = 0;
  std::vector<std::vector<size_t>> of_processor_;
  std::vector<Flow> flows_;
  std::vector<uint32_t> free_;
  std::vector<float> wants_;
  std::priority_queue<Due, std::vector<Due>, std::greater<>> queue_;
  int64_t now_ = 0;
};

}  // namespace

Walk walk_shared(const Network& network, const Meetings& meetings, const StageTimes& times,
                 const SharedMachine& machine) {
  return SharedWalk(network, meetings, times, machine).run();
}

}  // namespace pleat::interpret
