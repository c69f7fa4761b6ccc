// `pleat explain --ledger`: what every pass moved, as a table or as JSON.
#pragma once

#include <cstdint>

#include "config/config.h"

namespace pleat::apps {

// Of the training step of `num_ranks` ranks, seen from one pipeline stage.
void explain_ledger(const config::Config& config, int64_t num_ranks, int64_t stage, bool as_json);

}  // namespace pleat::apps
