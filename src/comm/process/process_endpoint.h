// A rank that is a process: what MPI and TCP have in common. Groups with host buffers are the carrier's, groups with
// device buffers are NCCL's, split from one communicator of all ranks, which meet over the carrier.
#pragma once

#include <functional>
#include <memory>

#include "base/error.h"
#include "comm/communicator.h"
#include "comm/options.h"
#include "comm/process/board.h"
#include "comm/process/device_groups.h"

namespace pleat::comm {

class ProcessEndpoint : public Endpoint {
 public:
  int rank() const final { return rank_; }
  int size() const final { return size_; }
  std::unique_ptr<Communicator> group(const std::string& name, std::span<const int> ranks, Buffers buffers,
                                      void* stream) final;
  std::string why_no_windows(std::span<const int> ranks, Buffers buffers) final;
  std::unique_ptr<SharedWindows> share_windows(std::span<const int> ranks, Buffers buffers,
                                               const std::shared_ptr<std::byte>& memory) final;
  std::unique_ptr<Communicator> window_group(const std::string& name, std::span<const int> ranks,
                                             SharedWindows& windows, Buffers buffers, void* stream) final;
  std::vector<std::unique_ptr<Communicator>> groups(std::span<const WantedGroup> wanted,
                                                    Buffers buffers) final;
  int64_t device_bytes() const final { return device_groups_ ? device_groups_->device_bytes() : 0; }
  program::Meeting meeting(Buffers buffers) const final {
    return buffers == Buffers::Device ? program::Meeting::OnDevice : program::Meeting::OnHost;
  }

  // Calls fn, then waits until all ranks have come to the end of their work. When fn throws, this rank has failed: the
  // other ranks of the machine are told, and the first to fail shows who was where, unless its message alone says all
  // there is to say.
  void run(const std::function<void(Endpoint&)>& fn);

 protected:
  // `board` outlives this, and so does what `view` points to.
  ProcessEndpoint(int rank, int size, Board& board, Watchdog::View view, const Options& options);

  // This rank's end of a group whose members are checked; `member`: its place there. May wait for the others.
  virtual std::unique_ptr<Communicator> host_group(const std::string& name, std::span<const int> ranks,
                                                   int member) = 0;
  // Returns when all ranks of the world have called it.
  virtual void meet_all() = 0;

  const Options& options() const { return options_; }
  RankFlight& flight() { return board_.own(); }
  Watchdog& watchdog() { return *watchdog_; }

 private:
  void fail(base::ExitCode code, const std::string& why);
  // Waiting for others that is no call of a group, recorded like one. `sequence` counts what happens again.
  void recorded(const std::string& name, std::string_view stage, std::span<const int> ranks,
                const std::function<void()>& work, uint64_t sequence = 0);
  // This rank's place in a group; throws when there is none, or the ranks are none.
  int member_of(const std::string& name, std::span<const int> ranks) const;
  DeviceGroups& device_groups();

  int rank_, size_;
  Board& board_;
  Options options_;
  std::unique_ptr<Watchdog> watchdog_;
  std::unique_ptr<DeviceGroups> device_groups_;  // made when first asked for
};

}  // namespace pleat::comm
