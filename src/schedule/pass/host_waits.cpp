#include "schedule/pass/host_waits.h"

#include <map>
#include <utility>

#include "program/builder.h"
#include "program/edit.h"
#include "program/message_calls.h"
#include "program/order.h"

namespace pleat::schedule {

using namespace program;

namespace {

Stage beside(const Stage& exchange, Op op, int part) {
  Stage s;
  s.op = op, s.phase = exchange.phase, s.lane = exchange.lane, s.model = exchange.model;
  s.microbatch = exchange.microbatch, s.chunk = exchange.chunk, s.layer = exchange.layer;
  s.part = part, s.replay = exchange.replay;
  return s;
}

}  // namespace

Program host_waits(Program program, program::Meeting meeting) {
  const bool blocking = meeting == program::Meeting::OnHost;
  const EdgeList edges = edge_list(program);
  const auto calls = message_calls(program, edges);
  Edit edit(std::move(program));
  std::map<ValueId, ValueId> on_host;  // counts -> their copy
  const int link = edit.lane("d2h", "host_link");
  int part = 0;
  // Where exchanges form a chain: the call before this one, and this one. Messages of one call wait for no other.
  std::pair<StageId, StageId> previous{0, 0}, current{0, 0};
  for (StageId s = 0; s < edit.num_stages(); ++s) {
    if (!is_exchange(edit[s].op)) continue;
    if (calls[static_cast<size_t>(s)] != current)
      previous = std::exchange(current, calls[static_cast<size_t>(s)]);
    for (StageId before = previous.first; !blocking && before < previous.second; ++before)
      if (edit[before].lane != edit[s].lane) edit.wait(s, before);
    const int at = host_use(edit[s]);
    if (!blocking && at < 0) continue;
    Stage wait = beside(edit[s], Op::host_wait, part);
    if (blocking)
      for (const Use& use : edit[s].uses)
        if (use.value != kNoValue && use.access != Access::Write) wait.uses.push_back(r(use.value));
    if (at >= 0) {
      const ValueId counts = edit[s].uses[static_cast<size_t>(at)].value;
      auto [known, fresh] = on_host.try_emplace(counts, kNoValue);
      if (fresh) {
        known->second = edit.copy_of(counts, ".host");
        edit.value(known->second).space = Space::Pinned;
        edit.value(known->second).life = Life::Step;
        Stage copy = beside(edit[s], Op::copy_out, part);
        copy.lane = static_cast<int16_t>(link);
        copy.uses = {r(counts), w(known->second)};
        edit.insert_before(s, std::move(copy));
      }
      wait.uses.push_back(r(known->second));
      edit[s].uses[static_cast<size_t>(at)].value = known->second;
    }
    const StageId inserted = edit.insert_before(s, std::move(wait));
    // What the exchange writes must be free too, and the host must know it.
    if (blocking)
      for (const StageId before : edges[static_cast<size_t>(s)]) edit.wait(inserted, before);
    ++part;
  }
  return edit.apply();
}

}  // namespace pleat::schedule
