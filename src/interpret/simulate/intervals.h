// Stretches of time, ascending and apart from each other: when a node's lanes held what.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace pleat::interpret {

struct Interval {
  int64_t start = 0, end = 0;
};
using Intervals = std::vector<Interval>;

// Any list made so; empty ones go.
inline Intervals united(Intervals list) {
  const auto earlier = [](const Interval& a, const Interval& b) { return a.start < b.start; };
  if (!std::is_sorted(list.begin(), list.end(), earlier)) std::sort(list.begin(), list.end(), earlier);
  Intervals out;
  for (const Interval& i : list) {
    if (i.end <= i.start) continue;
    if (!out.empty() && i.start <= out.back().end)
      out.back().end = std::max(out.back().end, i.end);
    else
      out.push_back(i);
  }
  return out;
}

inline int64_t length(const Intervals& list) {
  int64_t sum = 0;
  for (const Interval& i : list) sum += i.end - i.start;
  return sum;
}

// How much of [start, end) they cover.
inline int64_t covered(const Intervals& list, int64_t start, int64_t end) {
  int64_t sum = 0;
  auto it = std::lower_bound(list.begin(), list.end(), start,
                             [](const Interval& i, int64_t t) { return i.end <= t; });
  for (; it != list.end() && it->start < end; ++it)
    sum += std::min(end, it->end) - std::max(start, it->start);
  return sum;
}

// What is in `list` and not in `without`.
inline Intervals outside(const Intervals& list, const Intervals& without) {
  Intervals out;
  size_t w = 0;
  for (Interval i : list) {
    while (w < without.size() && without[w].end <= i.start) ++w;
    for (size_t k = w; k < without.size() && without[k].start < i.end; ++k) {
      if (without[k].start > i.start) out.push_back({i.start, without[k].start});
      i.start = std::max(i.start, without[k].end);
    }
    if (i.start < i.end) out.push_back(i);
  }
  return out;
}

}  // namespace pleat::interpret
