// Makes a group of a communicator of the library that is ready for use.
#pragma once

#include <nccl.h>

#include "comm/nccl/nccl_group.h"

namespace pleat::comm::nccl {

// Takes `comm` over, also when it throws. `taken`: memory of the device that opening it took.
std::unique_ptr<Communicator> make_group_end(const NcclWorld::Group& group, ncclComm_t comm, int64_t taken,
                                             RankFlight& flight, const Inject& inject,
                                             std::unique_ptr<Communicator> host);

}  // namespace pleat::comm::nccl
