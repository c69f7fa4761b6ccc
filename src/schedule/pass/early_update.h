// Updates inside the backward (`optimizer.update_at = "backward"`): a weight moves as soon as its gradient is
// there and nobody in the step needs the weight as it was. Its gradient is then free.
//
// The tensor's norm, its clip and its update move together, right behind the last stage that writes what they read or
// uses what they change. An update looks at its own gradient, the loss and the overflow only, so a step that is past
// its budget or has no loss still leaves every weight as it was. Exact: the same calls give the same bits.
#pragma once

#include "program/program.h"

namespace pleat::schedule {

// A program of one rank, whose updates do not depend on the norm of this step.
program::Program early_update(program::Program program);

}  // namespace pleat::schedule
