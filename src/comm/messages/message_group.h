// One process's end of a group that is carried by messages (MPI, TCP): every collective made of sends and receives.
//
// The reductions are our own (reduce.h), in our order, so that threads and processes give the same bits.
#pragma once

#include <memory>

#include "comm/communicator.h"
#include "comm/messages/exchange.h"
#include "comm/options.h"

namespace pleat::comm {

class MessageGroup : public Communicator {
 protected:
  MessageGroup(std::string name, std::vector<int> world_ranks, int rank, RankFlight& flight,
               const Options& options);

  void execute(const Call& call) override;
  // Messages between the members. `here` says whose they are, in errors.
  virtual std::unique_ptr<Exchange> exchange(std::string here) = 0;

  bool checks() const { return check_; }
  // Throws, on every member, unless all make the same call.
  void compare(const Call& call);
  std::unique_ptr<Exchange> exchange(const Call& call);

 private:
  void all_reduce(const Call& call);
  void reduce_scatter(const Call& call);
  void meet(const Call& call);
  // Part `rank` of every member's `in`, in rank order in scratch_; own part is read where it is.
  std::vector<const std::byte*> collect(const Call& call, Parts parts);

  bool check_;
  std::vector<std::byte> scratch_;
};

}  // namespace pleat::comm
