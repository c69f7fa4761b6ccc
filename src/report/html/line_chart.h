// A line chart as inline SVG. Long series are thinned to the smallest and largest value of each column of
// pixels, so that a spike is never lost; non-finite values (and those past 1e300) break the line and are
// marked on the axis.
#pragma once

#include <string>
#include <vector>

#include "report/curve.h"
#include "report/html/axis.h"

namespace pleat::report::html {

struct Series {
  std::string name;
  std::string colour;  // a CSS colour; trusted, never from a file
  Curve points;
  enum class Look { Line, Faint, Dots } look = Look::Line;
};

struct LineChart {
  std::string title;
  std::string x_label;
  std::string y_label;
  std::vector<Series> series;
  Scale y_scale = Scale::Linear;  // Log leaves values <= 0 out as if they were not finite
  bool y_from_zero = false;
};

// A <figure> with title, legend and plot. With no finite point at all it says so in words.
std::string line_chart(const LineChart& chart);

}  // namespace pleat::report::html
