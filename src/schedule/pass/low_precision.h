// Products in few bits (precision.recipe): a product of a chosen module takes codes instead of numbers, and a stage ahead
// of it makes them (kernels/quantize). Bounded: docs/numerics.md, section 11.
//
// A value is coded once, however many products read it. Codes of an activation are made ahead of its first product; recipe
// fp8 keeps these for the weight's gradient, which turns them when it is due, the others make column codes at once and keep
// those. So what a product keeps for its backward is as large as its codes. Not so where tensor ranks gather rows again for
// the backward: they keep their own rows as numbers, and code what they gathered. Codes of a weight are made at its first
// use in the step and serve all microbatches; those of its transpose at the first gradient of an input.
//
// Rows of experts on the same rank are copies of tokens, forward and in combine's backward: the tokens are coded, once, and
// the codes copied. Experts have token codes of their own beside those of shared experts, which may run on another lane.
// Rows that other ranks sent are coded as they came.
//
// Stages that make codes count how their numbers fared (program/code_rows.h), each number once: not what recompute codes
// again, not the turned codes of a weight, and on one rank only what several ranks code alike.
#pragma once

#include "config/config.h"
#include "program/program.h"

namespace pleat::schedule {

program::Program low_precision(program::Program program, const config::Config& config);

}  // namespace pleat::schedule
