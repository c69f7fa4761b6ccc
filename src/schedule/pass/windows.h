// Windows get their places. A block writes its exchanges as if every layer of every microbatch had windows of its own;
// here values of a kind share places, as many as are needed at a time, and where ranks could then store over what another still reads, a meeting of
// the group is put in between. Most exchanges need none: the meeting of the one before does it.
#pragma once

#include "program/program.h"

namespace pleat::schedule {

bool has_windows(const program::Program& program);
program::Program place_windows(program::Program program);

}  // namespace pleat::schedule
