// The groups of one process with device buffers: opened by all ranks of the world together, split from one communicator
// that is made with the first of them.
#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "comm/communicator.h"
#include "comm/nccl/nccl_group.h"

namespace pleat::comm {

class DeviceGroups {
 public:
  // What the process lends it; all of it outlives this.
  struct Process {
    int rank = 0, size = 1;
    // This rank's end of a group in host memory.
    std::function<std::unique_ptr<Communicator>(const std::string& name, std::span<const int> ranks)>
        host_group;
    // Does `work`, in which all ranks of the world meet, recorded like a call of one group that they share.
    std::function<void(std::string_view stage, uint64_t sequence, const std::function<void()>& work)>
        recorded;
    std::function<NcclId()> make_id;
    std::function<std::unique_ptr<NcclWorld>(const NcclId& id)> start;
    RankFlight* flight = nullptr;
    Inject inject;
    bool check = false;  // compare calls before they are enqueued
  };
  explicit DeviceGroups(Process process);

  // Called by all ranks together, also by one that asks for none; in the order asked for. Every group has this rank in
  // it. Waits for all of them.
  std::vector<std::unique_ptr<Communicator>> open(std::span<const WantedGroup> wanted);
  int64_t device_bytes() const { return nccl_ ? nccl_->device_bytes() : 0; }

 private:
  void start();
  std::unique_ptr<Communicator> split(const WantedGroup& wanted);

  Process process_;
  std::unique_ptr<Communicator> meeting_;  // all ranks, in host memory: where they agree on what to open
  std::unique_ptr<NcclWorld> nccl_;
  uint64_t num_opened_ = 0;  // what all ranks have opened together
};

}  // namespace pleat::comm
