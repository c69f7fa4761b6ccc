// Memory of each rank of a group that all of them can write: how a rank's window gets to the others, and the group whose
// meetings divide their stores from what reads them.
//
// Threads have one address space. Processes on GPUs of one machine open each other's allocation (CUDA's handles, told
// over the host's carrier). Nobody else has windows.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace pleat::comm {

// The beginning of every window belongs to the meetings of its ranks; what programs plan lies behind it.
constexpr int64_t kWindowHeaderBytes = 64 << 10;

// Where what programs plan begins in a window; nullptr stays nullptr: a rank that nobody stores into has no window.
inline std::byte* behind_header(std::byte* window) { return window ? window + kWindowHeaderBytes : nullptr; }

// Ranks that can meet in a header.
constexpr int kMaxWindowRanks = 128;

// The windows of a group's ranks, as this rank reaches them.
class SharedWindows {
 public:
  using Memory = std::shared_ptr<std::byte>;  // owns all of it

  virtual ~SharedWindows() = default;
  SharedWindows(const SharedWindows&) = delete;
  SharedWindows& operator=(const SharedWindows&) = delete;

  std::vector<std::byte*> begin;  // in group order, headers included
  int own = 0;
  int num_groups = 0;  // that meet in these headers, each at a place of its own

 protected:
  SharedWindows() = default;
};

// Where ranks are threads: `host` is their group, `memory` begins with a header. It stays as long as one of the ranks has
// what this returned: a rank that fails takes nothing away from under the others.
std::unique_ptr<SharedWindows> share_among_threads(Communicator& host, const SharedWindows::Memory& memory);

// Where ranks are processes with a GPU each, or one together. `memory` is an allocation of its own of the current
// device. Every rank of `host` calls it, and it returns when all have opened all.
std::unique_ptr<SharedWindows> share_among_gpus(Communicator& host, std::byte* memory);
// Why that cannot be, for the ranks of `host`, which all call it and get the same answer; "": it can.
std::string why_out_of_reach(Communicator& host);

// A group that can do nothing but meet, by stores into the others' headers: enqueued on `stream`, any number of times, in
// graphs too. How often it has met is counted on the device. A wait ends when all have come, when abort was called, or
// after `timeout_seconds` (0: never), and then says which rank was missing (watch).
std::unique_ptr<Communicator> make_window_group(std::string name, std::vector<int> world_ranks,
                                                SharedWindows& windows, void* stream, double timeout_seconds,
                                                RankFlight& flight);

}  // namespace pleat::comm
