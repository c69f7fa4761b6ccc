// One rank's end of a group over NCCL: GPUs.
//
// Buffers are device memory of the current device. Calls are enqueued on the given stream (communicator.h).
// These groups are native: order of sums and carry type of reductions are NCCL's, the same on every run of one
// machine and layout, but not the bits of threads and MPI. What a sum of gradients travels in is the type of
// the value: f32 unless optimizer.grad_dtype asks for bf16, which is then summed in bf16. Equal parts take
// NCCL's own reduce-scatter and all-gather. Messages have no tags on the wire: between two ranks they must be
// received in the order they were sent. A NaN may get lost in Max and Min.
//
// Built where CMake finds NCCL (PLEAT_NCCL); otherwise absent.cpp answers.
#pragma once

#include <array>

#include "comm/communicator.h"

namespace pleat::comm {

using NcclId = std::array<std::byte, 128>;

bool nccl_is_built_in();
int nccl_version();              // of the library that is loaded: 22703 is 2.27.3; 0: not built in
std::string nccl_description();  // "NCCL 2.27.3", or "not built in"

// What the ranks of a new group must share; one of them makes it and sends it to the others by other means.
NcclId make_nccl_id();

// Waits until all members have come; every rank opens its groups in the same order. `stream` is a cudaStream_t,
// there as long as calls are made; `flight` outlives the communicator. Calls are recorded, not compared: check
// mode needs a carrier in host memory. The end of a group is at once and waits for nobody, since members may
// have failed: ranks that end well meet on the host before.
std::unique_ptr<Communicator> make_nccl_group(std::string name, std::vector<int> world_ranks, int rank,
                                              const NcclId& id, void* stream, RankFlight& flight);

}  // namespace pleat::comm
