// Where the host of a GPU waits for it, and in which order its exchanges come.
//
// Calls that meet on the host block: peers read and write the arguments of an exchange as soon as this rank has
// come, so before every exchange there is a stage host_wait. How many rows go where is read on the host in any
// case: the counts are copied to pinned memory, and the host waits for the copy.
//
// Enqueued calls (program::Meeting) need no other wait. They form one chain over all lanes, in list order: ranks that
// put them on their streams in one order, and run them in that order, never wait for each other in a circle.
#pragma once

#include "program/meeting.h"
#include "program/program.h"

namespace pleat::schedule {

program::Program host_waits(program::Program program, program::Meeting meeting = program::Meeting::OnHost);

}  // namespace pleat::schedule
