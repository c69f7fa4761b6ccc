#include "report/curve.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace pleat::report {

Curve thin(const Curve& points, size_t columns) {
  if (points.size() <= 2 * columns) return points;
  const double low = points.front().x, width = points.back().x - low;
  if (!(width > 0)) return points;
  Curve out;
  for (size_t begin = 0; begin < points.size();) {
    const auto column_of = [&](const Point& point) {
      return std::min(columns - 1,
                      static_cast<size_t>((point.x - low) / width * static_cast<double>(columns)));
    };
    size_t end = begin, smallest = begin, largest = begin;
    bool has_bad = false;
    for (; end < points.size() && column_of(points[end]) == column_of(points[begin]); ++end) {
      if (!std::isfinite(points[end].y)) {
        has_bad = true;
        continue;
      }
      if (!(points[end].y >= points[smallest].y)) smallest = end;
      if (!(points[end].y <= points[largest].y)) largest = end;
    }
    out.push_back(points[std::min(smallest, largest)]);
    if (smallest != largest) out.push_back(points[std::max(smallest, largest)]);
    if (has_bad) out.push_back({points[end - 1].x, std::numeric_limits<double>::quiet_NaN()});
    begin = end;
  }
  return out;
}

Curve smooth(const Curve& points, size_t reach) {
  Curve out;
  for (size_t i = 0; i < points.size(); ++i) {
    if (!std::isfinite(points[i].y)) continue;
    const size_t near = std::min({reach, i, points.size() - 1 - i});
    double sum = 0;
    size_t count = 0;
    for (size_t k = i - near; k <= i + near; ++k) {
      if (!std::isfinite(points[k].y)) continue;
      sum += points[k].y;
      ++count;
    }
    out.push_back({points[i].x, sum / static_cast<double>(count)});
  }
  return out;
}

}  // namespace pleat::report
