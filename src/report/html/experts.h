// The routers of a run: load of every expert in every layer, how the worst expert of each layer changed over
// the run, and the table of health numbers.
#pragma once

#include <string>

#include "report/run_data.h"

namespace pleat::report::html {

std::string experts_section(const RunData& run);

}  // namespace pleat::report::html
