// A matrix as coloured cells, inline SVG. The ramp runs from dark blue over grey to yellow: it rises steadily
// in brightness, so it reads the same to colour-blind eyes and in print.
#pragma once

#include <string>
#include <vector>

namespace pleat::report::html {

// #rrggbb for a place between 0 (dark blue) and 1 (yellow); values outside are clamped.
std::string ramp_colour(double place);
bool ramp_is_dark(double place);  // light text reads better on it

struct HeatMap {
  std::string title;
  std::string note;                     // one sentence under the title
  std::vector<std::string> row_labels;  // one per row
  std::vector<std::string> col_labels;  // one per column; drawn as far as there is room
  std::string col_title;
  std::vector<double> values;         // row-major; NaN is an empty cell
  std::vector<bool> marked;           // empty, or one per cell: crossed out in red
  std::vector<std::string> hints;     // empty, or one per cell: what hovering shows
  double (*place)(double) = nullptr;  // value -> place on the ramp
  std::vector<double> legend;         // values named beside the ramp
  std::string legend_title;
  bool print_values = false;  // write the value into the cell where the cells are large enough
};

std::string heat_map(const HeatMap& map);

// 0 at 0, 1/2 at 1, towards 1 far above: for load / mean, whose balance point is 1.
double place_of_ratio(double ratio);
// 0 at 1, 0.65 at 2, towards 1 far above: for max / mean, which is never below 1.
double place_of_peak(double ratio);

}  // namespace pleat::report::html
