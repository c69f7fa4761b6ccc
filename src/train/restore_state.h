// A checkpoint into the state of a run, which may keep its numbers in other element types: what a GPU trained
// in bf16 goes on in float32 on the CPU, and the other way round.
//
// A weight is taken in its widest form: narrow ones together with what rounding left (tensor/halves.h), which
// a checkpoint keeps beside them as "NAME.rest".
#pragma once

#include <span>

#include "checkpoint/load.h"

namespace pleat::train {

// Fills every target. Missing, extra and misshapen tensors are listed in one error; everything is verified
// before the first byte changes. Where types agree, bits do; a narrow weight and its rest
// are the two halves of the wide one.
void restore_state(const checkpoint::Loaded& loaded, std::span<const checkpoint::Target> targets);

// The same of a checkpoint that may hold more: a new run from its weights. Correction biases it does not have
// begin as zero.
void restore_weights(const checkpoint::Loaded& loaded, std::span<const checkpoint::Target> targets);

}  // namespace pleat::train
