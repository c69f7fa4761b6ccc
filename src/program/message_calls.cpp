#include "program/message_calls.h"

namespace pleat::program {

std::vector<std::pair<StageId, StageId>> message_calls(const Program& program, const EdgeList& edges) {
  std::vector<std::pair<StageId, StageId>> out;
  const StageId n = static_cast<StageId>(program.stages.size());
  const auto at = [&](StageId s) -> const Stage& { return program.stages[static_cast<size_t>(s)]; };
  const auto joins = [&](StageId s, StageId first) {
    if (class_of(at(s).op) != OpClass::Transfer || class_of(at(first).op) != OpClass::Transfer) return false;
    for (const StageId before : edges[static_cast<size_t>(s)])
      if (before >= first) return false;
    for (StageId other = first; other < s; ++other)
      if (at(other).lane == at(s).lane) return false;
    return true;
  };
  for (StageId first = 0; first < n;) {
    StageId end = first + 1;
    while (end < n && joins(end, first)) ++end;
    for (StageId s = first; s < end; ++s) out.emplace_back(first, end);
    first = end;
  }
  return out;
}

}  // namespace pleat::program
