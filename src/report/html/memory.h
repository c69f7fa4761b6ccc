// Memory of a run: who owns the bytes at the planned peak, and how the plan compares with what was measured.
#pragma once

#include <string>

#include "report/run_data.h"

namespace pleat::report::html {

// Bars and table; says in words what the summary lacks.
std::string memory_section(const RunSummary& summary);

}  // namespace pleat::report::html
