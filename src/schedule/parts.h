// The parts of a model that the ranks of a layout hold, one per stage of the pipeline: for who must know whether any of
// them has what a key names.
#pragma once

#include <vector>

#include "config/config.h"
#include "program/program.h"

namespace pleat::schedule {

// The training step of every stage as it is built, without the gradients of frozen weights, with as few microbatches as
// the schedule allows: what is kept for the backward of one is kept for that of each. `config` must be resolved, with
// the layout.
std::vector<program::Program> parts_of_ranks(config::Config config);

}  // namespace pleat::schedule
