// How codes fared in the last step of a program, for the log: of the whole run, on every rank.
#pragma once

#include <vector>

#include "interpret/run/executor.h"
#include "report/code_health.h"

namespace pleat::train {

// One for each class and side that was coded; none where the program makes no codes.
std::vector<report::CodeHealth> code_health(const interpret::Executor& executor);

}  // namespace pleat::train
