// A step of many microbatches whose program holds three of them: the first, one that is repeated, and the last. The
// repeated one's stages stand one after the other in the list. Before each pass over them the host writes the
// microbatch's inputs anew (interpret/run/executor.h), and every lane has done all that stands before: nothing of two
// passes overlaps. So the passes are the microbatches of a longer program, if what they hand on is sums alone, which
// interpret/check.h sees to.
#pragma once

#include <cstdint>

#include "program/program.h"

namespace pleat::program {

struct StageRange {
  StageId first = 0, end = 0;
  bool holds(StageId s) const { return first <= s && s < end; }
};
// The stages that are repeated; none: an empty range at the end of the list.
StageRange repeated(const Program& program);

inline bool has_repeat(const Program& program) { return program.repeat.microbatch >= 0; }
// How often a stage runs in one step.
inline int64_t passes_of(const Program& program, const StageRange& range, StageId stage) {
  return range.holds(stage) ? program.repeat.times : 1;
}

// The program with every pass written out, for who has to see them one by one; it runs in the same order.
Program unrolled(Program program);

}  // namespace pleat::program
