// The token budget of a small copy. Its few tokens crowd into experts as those of a real batch do not, so the factor
// a user asks for is soon too small. With moe.overflow = "rerun" that is part of what is verified. With "stop" and
// "drop" there is nothing one rank could be compared with, so the budget is raised to what its routing needs.
#pragma once

#include <string>
#include <vector>

#include "verify/layout_run.h"

namespace pleat::verify {

// The smallest factor that has room for every step of `routings` under the layout, in hundredths.
double needed_budget(const config::Config& config, const model::Mesh& mesh,
                     const std::vector<Routing>& routings);

// Raises config.moe.token_budget if it must; says so, or nothing.
std::string fit_budget(config::Config& config, const model::Mesh& mesh, const LayoutRun& recorded);

}  // namespace pleat::verify
