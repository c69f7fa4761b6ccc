// The flight recorders of the ranks of one machine, in memory their processes share: whoever is left can say where
// a stopped or dead one was.
#pragma once

#include <atomic>
#include <vector>

#include "comm/flight.h"
#include "comm/watchdog.h"

namespace pleat::comm {

class Board {
 public:
  static size_t bytes_for(size_t num_ranks);

  // `memory` is shared by the processes of the ranks `members` (by their place in the world), `bytes_for` them, and
  // was filled with zeroes. This process is members[place]. All are told who is here before anybody looks.
  Board(void* memory, std::vector<int> members, size_t place);

  RankFlight& own() { return *own_; }
  std::atomic<uint32_t>& claim();
  // Ranks of other machines have no recorder in it.
  Watchdog::View view(int world_size);

 private:
  std::byte* start_;
  std::vector<int> members_;
  RankFlight *flights_, *own_;
};

}  // namespace pleat::comm
