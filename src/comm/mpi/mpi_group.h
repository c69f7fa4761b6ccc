// One process's end of a group over MPI.
#pragma once

#include "comm/communicator.h"
#include "comm/mpi/library.h"
#include "comm/options.h"

namespace pleat::comm::mpi {

class GroupEnd : public Communicator {
 public:
  // Takes `comm` over. Library and flight outlive this.
  GroupEnd(Library& library, MPI_Comm comm, std::string name, std::vector<int> world_ranks, int rank,
           RankFlight& flight, const Options& options);
  ~GroupEnd() override;

  void abort(const std::string& why) override;

 private:
  void execute(const Call& call) override;
  void compare(const Call& call);
  void all_reduce(const Call& call);
  void reduce_scatter(const Call& call);
  void native_reduction(const Call& call);
  // Part `rank` of every member's `in`, in rank order in scratch_; own part is read where it is.
  std::vector<const std::byte*> collect(const Call& call, Parts parts);
  Exchange exchange(const Call& call);

  Library& library_;
  MPI_Comm comm_;
  bool check_, native_;
  std::vector<std::byte> scratch_;
};

}  // namespace pleat::comm::mpi
