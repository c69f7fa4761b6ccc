// Where ranks meet on the host, the host waits for the device: peers read and write the arguments of an exchange as soon as
// this rank has come, and how many rows go where is read on the host. Both are said here: a stage host_wait before every
// exchange, and a copy of the counts to pinned memory before those that need them.
#pragma once

#include "program/program.h"

namespace pleat::schedule {

program::Program host_waits(program::Program program);

}  // namespace pleat::schedule
