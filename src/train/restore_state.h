// A checkpoint into the state of a run, which may keep its numbers in other element types: what a GPU trained
// in bf16 goes on in float32 on the CPU, and the other way round.
//
// A weight is taken in its widest form. This is the one place that knows how a checkpoint of narrow weights
// keeps what rounding took from them: as "NAME.master" in float32.
#pragma once

#include <span>

#include "checkpoint/load.h"

namespace pleat::train {

// Fills every target. Missing, extra and misshapen tensors are listed in one error; everything is verified
// before the first byte changes. Where types agree, bits do; a narrow weight is its wide one rounded once, to
// nearest, ties to even.
void restore_state(const checkpoint::Loaded& loaded, std::span<const checkpoint::Target> targets);

}  // namespace pleat::train
