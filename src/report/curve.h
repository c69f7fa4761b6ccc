// A quantity over steps, and the two things a drawing needs of it: fewer points, and less noise.
#pragma once

#include <cstddef>
#include <vector>

namespace pleat::report {

struct Point {
  double x = 0.0;
  double y = 0.0;  // may be NaN or infinite: a bad value is part of the curve
};
using Curve = std::vector<Point>;  // x ascending

// Smallest and largest y of each of `columns` equal ranges of x, in order of x, so that no spike is lost;
// short curves are unchanged. A range with a non-finite value keeps one.
Curve thin(const Curve& points, size_t columns);
// Mean over the finite values among each point and its `reach` neighbours on both sides, fewer near the ends
// but always as many left as right, so that a falling curve is neither delayed nor bent. Points that are not
// finite are left out.
Curve smooth(const Curve& points, size_t reach);

}  // namespace pleat::report
