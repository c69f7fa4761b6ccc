// Ranks that are processes, started by mpirun or srun and joined by MPI.
//
// The reductions are our own (reduce.h) on MPI's messages, so that threads and processes give the same bits;
// Options::mpi_native takes MPI's. The flight recorders of the ranks of one machine lie in memory they share,
// so the watchdog of any of them can say where a stopped or dead one was.
//
// Without an MPI library this header is answered by absent.cpp, chosen when the project is configured.
#pragma once

#include <functional>

#include "comm/communicator.h"
#include "comm/options.h"
#include "comm/world.h"

namespace pleat::comm {

bool mpi_is_built_in();
std::string mpi_description();  // "Open MPI v4.1.4 ...", or "not built in"

// Joins the world the launcher made, calls fn on the calling thread, leaves. Once per process. Throws when
// the world MPI sees is not the one read_world() sees. When fn throws, the other ranks of the machine end
// with code 75 and this rank's message, and the error is thrown on: the process must then end with a code
// other than 0, which makes the launcher end the rest. The endpoint makes groups from one thread at a time,
// on all members in the same order.
void run_mpi_rank(const Options& options, const std::function<void(Endpoint&)>& fn);

}  // namespace pleat::comm
