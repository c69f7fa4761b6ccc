// One process's end of a group over MPI.
#pragma once

#include "comm/messages/message_group.h"
#include "comm/mpi/library.h"

namespace pleat::comm::mpi {

class GroupEnd : public MessageGroup {
 public:
  // Takes `comm` over. Library and flight outlive this.
  GroupEnd(Library& library, MPI_Comm comm, std::string name, std::vector<int> world_ranks, int rank,
           RankFlight& flight, const Options& options);
  ~GroupEnd() override;

  void abort(const std::string& why) override;

 private:
  void execute(const Call& call) override;
  std::unique_ptr<comm::Exchange> exchange(std::string here) override;
  void native_reduction(const Call& call);

  Library& library_;
  MPI_Comm comm_;
  bool native_;  // MPI's own reductions
  std::vector<std::byte> scratch_;
};

}  // namespace pleat::comm::mpi
