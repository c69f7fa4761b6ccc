// Codes of few bits over a run: what share of each class became 0, and the table of the last step.
#pragma once

#include <string>

#include "report/run_data.h"

namespace pleat::report::html {

// Empty where the run coded nothing.
std::string codes_section(const RunData& run);

}  // namespace pleat::report::html
