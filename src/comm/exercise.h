// Every operation of a group with known answers, timed: what `pleat doctor` shows.
#pragma once

#include "comm/communicator.h"
#include "comm/exercise_memory.h"

namespace pleat::comm {

struct Exercised {
  std::string operation;
  double latency_seconds = 0;  // of a call with 8 bytes per rank, the slowest rank's median
  double bytes_per_second =
      0;              // of a call with `bytes` per rank: what one rank sends, over the slowest rank's median
  std::string fault;  // "" or what was wrong, on the lowest rank that saw it
};

struct ExerciseSize {
  int64_t bytes = int64_t{1} << 20;
  int repeats = 7;
};

// Called by all ranks of the group; every rank gets the same list. Wrong answers are results, not errors. Times are until
// a call is done, also where it is enqueued.
std::vector<Exercised> exercise(Communicator& group, const ExerciseSize& size);
// The same for a group whose buffers lie in `memory`; `words` has the same members and carries, in host memory, what
// they tell each other about the answers.
std::vector<Exercised> exercise(Communicator& group, Communicator& words, ExerciseMemory& memory,
                                const ExerciseSize& size);

}  // namespace pleat::comm
