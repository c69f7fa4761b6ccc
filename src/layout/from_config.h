// The layout a configuration asks for. The number of ranks is the launcher's to say.
#pragma once

#include "config/config.h"
#include "layout/layout.h"
#include "layout/pipeline_string.h"

namespace pleat::layout {

Sizes sizes_of(const config::Config& config, int64_t num_ranks);
PipelineLayout pipeline_of(const config::Config& config);

// The fewest ranks that can be laid out as [parallel] says.
int64_t least_ranks(const config::Config& config);

// Throws unless the configuration is one for a single rank.
void require_one_rank(const config::Config& config);

}  // namespace pleat::layout
