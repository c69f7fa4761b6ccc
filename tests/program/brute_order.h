// Happens-before by the definition, without any shortcut: every pair of conflicting uses and every pair on
// one lane is an edge, then the transitive closure. The tests hold program::Order and the planner against it.
#pragma once

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "program/builder.h"
#include "program/program.h"

namespace pleat::program {

struct ByteSpan {
  ValueId root;
  int64_t begin, end;
};

inline ByteSpan span_of(const Program& program, ValueId v) {
  const Value& value = program.values[static_cast<size_t>(v)];
  const bool view = value.view_of != kNoValue;
  const int64_t begin = view ? value.offset : 0;
  return {view ? value.view_of : v, begin, begin + num_bytes(value)};
}

inline bool conflict(const Program& program, const Stage& a, const Stage& b) {
  for (const Use& x : a.uses)
    for (const Use& y : b.uses) {
      if (x.value == kNoValue || y.value == kNoValue) continue;
      if (x.access == Access::Read && y.access == Access::Read) continue;
      const ByteSpan p = span_of(program, x.value), q = span_of(program, y.value);
      if (p.root == q.root && std::max(p.begin, q.begin) < std::min(p.end, q.end)) return true;
    }
  return false;
}

// result[b][a]: a is finished before b can start.
inline std::vector<std::vector<bool>> brute_order(const Program& program) {
  const size_t n = program.stages.size();
  std::vector<std::vector<bool>> before(n, std::vector<bool>(n, false));
  for (size_t b = 0; b < n; ++b)
    for (size_t a = b; a-- > 0;) {
      if (before[b][a]) continue;
      const Stage &x = program.stages[a], &y = program.stages[b];
      const bool declared =
          std::find(y.after.begin(), y.after.end(), static_cast<StageId>(a)) != y.after.end();
      if (x.lane != y.lane && !conflict(program, x, y) && !declared) continue;
      before[b][a] = true;
      for (size_t i = 0; i < a; ++i)
        if (before[a][i]) before[b][i] = true;
    }
  return before;
}

// Copies and in-place sums between a few values and halves of them, on up to three lanes. Not every read is
// of something written: order and lifetimes do not need that.
inline Program random_program(uint32_t seed, int num_stages) {
  std::mt19937 random(seed);
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  Builder b("random" + std::to_string(seed));
  std::vector<int> lanes = {0};
  for (size_t i = below(3); i > 0; --i) lanes.push_back(b.lane("lane" + std::to_string(i), "compute"));
  std::vector<ValueId> values;
  for (int i = 0; i < 12; ++i) {
    const int64_t rows = 2 * (1 + static_cast<int64_t>(below(40)));
    values.push_back(b.value("v" + std::to_string(i), tensor::Dtype::F32, {rows, 16}, Owner::Activations));
    if (below(3) == 0) {
      const ValueId root = values.back();
      const int64_t cut = 1 + static_cast<int64_t>(below(static_cast<size_t>(rows - 1)));
      values.push_back(b.rows(root, 0, cut, "[lo]"));
      values.push_back(b.rows(root, cut, rows - cut, "[hi]"));
    }
  }
  for (int s = 0; s < num_stages; ++s) {
    b.at({0, -1, s}, lanes[below(lanes.size())]);
    // Early stages use early values, so that lifetimes end and bytes can be shared.
    const size_t first = values.size() * static_cast<size_t>(s) / static_cast<size_t>(num_stages);
    const auto pick = [&] { return values[std::min(values.size() - 1, first + below(4))]; };
    if (below(4) == 0) {
      b.wgrad(Op::tie_grad, {r(pick()), u(pick())});
    } else {
      b.forward(Op::router_record, {r(pick()), w(pick())});
    }
  }
  return b.take();
}

}  // namespace pleat::program
