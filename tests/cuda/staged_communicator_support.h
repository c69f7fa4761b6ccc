// A communicator for buffers in host memory over one for device memory: every call's buffers are copied to
// the device, moved there, and copied back. So the cases every carrier is tested with reach those that move
// device memory.
#pragma once

#include <memory>

#include "comm/communicator.h"

namespace pleat::testing {

// `inner` (of comm::Buffers::Device, or NCCL) and `flight` outlive it.
std::unique_ptr<comm::Communicator> staged(comm::Communicator& inner, comm::RankFlight& flight);

}  // namespace pleat::testing
