// Ranks that are threads of one process: no launcher, and every layout on one machine.
//
// A collective is: post the call, wait until all have posted, read the peers' memory directly, wait until all
// have read. Calls that do not match (operation, sizes) are therefore always found, by all ranks at once;
// check mode adds the stage names.
#pragma once

#include <functional>

#include "comm/communicator.h"
#include "comm/options.h"

namespace pleat::comm {

// Thread ranks on one GPU that can reduce together: a kernel takes an address of each.
constexpr int kMaxGpuRanks = 64;

class LocalWorld {
 public:
  explicit LocalWorld(int size, Options options = {});
  ~LocalWorld();  // after the last call of any rank
  LocalWorld(const LocalWorld&) = delete;
  LocalWorld& operator=(const LocalWorld&) = delete;

  int size() const;
  // This rank's end of a group (Endpoint::group); does not wait for the others. A rank may have one end of a
  // group open at a time. Any thread.
  std::unique_ptr<Communicator> group(const std::string& name, std::span<const int> ranks, int my_rank,
                                      Buffers buffers = Buffers::Host);
  std::unique_ptr<Endpoint> endpoint(int rank);  // this world outlives it

  // Rank `culprit` has failed: every rank that waits now or later throws an error (code 75) naming it. The
  // first culprit counts; returns whether this was the first. Any thread.
  bool abort(int culprit, const std::string& why);

  // What every rank did last (watchdog.h).
  std::string flight_table() const;

 private:
  friend void run_ranks(LocalWorld& world, const std::function<void(int rank)>& fn);
  struct State;
  std::shared_ptr<State> state_;
};

// Calls fn(rank) on one thread per rank and returns when all have ended. When ranks throw, the first one's
// error is thrown here, with its exit code, its rank in front of the message and, where others waited for it
// or it failed inside a call, the table of who was where behind it. The others are woken by abort; a rank
// that has not ended a time-out later (it makes no calls any more) is a stall.
void run_ranks(LocalWorld& world, const std::function<void(int rank)>& fn);

}  // namespace pleat::comm
