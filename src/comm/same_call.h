// Check mode of groups whose calls are enqueued: before a collective is put on its stream, the ranks tell each other
// over a group in host memory what they are about to call.
#pragma once

#include "comm/communicator.h"

namespace pleat::comm {

// Called by all ranks of `group` before `call`; `host` has the same members in the same order. Waits for all of them.
// Throws the first difference (call.h), on every rank and in the words of groups that block.
void require_same_call(Communicator& host, const Communicator& group, const Call& call);

}  // namespace pleat::comm
