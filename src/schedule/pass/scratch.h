// Memory that a GPU's kernels need beside their arguments, as values of the program: every stage whose kernel
// asks for some (kernels/contract.h) gets a value of its own, which lives while the stage runs. So `plan` puts it
// into what the other values leave free at that time, and stages that run side by side on two lanes have bytes
// of their own. Exact: nothing is in it before the stage and nothing is read from it behind.
#pragma once

#include "program/program.h"

namespace pleat::schedule {

program::Program add_scratch(program::Program program);

}  // namespace pleat::schedule
