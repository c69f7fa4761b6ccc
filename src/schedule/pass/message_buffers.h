// How early a message may arrive and how long it may wait to be taken.
//
// By data alone a receive depends on nothing, so every microbatch would need a buffer of its own, and what is
// sent could never be overwritten. Here a receive waits until the turn two before its own is computed, and a
// turn waits until what was sent two turns before is taken: a message moves while one turn computes, and two
// buffers of a kind are enough. The waits are part of the program (Stage::after), so check sees that they
// cannot hang, plan uses them and a run keeps them.
#pragma once

#include "program/edit.h"

namespace pleat::schedule {

bool has_messages(const program::Program& program);
// The waits it declares; none where nothing is sent so often that it could wait.
std::vector<program::Wait> message_waits(const program::Program& program);
program::Program bound_message_buffers(program::Program program);

}  // namespace pleat::schedule
