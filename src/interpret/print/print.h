// The text form of a program, and its parser: parse(print(p)) == p for every valid program.
//
// Grammar, one item a line, '#' starts a comment:
//   program NAME
//   lane NAME RESOURCE
//   attrs N key=number ...                     (set 0 is empty and not printed)
//   repeat MICROBATCH TIMES                    (program/repeat.h)
//   value NAME dtype[dims] OWNER LIFE [space=SPACE] [view=NAME+BYTES] [scale_of=NAME]
//   [rows=EXPECTED/MAXIMUM]
//   PHASE [modelM] [mbM] [cC] [LL] OP[.PART] [(replay)] @LANE [group=G] [peer=P] [attrs=N] [after=STAGE]...
//   [scratch=VALUE] : arg=VALUE ... -> arg[+]=VALUE ...
// "+=" marks Access::Update; absent optional arguments are left out; the spaces of a stage's name are commas
// behind after=. A value's microbatch and layer are in its name (program/value_name.h).
#pragma once

#include <string>
#include <string_view>

#include "program/program.h"

namespace pleat::interpret {

std::string print(const program::Program& program);

// Throws base::Error naming the line and what was expected.
program::Program parse(std::string_view text);

}  // namespace pleat::interpret
