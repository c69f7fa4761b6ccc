// What a run chooses about its communication.
#pragma once

#include <functional>
#include <string>

namespace pleat::comm {

struct Options {
  // A call that has not ended after this long is a stall: one table goes to standard error and the process
  // ends with code 75. 0: never.
  double timeout_seconds = 300;
  // Compare stage name, sequence number and shape across the group before each collective.
  bool check = false;
  // Over MPI: take the library's own reductions, whose order of sums (and so the last bits) it chooses.
  bool mpi_native = false;
  // Replaces printing the table and ending the process.
  std::function<void(const std::string& table)> on_stall;
};

}  // namespace pleat::comm
