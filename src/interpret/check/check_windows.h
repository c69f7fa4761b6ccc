// Windows are memory that other ranks write, and no order of one rank's stages binds the others: only a meeting of the
// group does. A store into a window must be behind a meeting that is itself behind every earlier use of those bytes here,
// since the other ranks run the same program and may be as far behind; a use must be behind a meeting that is behind the
// store.
#pragma once

#include <vector>

#include "interpret/check/check.h"
#include "program/order.h"

namespace pleat::interpret {

// A store of which no meeting divides earlier uses of the same bytes.
struct UnmetStore {
  program::StageId store = -1;
  program::ValueId value = program::kNoValue;  // as one of those uses knows the bytes
  std::vector<program::StageId> uses;  // all of them, of every window it stores into, since the store before
};
// Those that could be overwritten too early. A store that is the first of its bytes in a program needs a meeting as well,
// since the program before may still be read elsewhere; where it has none it is a fault, not here.
std::vector<UnmetStore> unmet_stores(const program::Program& program, const program::Order& order);

// All of it, of a program whose windows have their places (schedule/pass/windows.h).
CheckReport check_windows(const program::Program& program);

// Whether a stage is a meeting of all ranks of `group`: nobody gets past it before all have come.
bool is_meeting_of(const program::Stage& stage, program::Group group);

}  // namespace pleat::interpret
