// Freeze: takes the parameters that optimizer.freeze names (model::Parameter::frozen) out of a training step.
// No update of them, no part in the gradient norm, and nothing computed that only they needed (the value of an
// auxiliary loss is a result and keeps its way backwards). State stays as it is, so a checkpoint fits whatever
// is frozen. With router, balancing biases stay too.
#pragma once

#include "config/config.h"
#include "program/program.h"

namespace pleat::schedule {

// Throws when a class matches no parameter or none is left to train.
program::Program freeze(program::Program program, const config::Config& config);

}  // namespace pleat::schedule
