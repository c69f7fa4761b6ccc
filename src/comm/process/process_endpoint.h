// A rank that is a process: what MPI and TCP have in common. Groups with host buffers are the carrier's, groups with
// device buffers are NCCL's, which then meet over the carrier.
#pragma once

#include <functional>
#include <memory>

#include "base/error.h"
#include "comm/communicator.h"
#include "comm/options.h"
#include "comm/process/board.h"

namespace pleat::comm {

class ProcessEndpoint : public Endpoint {
 public:
  int rank() const final { return rank_; }
  int size() const final { return size_; }
  std::unique_ptr<Communicator> group(const std::string& name, std::span<const int> ranks, Buffers buffers,
                                      void* stream) final;
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
  // Waiting for others that is no call of a group, recorded like one.
  void recorded(const std::string& name, const char* stage, std::span<const int> ranks,
                const std::function<void()>& work);
  std::unique_ptr<Communicator> device_group(const std::string& name, std::span<const int> ranks, int member,
                                             void* stream);

  int rank_, size_;
  Board& board_;
  Options options_;
  std::unique_ptr<Watchdog> watchdog_;
};

}  // namespace pleat::comm
