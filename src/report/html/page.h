// The report page: one self-contained HTML file. It loads nothing, reads well without its script, and forbids
// by its own Content-Security-Policy every script but that one, in case a name slips through unescaped.
#pragma once

#include <string>

#include "report/run_data.h"

namespace pleat::report::html {

std::string page(const RunData& run);

}  // namespace pleat::report::html
