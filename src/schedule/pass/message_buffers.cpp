#include "schedule/pass/message_buffers.h"

#include <algorithm>
#include <map>

#include "program/turns.h"

namespace pleat::schedule {

using namespace program;

namespace {

constexpr size_t kDepth = 2;

struct TurnStages {
  StageId first = -1, last = -1;  // on the compute lane
  std::vector<StageId> receives, sends;
};

std::vector<TurnStages> stages_of_turns(const Program& program) {
  std::vector<TurnStages> out;
  for (const Turn& turn : turns(program)) {
    TurnStages& t = out.emplace_back();
    for (StageId s = turn.begin; s < turn.end; ++s) {
      const Stage& stage = program.stages[static_cast<size_t>(s)];
      if (kernel_of(stage.op) == KernelKind::receive) t.receives.push_back(s);
      if (kernel_of(stage.op) == KernelKind::send) t.sends.push_back(s);
      if (stage.lane != kComputeLane) continue;
      if (t.first < 0) t.first = s;
      t.last = s;
    }
  }
  return out;
}

}  // namespace

bool has_messages(const Program& program) {
  return std::any_of(program.stages.begin(), program.stages.end(),
                     [](const Stage& s) { return class_of(s.op) == OpClass::Transfer; });
}

std::vector<Wait> message_waits(const Program& program) {
  std::vector<Wait> out;
  if (!has_messages(program)) return out;
  const std::vector<TurnStages> list = stages_of_turns(program);
  StageId computed = -1;  // the last compute stage at least kDepth turns back
  // What is to be taken before the next turn that computes: per lane the latest, since a lane's sends are
  // taken in turn.
  std::map<int, StageId> sent;
  for (size_t i = 0; i < list.size(); ++i) {
    if (i >= kDepth) {
      const TurnStages& old = list[i - kDepth];
      if (old.last >= 0) computed = old.last;
      for (const StageId s : old.sends) sent[program.stages[static_cast<size_t>(s)].lane] = s;
    }
    if (computed >= 0)
      for (const StageId s : list[i].receives) out.push_back({s, computed});
    if (list[i].first < 0) continue;
    for (const auto& [lane, s] : sent) out.push_back({list[i].first, s});
    sent.clear();
  }
  return out;
}

Program bound_message_buffers(Program program) {
  const std::vector<Wait> waits = message_waits(program);
  return with_waits(std::move(program), waits);
}

}  // namespace pleat::schedule
