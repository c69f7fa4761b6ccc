#include "interpret/plan/alive.h"

#include <algorithm>
#include <map>

#include "interpret/plan/pack.h"

namespace pleat::interpret {

using namespace program;

namespace {

bool is_number(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

// "mb3.L8.attn_normed" and "layers.8.attn.qkv.weight" without their numbers.
std::string role_of(std::string_view name) {
  std::string out;
  while (!name.empty()) {
    const size_t dot = name.find('.');
    std::string_view word = name.substr(0, dot);
    name = dot == std::string_view::npos ? std::string_view{} : name.substr(dot + 1);
    word = word.substr(0, word.find('['));
    const bool tag = is_number(word) || (word.starts_with("mb") && is_number(word.substr(2))) ||
                     (word.size() > 1 && (word[0] == 'L' || word[0] == 'c') && is_number(word.substr(1)));
    if (tag || word == "layers") continue;
    if (!out.empty()) out += '.';
    out += word;
  }
  return out;
}

}  // namespace

std::vector<AliveTensors> alive_at_peak(const Program& program, const Order& order, const Plan& plan) {
  const Lifetimes lives(program, order);
  std::map<std::pair<std::string, Owner>, AliveTensors> all;
  for (size_t i = 0; i < program.values.size(); ++i) {
    const Value& v = program.values[i];
    const Lifetime& life = lives[i];
    if (v.view_of != kNoValue || !life.used) continue;
    const StageId begin = life.from_start ? 0 : std::max(0, life.first_in_list);
    const StageId end = life.to_end ? static_cast<StageId>(program.stages.size()) - 1 : life.last_in_list;
    if (v.life != Life::Persistent && (begin > plan.peak_stage || end < plan.peak_stage)) continue;
    AliveTensors& t = all[{role_of(v.name), v.owner}];
    t.what = role_of(v.name), t.owner = v.owner;
    t.count += 1, t.bytes += padded_bytes(v);
  }
  std::vector<AliveTensors> out;
  for (auto& [key, tensors] : all) out.push_back(std::move(tensors));
  std::stable_sort(out.begin(), out.end(),
                   [](const AliveTensors& a, const AliveTensors& b) { return a.bytes > b.bytes; });
  return out;
}

}  // namespace pleat::interpret
