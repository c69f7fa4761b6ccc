// Checkpoints belong to one run. Those in its folder do so by their place; outside of it they do not move with
// the run, so the file RUN among them names it. All of this is of a resolved configuration.
#pragma once

#include "config/config.h"

namespace pleat::train {

// Whether checkpoint.dir lies outside log.run_dir, links followed. Throws where it lies in the folder of another
// run, also of one that is just starting.
bool checkpoints_lie_outside(const config::Config& used);

// Throws where RUN names another run that is there.
void require_own_checkpoints(const config::Config& used);

// Says in the folder which run its checkpoints belong to, where they lie outside; makes it.
void own_checkpoints(const config::Config& used);

}  // namespace pleat::train
