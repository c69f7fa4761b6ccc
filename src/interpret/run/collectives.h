// Collective and transfer stages on the host: each is one call of a communicator. What moves where is in
// program/ops.def; here bytes and counts are read off the arguments.
#pragma once

#include <functional>
#include <string>

#include "comm/communicator.h"
#include "kernels/invocation.h"
#include "program/program.h"

namespace pleat::interpret {

// This rank's end of a group for the stages of one lane; lanes must not share one, because each runs its
// collectives in an order of its own. The result outlives the executor. Called once per (group, lane).
using FindGroup = std::function<comm::Communicator*(program::Group group, const std::string& lane)>;

using Collective = void (*)(comm::Communicator& group, const program::Stage& stage,
                            const kernels::Invocation& call, const std::string& name);

// nullptr: not a collective or transfer. Checks what can be known before a step runs; throws naming it.
Collective find_collective(const program::Stage& stage, const kernels::Invocation& call,
                           const comm::Communicator& group);

}  // namespace pleat::interpret
