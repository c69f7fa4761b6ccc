// Whether the passes over repeated stages (program/repeat.h) are the microbatches of a longer program.
//
// Their stages stand together and are of one microbatch. What is of that microbatch is used by them alone, so every pass
// begins it anew; of other microbatches they touch nothing; of the step they read what stands, and add to sums: what a
// pass would overwrite is lost for whoever comes behind. Windows are overwritten by every microbatch; when, is
// check_windows.h's.
#pragma once

#include "interpret/check/check.h"

namespace pleat::interpret {

void check_repeat(const program::Program& program, CheckReport& report);

}  // namespace pleat::interpret
