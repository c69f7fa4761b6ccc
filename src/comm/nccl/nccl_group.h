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
#include <memory>

#include "comm/communicator.h"

namespace pleat::comm {

using NcclId = std::array<std::byte, 128>;

bool nccl_is_built_in();
int nccl_version();              // of the library that is loaded: 22703 is 2.27.3; 0: not built in
std::string nccl_description();  // "NCCL 2.27.3", or "not built in"

// What the ranks of a new world must share; one of them makes it and sends it to the others by other means.
NcclId make_nccl_id();

// One rank's end of the communicator of all ranks. It carries no calls itself: every group of the run is split from it,
// so that the library finds the machines, links and processes once.
//
// It starts without blocking: waiting for others is asking the library again and again, in a thread that the rest of
// the process can see (flight.h), so that a rank that never comes is named by the watchdog. The groups split from it
// open the same way, but their calls block until they stand on the stream: calls of a group that does not block are
// launched by a thread of the library's own each (2.22 to 2.32), which costs a thread and a wait per call and leaves
// the capture of a stream to a thread that knows nothing of it.
//
// Groups share no resources with it or each other (splitShare = 0). The calls of a rank form one chain, which would
// make sharing buffers safe; but groups that share end together when one is aborted, and a group is ended by aborting
// it, since its members may have failed.
class NcclWorld {
 public:
  virtual ~NcclWorld() = default;

  struct Group {
    std::string name;
    std::vector<int> world_ranks;
    int rank = 0;            // in the group
    void* stream = nullptr;  // a cudaStream_t, there as long as calls are made
  };
  // A call of all ranks of the world, in one order on all of them: each with its group, or without one. Groups of one
  // call share no rank. Waits until all have come; errors name the group. `flight` outlives what is made. The end of a
  // group is at once and waits for nobody, since members may have failed: ranks that end well meet on the host before.
  // `host`, if there is one, has the same members: calls are compared over it (enqueued.h).
  virtual std::unique_ptr<Communicator> split(const Group& group, RankFlight& flight, const Inject& inject,
                                              std::unique_ptr<Communicator> host) = 0;
  virtual void stand_aside() = 0;

  // Memory of the device taken at the start, measured: what was free before less what was free behind it.
  virtual int64_t device_bytes() const = 0;
};

// Waits until all ranks have come. On the current device.
std::unique_ptr<NcclWorld> make_nccl_world(const NcclId& id, int rank, int size);

}  // namespace pleat::comm
