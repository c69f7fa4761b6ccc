// What a run chooses about its communication.
#pragma once

#include <functional>
#include <string>

#include "comm/call.h"

namespace pleat::comm {

// Sees a call of rank `world_rank` in `group` before it is made; may change it, throw, or never return.
// False: the call is not made. What it puts into the call must live until the next call of the same thread.
using Inject = std::function<bool(int world_rank, std::string_view group, int member, Call& call)>;

struct Options {
  // A call that has not ended after this long is a stall: one table goes to standard error and the process
  // ends with code 75. 0: never, unless `called_off`: then a call may still last `stop_seconds`.
  double timeout_seconds = 300, stop_seconds = 300;
  // Compare stage name, sequence number and shape across the group before each collective.
  bool check = false;
  // Over MPI: take the library's own reductions, whose order of sums (and so the last bits) it chooses.
  bool mpi_native = false;
  // Whether this process was asked to stop. Where ranks that are processes over TCP wait for each other at the start,
  // the wait ends then; later it is the run that asks, between steps. Called from any thread.
  std::function<bool()> called_off;
  // Faults for tests (inject.h); empty otherwise.
  Inject inject;
  // Replaces printing the table and ending the process.
  std::function<void(const std::string& table)> on_stall;
};

}  // namespace pleat::comm
