#include "schedule/pass/message_buffers.h"

#include <algorithm>

#include "program/turns.h"

namespace pleat::schedule {

using namespace program;

namespace {

constexpr int kComputeLane = 0;
constexpr size_t kDepth = 2;

struct TurnStages {
  StageId first = -1, last = -1;  // on the compute lane
  std::vector<StageId> receives, sends;
};

}  // namespace

Program bound_message_buffers(Program program) {
  if (std::none_of(program.stages.begin(), program.stages.end(),
                   [](const Stage& s) { return class_of(s.op) == OpClass::Transfer; }))
    return program;
  std::vector<TurnStages> list;
  for (const Turn& turn : turns(program)) {
    TurnStages t;
    for (StageId s = turn.begin; s < turn.end; ++s) {
      const Stage& stage = program.stages[static_cast<size_t>(s)];
      if (kernel_of(stage.op) == KernelKind::receive) t.receives.push_back(s);
      if (kernel_of(stage.op) == KernelKind::send) t.sends.push_back(s);
      if (stage.lane != kComputeLane) continue;
      if (t.first < 0) t.first = s;
      t.last = s;
    }
    list.push_back(t);
  }
  StageId computed = -1;      // the last compute stage at least kDepth turns back
  std::vector<StageId> sent;  // taken by the next turn that computes
  for (size_t i = 0; i < list.size(); ++i) {
    if (i >= kDepth) {
      const TurnStages& old = list[i - kDepth];
      if (old.last >= 0) computed = old.last;
      // Sends of one lane are taken in turn; a stage waits for one, so keep the latest.
      if (!old.sends.empty()) sent.assign(1, old.sends.back());
    }
    for (const StageId s : list[i].receives) program.stages[static_cast<size_t>(s)].after = computed;
    if (list[i].first >= 0 && !sent.empty()) {
      program.stages[static_cast<size_t>(list[i].first)].after = sent.front();
      sent.clear();
    }
  }
  return program;
}

}  // namespace pleat::schedule
