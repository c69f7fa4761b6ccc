// One step as lanes over time: every stage a bar at its true place, coloured by category, and beside it where
// the time went. Coordinates are percentages, so the drawing fits any width without shrinking its text.
#pragma once

#include <string>
#include <vector>

#include "report/run_data.h"

namespace pleat::report::html {

// Past this many stages the shortest are left out of the drawing (never of the sums), and the page says so.
inline constexpr size_t kMaxDrawnStages = 6000;

// `events` must not be empty.
std::string timeline(const std::vector<TimelineEvent>& events);

}  // namespace pleat::report::html
