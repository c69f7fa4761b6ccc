#include "schedule/pass/host_copies.h"

#include <algorithm>
#include <map>

#include "program/builder.h"
#include "program/edit.h"

namespace pleat::schedule {
namespace {

using namespace program;

bool is_host_value(const Value& v) {
  return v.view_of == kNoValue && v.space == Space::Device &&
         (v.life == Life::Input || v.life == Life::Result);
}

Stage copy_stage(Op op, Phase phase, int lane, int part, ValueId from, ValueId to) {
  Stage s;
  s.op = op, s.phase = phase, s.part = part;
  s.lane = static_cast<int16_t>(lane);
  s.uses = {r(from), w(to)};
  return s;
}

}  // namespace

bool has_host_values(const Program& p) {
  return std::any_of(p.values.begin(), p.values.end(), is_host_value);
}

Program host_copies(Program program) {
  Edit edit(std::move(program));
  const int in = edit.lane("h2d", "host_link"), out = edit.lane("d2h", "host_link");
  const auto num_values = static_cast<ValueId>(edit.program().values.size());
  std::map<ValueId, ValueId> host_of;  // the device's value -> the host's
  // The device's value is the one stages use already; the host's is new and takes its name.
  const auto split = [&](ValueId v) {
    const ValueId host = edit.copy_of(v, "");
    edit.value(v).name += ".device";
    edit.value(v).life = Life::Step;
    edit.value(host).space = Space::Pinned;
    host_of[v] = host;
    return host;
  };
  int num_in = 0, num_out = 0;
  for (const Stage& s : edit.program().stages)  // of states (pass/host_states.h)
    if (s.op == Op::copy_out && s.phase == Phase::Update) num_out = std::max(num_out, s.part + 1);
  for (ValueId v = 0; v < num_values; ++v) {
    if (!is_host_value(edit.value(v))) continue;
    const bool input = edit.value(v).life == Life::Input;
    const ValueId host = split(v);
    if (input)
      edit.insert_before(0, copy_stage(Op::copy_in, Phase::Forward, in, num_in++, host, v));
    else
      edit.insert_before(edit.end(), copy_stage(Op::copy_out, Phase::Update, out, num_out++, v, host));
  }
  // The host knows parts of them by name too.
  for (ValueId v = 0; v < num_values; ++v)
    if (const auto root = host_of.find(edit.value(v).view_of); root != host_of.end()) {
      const ValueId host = split(v);
      edit.value(host).view_of = root->second;
    }
  return edit.apply();
}

}  // namespace pleat::schedule
