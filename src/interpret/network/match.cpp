#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_map>

#include "interpret/network/network.h"

namespace pleat::interpret {

using namespace program;

namespace {

// What a message or a collective moves on one node: the type of its first value and the bytes of all.
struct Payload {
  tensor::Dtype dtype{};
  int64_t bytes = 0;
  bool operator==(const Payload&) const = default;
  std::string text() const { return fmt::format("{} bytes of {}", bytes, tensor::name_of(dtype)); }
};

Payload payload(const Program& program, const Stage& stage) {
  Payload out;
  bool first = true;
  for (const Use& use : stage.uses) {
    if (use.value == kNoValue) continue;
    const Value& v = program.values[static_cast<size_t>(use.value)];
    if (first) out.dtype = v.dtype;
    first = false;
    out.bytes += num_bytes(v);
  }
  return out;
}

struct MessageKey {
  int from, to, microbatch, part;
  bool next, forward;
  bool operator==(const MessageKey&) const = default;
};
struct MessageHash {
  size_t operator()(const MessageKey& k) const {
    uint64_t h = static_cast<uint64_t>(k.from) * 0x9e3779b97f4a7c15u + static_cast<uint64_t>(k.to);
    for (const int x : {k.microbatch, k.part, k.next ? 1 : 0, k.forward ? 1 : 0})
      h = (h ^ static_cast<uint64_t>(static_cast<uint32_t>(x))) * 0x9e3779b97f4a7c15u, h ^= h >> 29;
    return static_cast<size_t>(h);
  }
};

class Matcher {
 public:
  explicit Matcher(const Network& network) : n_(network) { out_.of.assign(n_.num_stages(), -1); }

  Meetings run() {
    for (size_t i = 0; i < n_.nodes.size(); ++i) {
      const auto& stages = n_.nodes[i].program->stages;
      for (size_t s = 0; s < stages.size(); ++s) {
        const At at{static_cast<int>(i), static_cast<StageId>(s)};
        const OpClass kind = class_of(stages[s].op);
        if (kind == OpClass::Transfer) message(at, stages[s]);
        if (kind == OpClass::Collective) collective(at, stages[s]);
      }
    }
    for (const auto& [key, ends] : messages_) finish(ends);
    for (const auto& [group, calls] : collectives_) finish(group, calls);
    std::sort(unmatched_.begin(), unmatched_.end());
    for (auto& [position, text] : unmatched_) out_.faults.push_back(std::move(text));
    return std::move(out_);
  }

 private:
  const Program& program_at(At at) const { return *n_.nodes[static_cast<size_t>(at.node)].program; }
  const Stage& stage_at(At at) const { return program_at(at).stages[static_cast<size_t>(at.stage)]; }
  size_t position(At at) const {
    return n_.first[static_cast<size_t>(at.node)] + static_cast<size_t>(at.stage);
  }
  void fault(At at, std::string text) { unmatched_.emplace_back(position(at), std::move(text)); }

  void meet(std::vector<At> ends) {
    for (const At& at : ends) out_.of[position(at)] = static_cast<int>(out_.meetings.size());
    out_.meetings.push_back(std::move(ends));
  }

  struct Ends {
    std::vector<At> sends, receives;
  };

  void message(At at, const Stage& stage) {
    const int other = n_.neighbour(at.node, stage.peer);
    const bool sends = kernel_of(stage.op) == KernelKind::send;
    const bool next = (stage.peer == Peer::Next) == sends;  // the way the message goes
    const MessageKey key{
        sends ? at.node : other,      sends ? other : at.node, stage.microbatch, stage.part, next,
        stage.phase == Phase::Forward};
    Ends& ends = messages_[key];
    (sends ? ends.sends : ends.receives).push_back(at);
  }

  void finish(const Ends& ends) {
    const size_t pairs = std::min(ends.sends.size(), ends.receives.size());
    for (const auto* list : {&ends.sends, &ends.receives})
      for (size_t i = pairs; i < list->size(); ++i) {
        const At at = (*list)[i];
        const int other = n_.neighbour(at.node, stage_at(at).peer);
        fault(at, fmt::format("{}: {} has no {} for it", describe(n_, at),
                              n_.nodes[static_cast<size_t>(other)].name,
                              list == &ends.sends ? "receive" : "send"));
      }
    for (size_t i = 0; i < pairs; ++i) {
      const At from = ends.sends[i], to = ends.receives[i];
      if (pairs > 1)
        fault(from, fmt::format("{}: {} messages cannot be told apart", describe(n_, from), pairs));
      const Payload a = payload(program_at(from), stage_at(from)), b = payload(program_at(to), stage_at(to));
      if (a != b)
        fault(from, fmt::format("{} sends {}, {} takes {}", describe(n_, from), a.text(), describe(n_, to),
                                b.text()));
      meet({from, to});
    }
  }

  void collective(At at, const Stage& stage) {
    const auto& members = n_.nodes[static_cast<size_t>(at.node)].members[static_cast<size_t>(stage.group)];
    if (members.size() < 2) return;
    // A group has a communicator per lane.
    const std::string& lane = program_at(at).lanes[static_cast<size_t>(stage.lane)].name;
    auto& calls = collectives_[{members, static_cast<int>(stage.group), lane}];
    if (calls.empty()) calls.resize(members.size());
    const auto here = std::find(members.begin(), members.end(), at.node);
    if (here == members.end()) {
      fault(at, fmt::format("{}: not in its own group {}", describe(n_, at), name_of(stage.group)));
      return;
    }
    calls[static_cast<size_t>(here - members.begin())].push_back(at);
  }

  using Calls = std::vector<std::vector<At>>;  // per member
  struct GroupKey {
    std::vector<int> members;
    int group;
    std::string lane;
    auto operator<=>(const GroupKey&) const = default;
  };

  void finish(const GroupKey& key, const Calls& calls) {
    size_t most = 0;
    for (const auto& list : calls) most = std::max(most, list.size());
    for (size_t k = 0; k < most; ++k) {
      std::vector<At> all;
      for (const auto& list : calls)
        if (k < list.size()) all.push_back(list[k]);
      const Stage& first = stage_at(all.front());
      for (size_t i = 0; i < calls.size(); ++i)
        if (k >= calls[i].size()) {
          fault(all.front(),
                fmt::format("{}: {} never comes to this collective {} of group {}", describe(n_, all.front()),
                            n_.nodes[static_cast<size_t>(key.members[i])].name, k,
                            name_of(static_cast<Group>(key.group))));
          return;  // everything behind it is shifted
        }
      bool same = true;
      const Payload want = payload(program_at(all.front()), first);
      for (const At& at : all) {
        const Stage& stage = stage_at(at);
        const Payload got = payload(program_at(at), stage);
        if (stage.op == first.op && stage.phase == first.phase && got == want) continue;
        fault(all.front(), fmt::format("collective {} of group {} is {} ({}) but {} ({})", k,
                                       name_of(static_cast<Group>(key.group)), describe(n_, all.front()),
                                       want.text(), describe(n_, at), got.text()));
        same = false;
        break;
      }
      meet(std::move(all));
      if (!same) return;
    }
  }

  const Network& n_;
  Meetings out_;
  std::unordered_map<MessageKey, Ends, MessageHash> messages_;
  std::map<GroupKey, Calls> collectives_;
  std::vector<std::pair<size_t, std::string>> unmatched_;
};

}  // namespace

Meetings match(const Network& network) { return Matcher(network).run(); }

}  // namespace pleat::interpret
