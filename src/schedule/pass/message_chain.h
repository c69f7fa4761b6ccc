// The messages of an interleaved pipeline in an order that one queue per rank can run.
//
// Enqueued exchanges of a rank are a chain (program/meeting.h). As built, a receive stands at the head of its turn: round
// the ring of chunks every rank would send before it receives, and all would wait. Here every receive stands where its
// message is sent: behind this rank's own send of the same half of the same round (schedule/pipeline_rounds.h), so that
// both are one call (program/message_calls.h). Only messages move; what a rank computes keeps its order, and with it
// every bit. The waits that bound their buffers stay.
#pragma once

#include "program/program.h"

namespace pleat::schedule {

// Whether the program is a training step of a rank with several chunks: others need no other order.
bool is_interleaved(const program::Program& program);

program::Program chain_messages(program::Program program);

}  // namespace pleat::schedule
