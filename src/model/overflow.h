// The token budget: how many rows the experts of one rank have room for, and what a step that needed more has
// to say. A step past its budget is trimmed to it before a row moves (kernels/dispatch), so nothing is ever
// written outside the plan; with moe.overflow = "drop" that is the step, otherwise it is refused (commit = 0)
// on all ranks alike and the caller stops, or runs it again with the program of rerun_config.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "config/config.h"
#include "model/mesh.h"
#include "program/program.h"

namespace pleat::model {

// Rows of one expert rank: of balanced routing, with its padding; what the plan reserves; what routing could ask for.
struct ExpertRows {
  int64_t expected = 0, budget = 0, maximum = 0;
};
ExpertRows expert_rows(const config::Config& config, const Mesh& mesh);

// Of the result "overflow" (one number per layer): empty when the step fit; else which layer and rank needed
// how many rows, the budget, and the factor that would have been enough.
std::string overflow_fault(std::span<const int64_t> overflow, const config::Config& config, const Mesh& mesh);

// The same step with room for every row, experts recomputed in backward so that only one layer's rows are
// there at a time. Its state lies where that of the budgeted program lies.
// Whether a step of these programs can ask for more rows than there are, and is then run again as rerun_config says.
bool may_rerun(const config::Config& config, std::span<const program::Program> programs);

config::Config rerun_config(config::Config config);

}  // namespace pleat::model
