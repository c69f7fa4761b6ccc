#include "schedule/pass/host_copies.h"

#include <algorithm>

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

bool has_host_values(const Program& p) { return std::any_of(p.values.begin(), p.values.end(), is_host_value); }

Program host_copies(Program program) {
  Edit edit(std::move(program));
  const int in = edit.lane("h2d", "host_link"), out = edit.lane("d2h", "host_link");
  const auto num_values = static_cast<ValueId>(edit.program().values.size());
  int num_in = 0, num_out = 0;
  for (ValueId v = 0; v < num_values; ++v) {
    if (!is_host_value(edit.program().values[static_cast<size_t>(v)])) continue;
    // The device's value is the one stages use already; the host's is new and takes its name.
    const ValueId host = edit.copy_of(v, ".host");
    std::swap(edit.value(host).name, edit.value(v).name);
    edit.value(v).name = edit.value(host).name + ".device";
    edit.value(host).space = Space::Pinned;
    const bool input = edit.value(v).life == Life::Input;
    edit.value(v).life = Life::Step;
    if (input)
      edit.insert_before(0, copy_stage(Op::copy_in, Phase::Forward, in, num_in++, host, v));
    else
      edit.insert_before(edit.end(), copy_stage(Op::copy_out, Phase::Update, out, num_out++, v, host));
  }
  return edit.apply();
}

}  // namespace pleat::schedule
