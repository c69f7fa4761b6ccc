// `pleat explain --ledger`: what every pass moved, as a table or as JSON.
#pragma once

#include <cstdint>
#include <string>

#include "config/config.h"

namespace pleat::apps {

// Of the training step of `num_ranks` ranks, seen from one pipeline stage; times on that machine, "": the default.
void explain_ledger(const config::Config& config, int64_t num_ranks, int64_t stage,
                    const std::string& machine_name, bool as_json);

}  // namespace pleat::apps
