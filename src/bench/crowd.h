// How much longer work takes when other cores of the machine are at work too: they share memory, caches and clock.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "config/config.h"

namespace pleat::bench {

// `config`: of one rank with one thread, a short step. k threads run it at once, each with memory of its own; element
// k - 1 of the result is the median time of a step over that of one alone, both by turns; the first is 1. Measured for every k
// up to 8, then for every doubling and for all cores; what lies between is on a line. `measured` is called with each.
std::vector<double> measure_crowd(const config::Config& config, int64_t cores, int64_t steps,
                                  const std::function<void(int64_t k, double times)>& measured = {});

}  // namespace pleat::bench
