// A plan judged by the definition: two values may share bytes only if every use of the one is before every
// use of the other, over all pairs of uses.
#pragma once

#include <string>
#include <vector>

#include "interpret/plan/plan.h"
#include "program/brute_order.h"

namespace pleat::interpret {

class BruteJudge {
 public:
  explicit BruteJudge(const program::Program& program)
      : p_(program), before_(brute_order(program)), uses_(program.values.size()) {
    for (size_t s = 0; s < p_.stages.size(); ++s) {
      for (const program::Use& use : p_.stages[s].uses)
        if (use.value != program::kNoValue) uses_[static_cast<size_t>(root_of(p_, use.value))].push_back(s);
      if (p_.stages[s].scratch != program::kNoValue)
        uses_[static_cast<size_t>(p_.stages[s].scratch)].push_back(s);
    }
  }

  // The first fault, or empty. `shared` counts pairs that do share bytes.
  std::string fault(const Plan& made, int64_t* shared = nullptr) const {
    for (size_t i = 0; i < p_.values.size(); ++i) {
      if (is_view(i)) continue;
      if (made.offset[i] < 0) {
        if (!uses_[i].empty()) return p_.values[i].name + " has no place";
        continue;
      }
      const int64_t end = made.offset[i] + num_bytes(p_.values[i]);
      if (end > made.arena_bytes) return p_.values[i].name + " ends outside the arena";
      for (size_t j = 0; j < i; ++j) {
        if (is_view(j) || made.offset[j] < 0 || made.offset[j] >= end) continue;
        if (made.offset[i] >= made.offset[j] + num_bytes(p_.values[j])) continue;
        if (shared) ++*shared;
        if (!may_follow(i, j) && !may_follow(j, i))
          return p_.values[i].name + " and " + p_.values[j].name + " share bytes";
      }
    }
    return "";
  }

 private:
  bool is_view(size_t v) const { return p_.values[v].view_of != program::kNoValue; }
  bool may_follow(size_t first, size_t second) const {
    using program::Life;
    const Life a = p_.values[first].life, b = p_.values[second].life;
    if (a == Life::Persistent || a == Life::Result || b == Life::Persistent || b == Life::Input) return false;
    for (size_t s : uses_[first])
      for (size_t t : uses_[second])
        if (!before_[t][s]) return false;
    return true;
  }

  const program::Program& p_;
  std::vector<std::vector<bool>> before_;
  std::vector<std::vector<size_t>> uses_;
};

// Moves a value and the views into it.
inline void move_value(const program::Program& p, Plan& made, size_t value, int64_t offset) {
  made.offset[value] = offset;
  for (size_t i = 0; i < p.values.size(); ++i)
    if (p.values[i].view_of == static_cast<program::ValueId>(value))
      made.offset[i] = offset + p.values[i].offset;
}

}  // namespace pleat::interpret
