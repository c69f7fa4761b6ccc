// Where the time of a step goes, as a picture: a bar for every operation, and how short the device's ceilings
// would let it be.
#pragma once

#include <string>
#include <vector>

#include "bench/operation_times.h"

namespace pleat::bench {

// A standalone SVG. Operations below a hundredth of all the time are drawn as one bar. Needs at least one
// operation.
std::string breakdown_svg(const std::vector<OperationTime>& times, const std::string& title);

}  // namespace pleat::bench
