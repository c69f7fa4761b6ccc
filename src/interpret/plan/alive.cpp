#include "interpret/plan/alive.h"

#include <algorithm>
#include <map>

#include "interpret/plan/pack.h"
#include "program/value_name.h"

namespace pleat::interpret {

using namespace program;

std::vector<AliveTensors> alive_at_peak(const Program& program, const Order& order, const Plan& plan) {
  const Lifetimes lives(program, order);
  std::map<std::pair<std::string, Owner>, AliveTensors> all;
  for (size_t i = 0; i < program.values.size(); ++i) {
    const Value& v = program.values[i];
    const Lifetime& life = lives[i];
    if (v.view_of != kNoValue || v.space != Space::Device || !life.used) continue;
    const StageId begin = life.from_start ? 0 : std::max(0, life.first_in_list);
    const StageId end = life.to_end ? static_cast<StageId>(program.stages.size()) - 1 : life.last_in_list;
    if (v.life != Life::Persistent && (begin > plan.peak_stage || end < plan.peak_stage)) continue;
    AliveTensors& t = all[{std::string(what_of(v)), v.owner}];
    t.what = what_of(v), t.owner = v.owner;
    t.count += 1, t.bytes += padded_bytes(v);
  }
  std::vector<AliveTensors> out;
  for (auto& [key, tensors] : all) out.push_back(std::move(tensors));
  std::stable_sort(out.begin(), out.end(),
                   [](const AliveTensors& a, const AliveTensors& b) { return a.bytes > b.bytes; });
  return out;
}

}  // namespace pleat::interpret
